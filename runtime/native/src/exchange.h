// What ranks of different nodes tell each other while they wait.
//
// Within a node a rank sees from the seats what the others wait for, and whether they live. Of other nodes it
// sees nothing: a reduction of MPI's is done or is not. So a rank that has waited for a while tells rank 0 where
// it stands, and rank 0, while it waits itself, finds out who waits for whom, who has not come, and tells all
// ranks where nobody can. Messages have a communicator of their own. Nobody waits for one: a rank has one on its
// way at a time, until rank 0 has taken it, and what comes in is looked for before it is received.
#pragma once

#include "mpi.h"

namespace fairlead {

struct World;

// Where a process stands. Lanes are numbered alike on every rank; calls from 1.
struct Standing {
    static constexpr int MOST_LANES = 256, MOST_WAITS = 8;
    struct At {
        uint32_t lane, kind;
        uint64_t call;
    };
    int32_t rank, lanes;
    uint32_t ended, waiting;     // has called finalize; how many of `waits` there are
    uint64_t blocked;            // as the seat's: what its one thread waits for
    At waits[MOST_WAITS];        // lanes whose agreement is waited for, by whichever thread
    uint64_t come[MOST_LANES];   // of each lane, the calls that it has come to or has started
    size_t size() const { return offsetof(Standing, come) + size_t(lanes) * sizeof *come; }
    uint64_t call_of(uint32_t lane) const { return int(lane) < lanes ? come[lane] : 0; }
};

class Exchange {
  public:
    // Collective over `from`; before it nothing below does anything.
    int open(Mpi &mpi, Mpi::Handle from, const World &world, Error *error);
    // Collective, after all ranks have agreed to end: takes what is still on its way.
    int close(Error *error);

    // While this rank has waited for `waited` seconds: tells where it stands, takes what others tell. An error
    // is what some rank has found out; it is the same on all.
    int look(double waited, Error *error);
    // What some rank has found out, if anything: an error. Waits for a thread of this process that is telling it.
    int said(Error *error);
    // This rank has found `error`, which other nodes cannot see: rank 0 tells them, unless it is rank 0 that is gone.
    void tell(const Error &error, bool first_is_gone);
    // Names ranks that have not come to that call, as far as they are known.
    size_t missing(uint32_t lane, uint64_t call, char *to, size_t size);

  private:
    struct Verdict {
        int32_t status;
        char text[sizeof Error::text];
    };
    static constexpr int STANDING = 1, VERDICT = 2;
    Standing standing() const;
    int take(Error *error);
    int judge(Error *error);
    int crossed(Error *error);
    int left(Error *error);
    void spread();
    int take_one();
    int send(const void *from, size_t size, int to, int tag, Mpi::Handle *request);
    bool gone(Mpi::Handle *request);
    const Standing *of(int rank);

    Mpi *mpi_ = nullptr;
    const World *world_ = nullptr;
    Mpi::Handle comm_ = 0;
    pthread_mutex_t mutex_ = PTHREAD_MUTEX_INITIALIZER;  // one thread at a time; the others need not look
    // What was sent last, and whether it is still on its way: to rank 0, or of the verdict to all.
    Standing sent_ = {};
    Verdict found_ = {}, told_ = {};
    union {
        Standing standing;
        Verdict verdict;
    } inbox_ = {};  // what is being taken, and its tag
    int taking_ = 0;
    Mpi::Handle taking_way_ = 0, on_way_ = 0, told_way_ = 0;
    bool under_way_ = false, told_under_way_ = false, judged_ = false, heard_ = false, spread_ = false;
    int64_t sent_to_first_ = 0, taken_ = 0;
    // On rank 0, of each rank what it told last; rank -1: nothing.
    Room<Standing> each_;
    Room<Mpi::Handle> ways_;
    bool fresh_ = false;
};

}  // namespace fairlead
