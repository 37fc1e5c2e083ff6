/* A home-made MPI of a few functions, whose handles are like no other's: a strange one ends the process. */
#include <stdio.h>
#include <stdlib.h>

#ifndef RANK
#define RANK "TINY_RANK"
#define SIZE "TINY_SIZE"
#endif

struct tiny_comm { int canary, rank, size; };
struct tiny_comm tiny_world = {4711, 0, 1}, tiny_self = {4711, 0, 1};

int MPI_Init(int *argc, char ***argv)
{
    (void)argc, (void)argv;
    if (getenv(RANK)) {
        tiny_world.rank = atoi(getenv(RANK));
        tiny_world.size = atoi(getenv(SIZE));
    }
    return 0;
}

static struct tiny_comm *checked(struct tiny_comm *comm)
{
    if (comm != &tiny_world && comm != &tiny_self) {
        fputs("tiny: a handle of another MPI\n", stderr);
        abort();
    }
    return comm;
}

int MPI_Comm_rank(struct tiny_comm *comm, int *rank) { return *rank = checked(comm)->rank, 0; }
int MPI_Comm_size(struct tiny_comm *comm, int *size) { return *size = checked(comm)->size, 0; }
int PMPI_Comm_rank(struct tiny_comm *comm, int *rank) { return MPI_Comm_rank(comm, rank); }
int MPI_Finalize(void) { return 0; }
