// What ranks of different nodes exchange while they wait.
//
// Within a node a rank sees from the seats what the others wait for and whether they are alive. Of other nodes it
// sees nothing: an MPI reduction is complete or not. So a rank that has waited for a while reports to rank 0 where
// it stands, and rank 0, while it waits itself, finds out who waits for whom and who has not come, and notifies
// all ranks of a deadlock. Messages have a communicator of their own. Sends are never waited for: a rank has one
// in flight at a time, and a message is probed before it is received.
#pragma once

#include "mpi.h"

namespace fairlead {

struct World;

// Where a process stands. Lanes have the same numbers on every rank; calls count from 1.
struct Standing {
    static constexpr int MOST_LANES = 256, MOST_WAITS = 8;
    struct At {
        uint32_t lane, kind;
        uint64_t call;
    };
    int32_t rank, lanes;
    uint32_t ended, waiting;     // has called finalize; number of valid `waits`
    uint64_t blocked;            // as in the seat: what its only thread waits for
    At waits[MOST_WAITS];        // lanes whose agreement any thread waits for
    uint64_t come[MOST_LANES];   // of each lane, the calls that it has come to or started
    size_t size() const { return offsetof(Standing, come) + size_t(lanes) * sizeof *come; }
    uint64_t call_of(uint32_t lane) const { return int(lane) < lanes ? come[lane] : 0; }
};

class Exchange {
  public:
    // Collective over `from`. Before it, the functions below do nothing.
    int open(Mpi &mpi, Mpi::Handle from, const World &world, Error *error);
    // Collective, after all ranks have agreed to end: receives what is still in flight.
    int close(Error *error);

    // Call it after waiting for `waited` seconds: reports where this rank stands, and receives. Returns an error
    // that any rank has found; it is the same on all ranks.
    int look(double waited, Error *error);
    // An error that any rank has found, if there is one. Waits for a thread of this process that is reporting one.
    int verdict(Error *error);
    // This rank has found `error`, which other nodes cannot see: rank 0 notifies them, unless rank 0 is the one
    // that is gone.
    void report(const Error &error, bool first_is_gone);
    // Names the ranks that have not come to that call, as far as known.
    size_t missing(uint32_t lane, uint64_t call, char *to, size_t size);

  private:
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
    // The last message sent, and whether it is still in flight: to rank 0, or the verdict to all.
    Standing sent_ = {};
    Error found_ = {}, told_ = {};
    union {
        Standing standing;
        Error verdict;
    } inbox_ = {};  // the message being received, and its tag
    int taking_ = 0;
    Mpi::Handle taking_way_ = 0, on_way_ = 0, told_way_ = 0;
    bool under_way_ = false, told_under_way_ = false, judged_ = false, heard_ = false, spread_ = false;
    int64_t sent_to_first_ = 0, taken_ = 0;
    // On rank 0, the last report of each rank; rank -1: none.
    Room<Standing> each_;
    Room<Mpi::Handle> ways_;
    bool fresh_ = false;
};

}  // namespace fairlead
