/* Allreduce of float32 by the MPI and by fairlead's core, in turns, in one run; and what memory allows.
 *
 * Prints `SIDE BYTES SECONDS` for each round: the median over a round's repetitions, on rank 0. `ours` is of tensors
 * anywhere, `shared` of tensors in fairlead_comm_alloc's memory, summed in place. `bound` is the least that two processes
 * can do with buffers that both see: each adds half of them, in place.
 *
 *     comm_sweep ROUNDS
 */
#include <fairlead_comm.h>
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { MOST = 200 };
static const size_t SIZES[] = {4, 64, 1024, 8192, 65536, 262144, 1048576, 2376704, 13107200, 102495232, 268435456};

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, int n)
{
    qsort(values, (size_t)n, sizeof *values, by_value);
    return values[n / 2];
}

static void must(int code)
{
    if (code) {
        fprintf(stderr, "comm_sweep: %s\n", fairlead_comm_error());
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
}

int main(int argc, char **argv)
{
    setvbuf(stdout, NULL, _IOLBF, 0);
    int provided, rank, size, rounds = argc > 1 ? atoi(argv[1]) : 5;
    fairlead_team *team;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    must(fairlead_comm_init());
    must(fairlead_comm_team(1, &team));
    const size_t largest = SIZES[sizeof SIZES / sizeof *SIZES - 1];
    float *in = malloc(largest), *out = malloc(largest);
    /* Memory that both see: one mapping a rank, not at a distance of a power of two, which caches do not bear. */
    float *both[2];
    MPI_Win win;
    MPI_Win_allocate_shared((MPI_Aint)(largest + 17 * 4096), 4, MPI_INFO_NULL, MPI_COMM_WORLD, &both[0], &win);
    for (int i = 0; i < 2; i++) {
        MPI_Aint bytes;
        int unit;
        MPI_Win_shared_query(win, size > 1 ? i : 0, &bytes, &unit, &both[i]);
    }
    void *memory = NULL;
    must(fairlead_comm_alloc(largest, &memory));
    memset(in, 0, largest);
    memset(out, 0, largest);
    memset(both[rank % 2], 0, largest);
    for (int round = -1; round < rounds; round++) /* the first is warm-up */
        for (size_t s = 0; s < sizeof SIZES / sizeof *SIZES; s++) {
            const size_t bytes = SIZES[s], n = bytes / 4;
            const int repeats = bytes <= 65536 ? MOST : bytes <= (4 << 20) ? 30 : 5;
            const int inner = bytes <= 8192 ? 10 : 1;
            double mpi[MOST], ours[MOST], shared[MOST], bound[MOST], begun;
            for (int r = 0; r < repeats; r++) {
                MPI_Barrier(MPI_COMM_WORLD);
                begun = MPI_Wtime();
                for (int i = 0; i < inner; i++)
                    MPI_Allreduce(in, out, (int)n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
                mpi[r] = (MPI_Wtime() - begun) / inner;
                MPI_Barrier(MPI_COMM_WORLD);
                fairlead_tensor tensor = {in, out, n, FAIRLEAD_FLOAT32, 0, 0};
                begun = MPI_Wtime();
                for (int i = 0; i < inner; i++)
                    must(fairlead_comm_aggregate(team, &tensor, 1, FAIRLEAD_SUM));
                ours[r] = (MPI_Wtime() - begun) / inner;
                MPI_Barrier(MPI_COMM_WORLD);
                fairlead_tensor in_place = {memory, memory, n, FAIRLEAD_FLOAT32, 0, 0};
                begun = MPI_Wtime();
                for (int i = 0; i < inner; i++)
                    must(fairlead_comm_aggregate(team, &in_place, 1, FAIRLEAD_SUM));
                shared[r] = (MPI_Wtime() - begun) / inner;
                MPI_Barrier(MPI_COMM_WORLD);
                begun = MPI_Wtime();
                for (size_t i = n * (size_t)rank / (size_t)size, end = n * (size_t)(rank + 1) / (size_t)size; i < end; i++)
                    both[0][i] = both[1][i] = both[0][i] + both[1][i];
                MPI_Barrier(MPI_COMM_WORLD);
                bound[r] = MPI_Wtime() - begun;
            }
            if (rank == 0 && round >= 0)
                printf("mpi %zu %.9f\nours %zu %.9f\nshared %zu %.9f\nbound %zu %.9f\n", bytes, median(mpi, repeats),
                       bytes, median(ours, repeats), bytes, median(shared, repeats), bytes, median(bound, repeats));
        }
    fflush(stdout);
    must(fairlead_comm_finalize());
    MPI_Win_free(&win);
    MPI_Finalize();
    return 0;
}
