/* Ping-pong and allreduce times by message size, for benchmarks/bars/swap.py.
 *
 * Prints one line a size on rank 0, at once: operation, bytes, tenth percentile of a repetition in
 * seconds, and how far apart the two cores were before and after it, in seconds: the round trip of a
 * cache line that the ranks share, which no MPI takes part in. Ranks on one core are refused. The tenth percentile, since on a shared
 * machine the upper ones measure the neighbours; the distance, since a hypervisor puts two virtual
 * cores now on one physical core and now on two, and short messages are then 2.5 times as slow.
 */
#define _GNU_SOURCE
#include <mpi.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LARGEST = 16 << 20 };

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double pingpong(char *send, char *receive, int bytes, int rank)
{
    double start = MPI_Wtime();
    if (rank == 0) {
        MPI_Send(send, bytes, MPI_BYTE, 1, 1, MPI_COMM_WORLD);
        MPI_Recv(receive, bytes, MPI_BYTE, 1, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    } else if (rank == 1) {
        MPI_Recv(receive, bytes, MPI_BYTE, 0, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        MPI_Send(send, bytes, MPI_BYTE, 0, 1, MPI_COMM_WORLD);
    }
    return (MPI_Wtime() - start) / 2;
}

static double allreduce(char *send, char *receive, int bytes, int rank)
{
    (void)rank;
    double start = MPI_Wtime();
    MPI_Allreduce(send, receive, bytes / 4, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    return MPI_Wtime() - start;
}

/* Ranks that the launcher has left on one core hand it to each other: without that, each turn costs the
 * other's time slice, and a sweep a quarter of an hour. */
static void await(atomic_int *line, int turn)
{
    for (int spins = 0; atomic_load_explicit(line, memory_order_acquire) != turn; spins++)
        if (spins > 10000)
            sched_yield();
}

/* Seconds for a cache line from rank 0's core to rank 1's and back. */
static double distance(atomic_int *line, int rank)
{
    enum { ROUNDS = 2000 };
    MPI_Barrier(MPI_COMM_WORLD);
    int from = atomic_load(line);
    MPI_Barrier(MPI_COMM_WORLD);
    double start = MPI_Wtime();
    for (int i = 0; i < ROUNDS; i++) {
        int turn = from + 2 * i + rank;
        await(line, turn);
        atomic_store_explicit(line, turn + 1, memory_order_release);
    }
    if (rank == 0)
        await(line, from + 2 * ROUNDS);
    return (MPI_Wtime() - start) / ROUNDS;
}

/* The launcher was to bind them. */
static void part(int rank)
{
    int core = sched_getcpu(), cores[2];
    MPI_Allgather(&core, 1, MPI_INT, cores, 1, MPI_INT, MPI_COMM_WORLD);
    if (cores[0] != cores[1])
        return;
    if (rank == 0)
        fprintf(stderr, "mpi_sweep: both ranks are on core %d: the launcher has not bound them\n", core);
    MPI_Finalize(); /* after MPI_Abort the launcher may end before it has passed the line on */
    exit(1);
}

static void sweep(const char *name, double (*once)(char *, char *, int, int), char *send,
                  char *receive, int rank, atomic_int *line)
{
    for (int bytes = 8; bytes <= LARGEST; bytes *= 8) {
        int batch = bytes <= 4096 ? 50 : 1; /* short messages are timed in batches of 50 */
        int count = bytes <= 4096 ? 200 : bytes <= 262144 ? 200 : 25;
        double *seconds = malloc(count * sizeof *seconds);
        part(rank);
        double before = distance(line, rank);
        for (int i = -count / 5; i < count; i++) {
            double sum = 0;
            MPI_Barrier(MPI_COMM_WORLD);
            for (int k = 0; k < batch; k++)
                sum += once(send, receive, bytes, rank);
            if (i >= 0)
                seconds[i] = sum / batch;
        }
        qsort(seconds, count, sizeof *seconds, by_value);
        double after = distance(line, rank);
        if (rank == 0)
            printf("%s %d %.9g %.3g %.3g\n", name, bytes, seconds[count / 10], before, after);
        free(seconds);
    }
}

int main(int argc, char **argv)
{
    int rank;
    char *send = calloc(LARGEST, 1), *receive = calloc(LARGEST, 1);
    setvbuf(stdout, NULL, _IOLBF, 0); /* a sweep that stands still shows where */
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Win window;
    MPI_Aint room;
    int unit;
    atomic_int *line;
    MPI_Win_allocate_shared(rank ? 0 : 4096, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &line, &window);
    MPI_Win_shared_query(window, 0, &room, &unit, &line);
    if (rank == 0)
        atomic_store(line, 0);
    sweep("pingpong", pingpong, send, receive, rank, line);
    sweep("allreduce", allreduce, send, receive, rank, line);
    MPI_Win_free(&window);
    MPI_Finalize();
    return 0;
}
