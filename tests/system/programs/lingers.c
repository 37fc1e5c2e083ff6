/* Starts the MPI that it is linked to, and runs for a while: long enough to be looked at. */
#include <mpi.h>
#include <stdio.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    int size;
    MPI_Init(&argc, &argv);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    printf("lingers %d\n", size);
    fflush(stdout);
    sleep(4);
    return MPI_Finalize();
}
