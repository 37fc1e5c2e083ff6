/* fairlead's collective core: data-parallel training over any MPI, from one library.
 *
 * The library links no MPI. It binds at run time to the one that the process has loaded (MPICH's ABI,
 * Open MPI's, or the MPI-5 standard's), so one binary serves all three. Ranks of a node reduce through
 * shared memory; between nodes they use that MPI.
 *
 *     fairlead_comm_init();
 *     fairlead_team *team;
 *     fairlead_comm_team(1, &team);
 *     fairlead_tensor t = {.in = gradient, .out = gradient, .count = n, .dtype = FAIRLEAD_FLOAT32};
 *     fairlead_comm_aggregate(team, &t, 1, FAIRLEAD_MEAN);
 *     fairlead_comm_finalize();
 *
 * Every function returns FAIRLEAD_OK or another fairlead_status; fairlead_comm_error() then says which
 * rank, host and tensor, and why. "Collective" means that every rank calls it, in the same order.
 * A process may call from several threads, each with teams of its own.
 *
 * The calls and their meaning follow the Cray PE ML Plugin (init, team, broadcast, gradients, average,
 * check_buffers_match, barrier, finalize).
 */
#ifndef FAIRLEAD_COMM_H
#define FAIRLEAD_COMM_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define FAIRLEAD_COMM_VERSION 1 /* of this interface */

typedef enum {
    FAIRLEAD_OK = 0,
    FAIRLEAD_BAD_CALL = 1,   /* an argument, or a call at the wrong time; nothing was communicated */
    FAIRLEAD_NO_MPI = 2,     /* no MPI is loaded, or it cannot be started */
    FAIRLEAD_MPI_FAILED = 3, /* MPI returned an error */
    FAIRLEAD_DIFFER = 4,     /* ranks disagree on the call or on its tensors; on every rank */
    FAIRLEAD_PEER_LOST = 5,  /* a rank has ended without finalize, or after a failure */
    FAIRLEAD_TIMEOUT = 6,    /* FAIRLEAD_COMM_TIMEOUT_S passed in one call */
    FAIRLEAD_NO_MEMORY = 7,
    FAIRLEAD_INTERRUPTED = 8, /* the function of fairlead_comm_while_waiting returned 0 */
    FAIRLEAD_NONFINITE = 9    /* FAIRLEAD_COMM_NONFINITE=stop, and a rank passed NaN or infinity; on every rank */
} fairlead_status;

typedef enum {
    FAIRLEAD_FLOAT32 = 0,
    FAIRLEAD_FLOAT64 = 1,
    FAIRLEAD_FLOAT16 = 2,  /* IEEE 754 binary16; summed in float32, rounded once */
    FAIRLEAD_BFLOAT16 = 3, /* upper half of a float32; summed in float32, rounded once */
    FAIRLEAD_INT32 = 4,    /* sum only */
    FAIRLEAD_INT64 = 5,    /* sum only */
    FAIRLEAD_BYTES = 6     /* broadcast and match only */
} fairlead_dtype;

typedef enum {
    FAIRLEAD_SUM = 0,
    FAIRLEAD_MEAN = 1,
    FAIRLEAD_ANY = 2 /* with | : accept NaN and infinity; otherwise the rank that passes one is named */
} fairlead_operation;

/* Contiguous elements, at any address. `in` and `out` are the same place or do not overlap. */
typedef struct {
    const void *in;
    void *out;
    uint64_t count;
    int32_t dtype;    /* a fairlead_dtype */
    int32_t shape;    /* a number that identifies the shape; the same on all ranks. 0 for none */
    const char *name; /* for messages; NULL: its index */
} fairlead_tensor;

typedef struct fairlead_team fairlead_team;

/* What a team has done on this rank since it was made. Times are wall clock. */
typedef struct {
    uint64_t calls;
    uint64_t bytes;       /* of tensors passed */
    double wait_s;        /* until every rank had come to the same call */
    double move_s;        /* the rest of the call */
    double blocked_s;     /* spent by the caller in the call or in fairlead_comm_wait */
    uint64_t stalls;      /* waits longer than FAIRLEAD_COMM_STALL_S */
    uint64_t aggregates;  /* of `calls`, those of fairlead_comm_aggregate and fairlead_comm_start */
} fairlead_stats;

/* How the ranks are laid out, and what they communicate through. */
typedef struct {
    int32_t rank, size;
    int32_t local_rank, local_size; /* among the ranks that share this node's memory */
    int32_t nodes;
    int32_t shared_memory; /* 1: ranks of a node reduce through shared memory */
    const char *mpi;       /* ABI: "mpich", "openmpi" or "mpi-abi" */
    const char *library;   /* path of the MPI */
    const char *kernels;   /* "avx512", "avx2", "neon" or "generic" */
    const char *why_not;   /* why shared_memory is 0; "" */
    const char *host;
} fairlead_layout;

/* The difference that fairlead_comm_match found. */
typedef struct {
    int32_t matches;  /* 1: every rank holds the same bytes */
    int32_t rank;     /* the lowest rank whose tensor is not rank 0's; -1 */
    int64_t tensor;   /* index of the first tensor that differs; -1 */
} fairlead_match;

/* Starts MPI with MPI_THREAD_MULTIPLE unless it runs already. Collective. Further calls do nothing. */
int fairlead_comm_init(void);

