// A team: lanes that share its aggregations, and the helper threads that work on started calls.
#pragma once

#include "lane.h"

struct fairlead_team {
  public:
    static constexpr int MOST_LANES = 16;

    int open(fairlead::Mpi &mpi, fairlead::Mpi::Handle from, const fairlead::World &world, const fairlead::Settings &settings, int number, int threads, fairlead::Error *error);
    void close();

    int aggregate(const fairlead_tensor *tensors, uint64_t count, int operation, fairlead::Error *error);
    int start(const fairlead_tensor *tensors, uint64_t count, int operation, uint64_t *ticket, fairlead::Error *error);
    bool done(uint64_t ticket, fairlead::Error *error);
    // Seconds spent here count as blocked.
    int wait_for(uint64_t ticket, fairlead::Error *error);
    int drain(fairlead::Error *error);
    // Below MPI_THREAD_MULTIPLE: does what this thread has started, in any team, in that order. Every call that waits
    // for other ranks begins with it: ranks that start alike then wait alike, whatever they wait for first. Returns
    // FAIRLEAD_INTERRUPTED if one was; other errors are returned by fairlead_comm_wait.
    static int catch_up(fairlead::Error *error);
    fairlead_stats stats(const fairlead::Ticks &clock);
    const fairlead::Tuning &tuning() const { return lanes_[0].tuning(); }
    // For messages and the timeline, in place of its number.
    void name(const char *name) {
        for (int i = 0; i < count_; i++) lanes_[i].name(name);
    }
    // This rank comes to no further call.
    void leave(fairlead::End how = fairlead::FINALIZED) {
        for (int i = 0; i < count_; i++) lanes_[i].leave(how);
    }
    // Why one of its lanes has no shared memory; "".
    const char *why_not() const;

    fairlead_team *next = nullptr;

  private:
    static constexpr uint64_t MOST_STARTED = 32;
    struct Request {
        fairlead::Room<fairlead_tensor> tensors;
        fairlead::Room<fairlead_tensor> parts[MOST_LANES];
        uint64_t counts[MOST_LANES], count;
        int operation;
        bool direct;  // the caller does the first lane's part
        fairlead::Error error;
        int odd;    // lane of the error
        bool reported;  // the error, to the thread that waited for it
    };
    struct Helper {
        fairlead_team *team;
        int lane;
        uint64_t first;  // ticket: earlier ones were done without it
        pthread_t thread;
    };
    int wait(uint64_t ticket, fairlead::Error *error);
    int alone(const fairlead_tensor *tensors, uint64_t count, int operation, fairlead::Error *error);
    static void *help(void *helper);
    int begin(const fairlead_tensor *tensors, uint64_t count, int operation, bool direct, uint64_t *ticket, fairlead::Error *error);
    int cut(Request &request, fairlead::Error *error);
    void work(int lane, uint64_t ticket, bool helper);
    int hire(fairlead::Error *error);
    void dismiss(int started);
    bool finished(uint64_t ticket) const;
    int settle(uint64_t ticket, fairlead::Error *error);
    int move(uint64_t ticket, fairlead::Error *error);

    fairlead::Lane lanes_[MOST_LANES];
    int count_ = 1;
    Request requests_[MOST_STARTED];
    Helper helpers_[MOST_LANES];
    bool hired_ = false;
    // MPI lets no thread of the core's call it: started calls wait until the program waits, and move in its thread.
    bool in_caller_ = false;
    uint64_t moved_ = 0;  // calls that were done in a caller's thread
    pthread_mutex_t moving_ = PTHREAD_MUTEX_INITIALIZER;
    // Words to sleep on: the number of requests, and the number of finished parts.
    uint64_t issued_ = 0, finished_[MOST_LANES] = {};
    uint32_t issued_bell_ = 0, finished_bell_ = 0, leaving_ = 0;
    uint32_t sleepers_ = 0;  // on `finished_bell_`
    void sleep(uint32_t bell, long us) {
        __atomic_fetch_add(&sleepers_, 1, __ATOMIC_SEQ_CST);
        fairlead::futex_wait(&finished_bell_, bell, us);
        __atomic_fetch_sub(&sleepers_, 1, __ATOMIC_SEQ_CST);
    }
    uint64_t blocked_ = 0;  // ticks
    void spend(uint64_t more) { __atomic_store_n(&blocked_, blocked_ + more, __ATOMIC_RELAXED); }
    // One of several lanes has failed: the others need not wait for ranks that know it, and the team is unusable.
    uint32_t failed_ = 0;
    fairlead::Error broke_;
    // Failed calls whose slot was reused; of those before `forgotten_`, some have failed that are not here.
    static constexpr int MOST_OLD = 64;
    struct Old {
        uint64_t ticket;
        int status;
    } old_[MOST_OLD] = {};
    uint64_t olds_ = 0, forgotten_ = 0;
    pthread_mutex_t mutex_ = PTHREAD_MUTEX_INITIALIZER;  // guards the errors of requests
};
