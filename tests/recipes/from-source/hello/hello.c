#include <mpi.h>
#include <stdio.h>

const char *greeting(void);

int main(int argc, char **argv) {
    int rank, size;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    printf("%s from rank %d of %d, built in %s\n", greeting(), rank, size, __FILE__);
    MPI_Finalize();
    return 0;
}