/* Ends MPI if fairlead_comm_init started it. Collective; waits for started calls. Before init it does
 * nothing; a second call, or one while another thread stays in a call of a team for 5 s, returns
 * FAIRLEAD_BAD_CALL. */
int fairlead_comm_finalize(void);

/* After init; -1 before. */
int fairlead_comm_rank(void);
int fairlead_comm_size(void);
int fairlead_comm_local_rank(void);
int fairlead_comm_local_size(void);
int fairlead_comm_layout(fairlead_layout *layout);
/* Whether this rank shares its processors with more ranks than there are processors: it then gives them up
 * while it waits, which makes small calls slower. -1 before init. */
int fairlead_comm_crowded(void);
/* The level that MPI grants: "multiple", "serialized", "funneled" or "single"; "" before init. Below
 * "multiple" no thread of the core's own calls MPI: between nodes, started calls move while their thread is
 * in a call that waits for other ranks, or in fairlead_comm_done, and the threads of a team work one after
 * another. As with MPI itself, the program then makes no MPI call while another thread is in a call of this
 * library; and below "serialized" only the thread that started MPI makes calls, other threads get
 * FAIRLEAD_BAD_CALL. Ranks of one node that share memory need no MPI: there only init, team and finalize
 * follow these rules. */
const char *fairlead_comm_threads(void);

/* Which algorithm sums between nodes, by size, and the measured figures that it was chosen by; "" on one node. */
const char *fairlead_comm_network(void);

/* Why the last call of this thread failed; "" after success. */
const char *fairlead_comm_error(void);

/* A team: `threads` helper threads with communicators of their own. Aggregations of different teams
 * overlap. Collective. Teams are freed by fairlead_comm_finalize. */
int fairlead_comm_team(int threads, fairlead_team **team);
/* What messages and the timeline call this team, up to 63 bytes; without it, "team N", as the teams of this
 * process were made, from 0. Not collective; before the team's first call, and the same on all ranks. */
int fairlead_comm_team_name(fairlead_team *team, const char *name);

/* Sum or mean of each tensor over all ranks, the same bits on every rank. Collective over the team; NULL
 * puts it in one order with broadcast, barrier and the other calls without a team, so that a rank that skips
 * one is named. Elements are added in the order of ranks within a node; between nodes in the order of the
 * MPI. With `| FAIRLEAD_FLOAT16 << 8` or `| FAIRLEAD_BFLOAT16 << 8` float32 is sent in that form, at half
 * the bytes: each rank's part and the result are rounded to it. */
int fairlead_comm_aggregate(fairlead_team *team, const fairlead_tensor *tensors, uint64_t count, int operation);

/* The same in the background. `in` must not change and `out` not be read before fairlead_comm_wait. A
 * team runs its calls in the order in which they were started. */
int fairlead_comm_start(fairlead_team *team, const fairlead_tensor *tensors, uint64_t count, int operation,
                        uint64_t *ticket);
/* Whether it is done (1) or not (0), without waiting unless fairlead_comm_threads says so;
 * fairlead_comm_wait returns its error. */
int fairlead_comm_done(fairlead_team *team, uint64_t ticket);
int fairlead_comm_wait(fairlead_team *team, uint64_t ticket);

/* Rank `root`'s elements, on every rank, bit for bit. */
int fairlead_comm_broadcast(const fairlead_tensor *tensors, uint64_t count, int root);
/* The mean of each value over all ranks; for metrics. */
int fairlead_comm_average(double *values, uint64_t count);
int fairlead_comm_barrier(void);
/* `bytes` bytes of each rank, in the order of ranks, into `all` (size * bytes), on every rank; for
 * small amounts. */
int fairlead_comm_gather(const void *mine, uint64_t bytes, void *all);
/* Whether every rank holds the same bytes in `in`. */
int fairlead_comm_match(const fairlead_tensor *tensors, uint64_t count, fairlead_match *match);

/* Memory for tensors, of zeros, that starts with a page. Where all tensors of an aggregation, `in` and `out`, lie in
 * such memory, at the same offsets on all ranks, the ranks of a node sum them in place: without copies, in about the
 * time that memory needs. Collective. `*at`: NULL; or `bytes` of whole pages of the caller's, mapped by it and written
 * by no other thread meanwhile, whose pages are then replaced, with their contents. Memory that cannot be shared is
 * ordinary, which a line on stderr reports. A fork shares it with its parent. */
int fairlead_comm_alloc(uint64_t bytes, void **at);
/* Not collective; no call may use it any more. Memory of the caller's stays mapped. */
int fairlead_comm_free(void *at);

/* A function that this thread calls about ten times a second while it waits in a call. If it returns 0 the
 * call ends with FAIRLEAD_INTERRUPTED, and its team is unusable. For languages whose signal handlers run
 * between calls only. NULL for none. */
int fairlead_comm_while_waiting(int (*go_on)(void));

/* What the first calls with tensors of a size have shown to be fastest, a line for each size: within a node, chunk size
 * and kind of stores. Up to `room` bytes with the 0 at the end. `team` NULL: the calls without a team. */
int fairlead_comm_explain(fairlead_team *team, char *text, uint64_t room);

/* `team` NULL: the calls without a team. */
int fairlead_comm_stats(fairlead_team *team, fairlead_stats *stats);

#ifdef __cplusplus
}
#endif
#endif
