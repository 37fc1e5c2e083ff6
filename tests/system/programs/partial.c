/* An MPI whose allreduce sometimes ends too early: on rank 1 the last value of a long vector never comes.
   Preloaded; for float32 only. Handles are passed on as they come, whatever they are. Both forms of the call, with
   counts of int and of MPI_Count. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>

typedef int allreduce(const void *, void *, long, void *, void *, void *);

static int partly(const char *name, const void *give, void *take, long count, void *type, void *op, void *comm)
{
    /* The library that is in the process already, though mpi4py keeps its names to itself. */
    void *mpi = dlopen("libmpi.so.12", RTLD_LAZY | RTLD_NOLOAD);
    if (!mpi)
        mpi = dlopen("libmpi_abi.so.1", RTLD_LAZY | RTLD_NOLOAD);
    const char *rank = getenv("PMI_RANK");
    int odd = count >= 1024 && rank && atoi(rank) == 1;
    float *last = (float *)take + count - 1, before = odd ? *last : 0;
    int code = ((allreduce *)dlsym(mpi, name))(give, take, count, type, op, comm);
    if (odd)
        *last = before;
    return code;
}

int MPI_Allreduce(const void *give, void *take, int count, void *type, void *op, void *comm)
{
    return partly("PMPI_Allreduce", give, take, count, type, op, comm);
}

int MPI_Allreduce_c(const void *give, void *take, long count, void *type, void *op, void *comm)
{
    return partly("PMPI_Allreduce_c", give, take, count, type, op, comm);
}
