// Whether the other nodes are alive: a ring of TCP connections between the first ranks of the nodes.
//
// Within a node the segment shows that a rank has ended. When all ranks of a node have, none is left to report it,
// and an MPI reduction just never completes. The kernel closes the connections of a process however it ends; if a
// whole machine fails, keep-alive probes notice. Nothing is sent while all is well.
//
// A node whose first rank cannot be reached (a firewall, no IPv4) is not watched: ranks then wait, and report whom
// for.
#pragma once

#include "mpi.h"

namespace fairlead {

struct World;

class Lifeline {
  public:
    ~Lifeline() { drop(); }
    // Collective over `from`. `first`: this rank is the first of its node.
    int open(Mpi &mpi, Mpi::Handle from, const World &world, bool first, Error *error);
    // After all ranks have agreed to end: a connection that closes from now on is not a loss.
    void close();
    // A neighbour in the ring that has ended; -1: none is known.
    int lost();

  private:
    static constexpr int HOSTS = 8;
    // Where a rank listens, as published to all. Addresses as in_addr, the most likely to work first.
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
