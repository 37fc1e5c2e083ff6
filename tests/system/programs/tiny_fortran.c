/* Fortran's interface to tiny_mpi.c, under each name that compilers give it; with that inside (-DALONE), an MPI for Fortran. */
#ifdef ALONE
#define MPI_Init tiny_init
#define MPI_Finalize tiny_finalize
#define MPI_Comm_rank tiny_rank
#define MPI_Comm_size tiny_size
#define PMPI_Comm_rank tiny_prank
#include "tiny_mpi.c"
#else
extern struct tiny_comm tiny_world, tiny_self;
int MPI_Init(int *, char ***), MPI_Finalize(void);
int MPI_Comm_rank(struct tiny_comm *, int *), MPI_Comm_size(struct tiny_comm *, int *);
#endif

static struct tiny_comm *comm_of(const int *handle) { return *handle ? &tiny_self : &tiny_world; }
static void start(int *error) { *error = MPI_Init(0, 0); }
static void end(int *error) { *error = MPI_Finalize(); }
static void rank(const int *comm, int *value, int *error) { *error = 0, MPI_Comm_rank(comm_of(comm), value); }
static void size(const int *comm, int *value, int *error) { *error = 0, MPI_Comm_size(comm_of(comm), value); }

#define NAME(name, of) extern __typeof(of) name __attribute__((alias(#of)));
#define NAMES(lower, upper, of) NAME(lower, of) NAME(lower##_, of) NAME(lower##__, of) NAME(upper, of)
NAMES(mpi_init, MPI_INIT, start)
NAMES(mpi_finalize, MPI_FINALIZE, end)
NAMES(mpi_comm_rank, MPI_COMM_RANK, rank)
NAMES(mpi_comm_size, MPI_COMM_SIZE, size)
