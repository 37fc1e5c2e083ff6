/* Sends large messages every way that MPI libraries have a shortcut for within a node: two-sided,
 * to all, one-sided, and a shared window. Ends with 1 when any byte is wrong. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

static const int sizes[] = {1 << 20, 16 << 20};

static void fill(unsigned char *data, int bytes, int seed)
{
    for (int i = 0; i < bytes; i++)
        data[i] = (unsigned char)(i * 7 + i / 4096 + seed * 31);
}

static int wrong(const unsigned char *data, int bytes, int seed)
{
    for (int i = 0; i < bytes; i++)
        if (data[i] != (unsigned char)(i * 7 + i / 4096 + seed * 31))
            return 1;
    return 0;
}

int main(int argc, char **argv)
{
    int rank, size, bad = 0;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    int after = (rank + 1) % size, before = (rank + size - 1) % size;
    for (unsigned s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        int bytes = sizes[s];
        unsigned char *given = malloc(bytes), *got = calloc(1, bytes), *memory;
        MPI_Win window;

        fill(given, bytes, rank);
        MPI_Sendrecv(given, bytes, MPI_BYTE, after, 1, got, bytes, MPI_BYTE, before, 1,
                     MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        bad += wrong(got, bytes, before);

        fill(got, bytes, 99);
        MPI_Bcast(rank == 0 ? given : got, bytes, MPI_BYTE, 0, MPI_COMM_WORLD);
        bad += rank ? wrong(got, bytes, 0) : 0;

        int part = bytes / size;
        for (int r = 0; r < size; r++)
            fill(given + r * part, part, rank * size + r);
        MPI_Alltoall(given, part, MPI_BYTE, got, part, MPI_BYTE, MPI_COMM_WORLD);
        for (int r = 0; r < size; r++)
            bad += wrong(got + r * part, part, r * size + rank);

        MPI_Win_allocate(bytes, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &memory, &window);
        fill(given, bytes, rank + 5);
        MPI_Win_fence(0, window);
        MPI_Put(given, bytes, MPI_BYTE, after, 0, bytes, MPI_BYTE, window);
        MPI_Win_fence(0, window);
        bad += wrong(memory, bytes, before + 5);
        MPI_Win_free(&window);

        MPI_Win_create(got, bytes, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &window);
        MPI_Win_fence(0, window);
        MPI_Put(given, bytes, MPI_BYTE, after, 0, bytes, MPI_BYTE, window);
        MPI_Win_fence(0, window);
        bad += wrong(got, bytes, before + 5);
        MPI_Win_free(&window);
        free(given);
        free(got);
    }
    printf("rank %d: %d wrong\n", rank, bad);
    MPI_Finalize();
    return bad != 0;
}
