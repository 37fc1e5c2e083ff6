/* MPI by what is linked, or, with OPENED, by a library that is opened and searched by name, as Julia does. */
#define _GNU_SOURCE
#include <mpi.h>
#include "report.h"
#ifdef OPENED
#include <dlfcn.h>
static void *library;
#define CALL(name) ((__typeof__(&name))dlsym(library, #name))
#ifdef OPEN_MPI
#undef MPI_COMM_WORLD
#undef MPI_DOUBLE
#undef MPI_SUM
#define MPI_COMM_WORLD ((MPI_Comm)dlsym(library, "ompi_mpi_comm_world"))
#define MPI_DOUBLE ((MPI_Datatype)dlsym(library, "ompi_mpi_double"))
#define MPI_SUM ((MPI_Op)dlsym(library, "ompi_mpi_op_sum"))
#endif
#else
#define CALL(name) name
#endif
#ifdef PROFILED
/* A tool that is linked into the program. */
int MPI_Init(int *argc, char ***argv) { return PMPI_Init(argc, argv); }
#endif
#ifdef SHMEM
void shmem_init(void);
void shmem_finalize(void);
#endif

int main(int argc, char **argv)
{
    char version[MPI_MAX_LIBRARY_VERSION_STRING * 2];
    int rank, size, length;
    double sum = 0, given;
#ifdef OPENED
    library = dlopen(OPENED, RTLD_LAZY | HOW);
    if (!library) {
        puts(dlerror());
        return 3;
    }
#endif
#ifdef SHMEM
    shmem_init();
#else
    CALL(MPI_Init)(&argc, &argv);
#endif
    CALL(MPI_Comm_rank)(MPI_COMM_WORLD, &rank);
    CALL(MPI_Comm_size)(MPI_COMM_WORLD, &size);
    CALL(MPI_Get_library_version)(version, &length);
    given = rank + 1;
    CALL(MPI_Allreduce)(&given, &sum, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    report(rank, size, sum, version);
#ifdef SHMEM
    shmem_finalize();
#else
    CALL(MPI_Finalize)();
#endif
    return 0;
}
