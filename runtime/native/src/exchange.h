// What ranks of different nodes exchange while they wait.
//
// Within a node a rank sees from the seats what the others wait for and whether they are alive. Of other nodes it sees
// nothing. So the first rank of a node that has waited for a while reports where its node's ranks stand to its parent
// in a tree of nodes, together with what its children have reported. Rank 0, while it waits itself, finds out who waits
// for whom and who has not come; its verdict goes down the same tree. So no rank hears from more than a few others,
// and the root knows after as many messages as the tree is deep. Messages have a communicator of their own. Sends are
// never waited for: a rank has one in flight at a time, and a message is probed before it is received.
#pragma once

#include "mpi.h"
#include "standing.h"

namespace fairlead {

struct World;

class Exchange {
  public:
    // Collective over `from`, after the first lane was opened. Before it, the functions below do nothing.
    int open(Mpi &mpi, Mpi::Handle from, const World &world, Error *error);
    // Collective, after all ranks have agreed to end: receives what is still in flight.
    int close(Error *error);

    // Call it after waiting for `waited` seconds: reports where this node stands, and receives. Returns an error
    // that any rank has found; it is the same on all ranks.
    int look(double waited, Error *error);
    // An error that any rank has found, if there is one. Waits for a thread of this process that is reporting one.
    int verdict(Error *error);
    // This rank has found `error`, which other nodes cannot see: rank 0 notifies them, unless rank 0 is the one
    // that is gone.
    void report(const Error &error, bool first_is_gone);
    // Names ranks that have not come to that call, as far as known.
    size_t missing(uint32_t lane, uint64_t call, char *to, size_t size);

  private:
    static constexpr int STANDING = 1, VERDICT = 2, MOST_TOLD = 2048;
    void stand();
    int take(Error *error);
    int judge(Error *error);
    int crossed(const Standing &all, Error *error);
    int left(const Standing &all, Error *error);
    void spread(bool for_first = false);
    template <class Tell> void below(int node, int gone, Tell &&tell);
    int take_one();
    int send(const void *from, size_t size, int to, int tag, Mpi::Handle *request);
    bool gone(Mpi::Handle *request);
    bool first() const { return firsts_of_ && firsts_of_[node_] == rank_; }  // of its node
    int children() const { return Tree::end_of_children(node_, nodes_) - least(Tree::first_child(node_), nodes_); }

    Mpi *mpi_ = nullptr;
    const World *world_ = nullptr;
    Mpi::Handle comm_ = 0;
    pthread_mutex_t mutex_ = PTHREAD_MUTEX_INITIALIZER;  // one thread at a time; the others need not look
    int rank_ = 0, node_ = 0, nodes_ = 1;
    Room<int> firsts_;  // the first rank of each node
    const int *firsts_of_ = nullptr;
    // Where this node and those below it stand; the last that was sent, or judged; and whether it is still in flight.
    Standing now_ = {}, sent_ = {};
    Error found_ = {}, told_ = {};
    union {
        Standing standing;
        Error verdict;
    } inbox_ = {};  // the message being received, and its tag
    int taking_ = 0;
    Mpi::Handle taking_way_ = 0, on_way_ = 0, told_way_ = 0;
    bool under_way_ = false, told_under_way_ = false, judged_ = false, heard_ = false, spread_ = false;
    Room<Standing> each_;  // the last report of each child; rank -1: none
    Room<Mpi::Handle> ways_;
};

}  // namespace fairlead
