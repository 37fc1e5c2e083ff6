/* A tool as people preload it: it counts a program's MPI_Init and passes it on through PMPI. */
#include <mpi.h>
#include <stdio.h>

int MPI_Init(int *argc, char ***argv)
{
    printf("traced\n");
    return PMPI_Init(argc, argv);
}
