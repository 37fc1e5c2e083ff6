/* Asks the home-made MPI of tiny_mpi.c for its world; `self`: for itself first; `silent`: for nothing. */
#include <stdio.h>
#include <string.h>

extern struct tiny_comm tiny_world, tiny_self;
int MPI_Init(int *, char ***), MPI_Finalize(void);
int MPI_Comm_rank(struct tiny_comm *, int *), MPI_Comm_size(struct tiny_comm *, int *);

int main(int argc, char **argv)
{
    const char *how = argc > 1 ? argv[1] : "";
    int rank = -1, size = -1;
    MPI_Init(&argc, &argv);
    if (!strcmp(how, "self")) {
        MPI_Comm_rank(&tiny_self, &rank);
        MPI_Comm_size(&tiny_self, &size);
    }
    if (strcmp(how, "silent")) {
        MPI_Comm_rank(&tiny_world, &rank);
        MPI_Comm_size(&tiny_world, &size);
    }
    printf("rank %d of %d\n", rank, size);
    return MPI_Finalize();
}
