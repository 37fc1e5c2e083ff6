/* Sums a fixed pattern over all ranks, in four sizes; every rank prints the MPI it runs on and a
 * hash of each result's bits (FNV-1a), so that two runs can be compared to the last bit. */
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t hash(const void *data, size_t bytes)
{
    uint64_t value = 1469598103934665603ull;
    for (size_t i = 0; i < bytes; i++)
        value = (value ^ ((const unsigned char *)data)[i]) * 1099511628211ull;
    return value;
}

int main(int argc, char **argv)
{
    static const int counts[] = {1, 1000, 131072, 2097152}; /* 8 B to 16 MiB */
    char version[MPI_MAX_LIBRARY_VERSION_STRING];
    int rank, size, length;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Get_library_version(version, &length);
    version[strcspn(version, "\n")] = 0;
    char line[8192];
    int at = snprintf(line, sizeof line, "rank %d of %d on %.200s:", rank, size, version);
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
        int n = counts[c];
        double *given = malloc(n * sizeof *given), *sum = malloc(n * sizeof *sum);
        for (int i = 0; i < n; i++)
            given[i] = 1.0 / (3.0 + i % 977) * (rank + 1) + 1e-9 * (i % 31);
        MPI_Allreduce(given, sum, n, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
        at += snprintf(line + at, sizeof line - at, " %016llx",
                       (unsigned long long)hash(sum, n * sizeof *sum));
        free(given);
        free(sum);
    }
    printf("%s\n", line);
    MPI_Finalize();
    return 0;
}
