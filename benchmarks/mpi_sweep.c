/* Ping-pong and allreduce times by message size, for benchmarks/swap.py.
 *
 * Prints one line a size on rank 0: operation, bytes, tenth percentile of a repetition in seconds.
 * The tenth percentile, since on a shared machine the upper ones measure the neighbours.
 */
#include <mpi.h>
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

static void sweep(const char *name, double (*once)(char *, char *, int, int), char *send,
                  char *receive, int rank)
{
    for (int bytes = 8; bytes <= LARGEST; bytes *= 8) {
        int batch = bytes <= 4096 ? 50 : 1; /* short messages are timed in batches of 50 */
        int count = bytes <= 4096 ? 200 : bytes <= 262144 ? 200 : 25;
        double *seconds = malloc(count * sizeof *seconds);
        for (int i = -count / 5; i < count; i++) {
            double sum = 0;
            MPI_Barrier(MPI_COMM_WORLD);
            for (int k = 0; k < batch; k++)
                sum += once(send, receive, bytes, rank);
            if (i >= 0)
                seconds[i] = sum / batch;
        }
        qsort(seconds, count, sizeof *seconds, by_value);
        if (rank == 0)
            printf("%s %d %.9g\n", name, bytes, seconds[count / 10]);
        free(seconds);
    }
}

int main(int argc, char **argv)
{
    int rank;
    char *send = calloc(LARGEST, 1), *receive = calloc(LARGEST, 1);
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    sweep("pingpong", pingpong, send, receive, rank);
    sweep("allreduce", allreduce, send, receive, rank);
    MPI_Finalize();
    return 0;
}
