/* mpi-ring [VERSION]: does MPI work here, from C?
 *
 * A message goes round all ranks and each adds to it; then a sum over all ranks. Rank 0 says which
 * library did it. With VERSION, the library must say that of itself. Exit code 0 when all is right.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <mpi.h>
#include <stdio.h>
#include <string.h>

enum { COUNT = 10000 };

static double passed[COUNT], given[COUNT], summed[COUNT];

/* Where the MPI that this process calls was loaded from. */
static const char *library(void)
{
    Dl_info info;
    void *init = dlsym(RTLD_DEFAULT, "MPI_Init");
    return init && dladdr(init, &info) ? info.dli_fname : "an unknown library";
}

/* Element i comes back to rank 0 as i, plus 1 from every other rank. */
static int ring(int rank, int size)
{
    int wrong = 0, left = (rank + size - 1) % size, right = (rank + 1) % size;
    for (int i = 0; i < COUNT; i++)
        passed[i] = i;
    if (rank == 0 && size > 1)
        MPI_Send(passed, COUNT, MPI_DOUBLE, right, 7, MPI_COMM_WORLD);
    if (size > 1)
        MPI_Recv(passed, COUNT, MPI_DOUBLE, left, 7, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    if (rank != 0) {
        for (int i = 0; i < COUNT; i++)
            passed[i] += 1;
        MPI_Send(passed, COUNT, MPI_DOUBLE, right, 7, MPI_COMM_WORLD);
    }
    for (int i = 0; i < COUNT; i++)
        wrong += passed[i] != i + (rank == 0 ? size - 1 : rank);
    return wrong;
}

static int allreduce(int rank, int size)
{
    int wrong = 0;
    for (int i = 0; i < COUNT; i++)
        given[i] = (double)i * (rank + 1);
    MPI_Allreduce(given, summed, COUNT, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    for (int i = 0; i < COUNT; i++)
        wrong += summed[i] != (double)i * size * (size + 1) / 2;
    return wrong;
}

int main(int argc, char **argv)
{
    char version[MPI_MAX_LIBRARY_VERSION_STRING];
    int rank, size, length, wrong, all;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Get_library_version(version, &length);
    wrong = ring(rank, size);
    wrong += allreduce(rank, size);
    if (argc > 1 && !strstr(version, argv[1])) {
        fprintf(stderr, "rank %d: this is not MPI %s: %s\n", rank, argv[1], version);
        wrong++;
    }
    MPI_Allreduce(&wrong, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    if (rank == 0)
        printf("%s: C program, ring and allreduce on %d rank(s), %s, %.*s\n",
               all ? "FAIL" : "ok", size, library(), (int)strcspn(version, "\n"), version);
    MPI_Finalize();
    return all != 0;
}
