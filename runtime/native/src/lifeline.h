// Whether the other nodes still live: a ring of TCP connections between the nodes' first ranks.
//
// Within a node the segment tells that a rank has ended. When all ranks of a node have, nobody of it is left to say
// so, and a reduction of MPI's is just not done. The kernel closes the connections of a process that ends, however
// it ends; where a whole machine goes, keep-alive messages find out. Nothing is sent while all is well.
//
// A node whose first rank cannot be reached (a firewall, no IPv4) is not watched: ranks then wait, and say for whom.
#pragma once

#include "mpi.h"

namespace fairlead {

struct World;

class Lifeline {
  public:
    ~Lifeline() { drop(); }
    // Collective over `from`. `first`: this rank is the first of its node.
    int open(Mpi &mpi, Mpi::Handle from, const World &world, bool first, Error *error);
    // After all ranks have agreed to end: what closes now is no loss.
    void close();
    // A rank beside this one in the ring that has ended; -1: none is known.
    int lost();

  private:
    static constexpr int HOSTS = 8;
    // Where a rank listens, as all are told. Addresses as in_addr, the best known first.
    struct Door {
        uint64_t token;
        uint32_t hosts[HOSTS], masks[HOSTS];
        uint16_t port, count;
        int32_t first;
    };
    struct Wire {
        int file = -1, rank = -1;
    };
    int listen(Door *door);
    void meet(int listener, int rank, const Door &mine, const Door &next, bool same_host);
    void drop();

    pthread_mutex_t mutex_ = PTHREAD_MUTEX_INITIALIZER;  // one thread at a time; the others need not look
    Wire ahead_, behind_;
    int lost_ = -1;  // read by all threads
};

}  // namespace fairlead
