/* What a Fortran program calls: the trailing underscore is gfortran's. */
#include <stdio.h>

extern void mpi_init_(int *), mpi_comm_size_(const int *, int *, int *), mpi_finalize_(int *);

int main(void)
{
    const int world = 0x44000000; /* MPI_COMM_WORLD in mpif.h of the MPICH ABI */
    int size, error;
    mpi_init_(&error);
    mpi_comm_size_(&world, &size, &error);
    printf("fortran %d\n", size);
    mpi_finalize_(&error);
    return error;
}
