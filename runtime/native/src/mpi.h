// The MPI that this process has loaded: its functions, and the handles of its ABI.
//
// Handles are ints in MPICH's ABI and pointers in the others; both fit a long, and are passed as one. Sources:
// mpi.h of MPICH 5.0.2, Open MPI's mpi.h, MPI-5.0 chapter 20 (the standard ABI) and mpi_abi.h.
#pragma once

#include "platform.h"

namespace fairlead {

struct Mpi {
    enum Abi { MPICH, OPENMPI, STANDARD };
    enum Threads { SINGLE, FUNNELED, SERIALIZED, MULTIPLE };  // as MPI_THREAD_...
    using Handle = long;

    int (*Get_library_version)(char *, int *);
    int (*Init_thread)(int *, char ***, int, int *);
    int (*Initialized)(int *);
    int (*Finalized)(int *);
    int (*Finalize)();
    int (*Query_thread)(int *);
    int (*Is_thread_main)(int *);
    int (*Comm_dup)(Handle, Handle *);
    int (*Comm_split)(Handle, int, int, Handle *);
    int (*Comm_split_type)(Handle, int, int, Handle, Handle *);
    int (*Comm_rank)(Handle, int *);
    int (*Comm_size)(Handle, int *);
    int (*Comm_free)(Handle *);
    int (*Comm_set_errhandler)(Handle, Handle);
    int (*Allreduce)(const void *, void *, int, Handle, Handle, Handle);
    int (*Iallreduce)(const void *, void *, int, Handle, Handle, Handle, Handle *);
    int (*Bcast)(void *, int, Handle, int, Handle);
    int (*Ibcast)(void *, int, Handle, int, Handle, Handle *);
    int (*Allgather)(const void *, int, Handle, void *, int, Handle, Handle);
    int (*Iallgather)(const void *, int, Handle, void *, int, Handle, Handle, Handle *);
    int (*Test)(Handle *, int *, void *);
    int (*Isend)(const void *, int, Handle, int, int, Handle, Handle *);
    int (*Irecv)(void *, int, Handle, int, int, Handle, Handle *);
    int (*Issend)(const void *, int, Handle, int, int, Handle, Handle *);
    int (*Improbe)(int, int, Handle, int *, Handle *, void *);
    int (*Imrecv)(void *, int, Handle, Handle *, Handle *);
    int (*Error_string)(int, char *, int *);
    int (*Op_create)(void (*)(void *, void *, int *, void *), int, Handle *);
    int (*Comm_create_keyval)(int (*)(Handle, int, void *, void *, void *, int *), int (*)(Handle, int, void *, void *), int *, void *);
    int (*Comm_set_attr)(Handle, int, void *);

    Abi abi;
    char library[600];
    Threads threads;  // which threads may call
    bool ours;      // init started it
    Handle world, self, sum, max, min, f32, f64, i16, i32, i64, byte, errors_return, info_null, request_null;
    Handle sum_f16, sum_bf16;  // of i16, whose bits are halves
    int shared_type, any_source;
    void *in_place, *no_status;
    pthread_mutex_t alone;  // below MULTIPLE: one thread at a time

    bool multiple() const { return threads == MULTIPLE; }
    const char *level() const { return threads == MULTIPLE ? "multiple" : threads == SERIALIZED ? "serialized" : threads == FUNNELED ? "funneled" : "single"; }
    // Returns 0 if this thread may call MPI at all.
    int here(const char *call, Error *error) const;
    const char *name() const { return abi == MPICH ? "mpich" : abi == OPENMPI ? "openmpi" : "mpi-abi"; }

    // Finds the MPI of this process, or loads one.
    int find(Error *error);
    // Starts it unless it runs.
    int start(Error *error);
    // Has `leaves` called when the program calls MPI_Finalize.
    int at_finalize(int (*leaves)(Handle, int, void *, void *), Error *error);
    // Returns 0 if a call succeeded.
    int check(int code, const char *call, Error *error) const;
};

// What lets MPI grant MPI_THREAD_MULTIPLE, in words.
#define FAIRLEAD_ASK_FOR_THREADS                                                                                      \
    "for MPI_THREAD_MULTIPLE ask for it where MPI is started (MPI_Init_thread; mpi4py: "                             \
    "MPI4PY_RC_THREAD_LEVEL=multiple), and set MPICH_MAX_THREAD_SAFETY=multiple with Cray MPICH"

// This thread's turn to call MPI, if only one thread at a time may. What is called meanwhile does not wait for other
// ranks, or only for ranks whose thread is known to be in the same call: no rank waits for a turn forever.
class MpiTurn {
  public:
    explicit MpiTurn(Mpi &mpi) : mpi_(mpi) {
        if (!mpi_.multiple()) pthread_mutex_lock(&mpi_.alone);
    }
    ~MpiTurn() {
        if (!mpi_.multiple()) pthread_mutex_unlock(&mpi_.alone);
    }
    MpiTurn(const MpiTurn &) = delete;

  private:
    Mpi &mpi_;
};

}  // namespace fairlead
