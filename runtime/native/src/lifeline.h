// Whether the other nodes are alive: a ring of TCP connections between the first ranks of the nodes.
//
// Within a node the segment shows that a rank has ended. When all ranks of a node have, none is left to report it,
// and an MPI reduction just never completes. The kernel closes the connections of a process however it ends; if a
// whole machine fails, keep-alive probes notice. Nothing is sent while all is well.
//
// A rank listens for a moment, at the addresses only that the rank before it in the ring calls. Strangers who call
// cannot keep that rank out. What could not be connected (a firewall, no IPv4) is not watched, and rank 0 says so.
#pragma once

#include "mpi.h"

namespace fairlead {

struct World;

class Lifeline {
  public:
    ~Lifeline() { drop(); }
    // Collective over `leaders`, the first ranks of all nodes in the order of the nodes.
    int open(Mpi &mpi, Mpi::Handle leaders, const World &world, Error *error);
    // After all ranks have agreed to end: a connection that closes from now on is not a loss.
    void close();
    static constexpr int LANES = 256;
    // This rank ends without such an agreement, after so many calls in each lane.
    void leave(const uint64_t *calls);
    // A neighbour in the ring that has ended; -1: none is known.
    int lost();
    // Whether it fell silent instead: its host has failed, or the network to it.
    bool silent() const { return load(&silent_); }
    // Whether it had come to that call of that lane before.
    bool came(int lane, uint64_t call) const { return lane >= 0 && lane < LANES && load(&came_[lane]) >= call; }

  private:
    static constexpr int HOSTS = 8, DOORS = HOSTS + 1;
    // A rank and its addresses, as in_addr.
    struct Home {
        int64_t rank, count;
        uint32_t hosts[HOSTS], masks[HOSTS];
    };
    // Where it can be called by the rank before it, and what a caller has to know.
    struct Doors {
        uint64_t token;
        uint16_t ports[DOORS + 3];  // 0: closed
    };
    struct Wire {
        int file = -1, rank = -1;
    };
    static void addresses(Home *home);
    static int ways(const Home &caller, const Home &called, bool same_host, uint32_t *to);
    void meet(const int *listeners, int doors, const uint32_t *hosts, int count, const Doors &mine, const Doors &next);
    void drop();

    pthread_mutex_t mutex_ = PTHREAD_MUTEX_INITIALIZER;  // one thread at a time; the others need not look
    Wire ahead_, behind_;
    int64_t rank_ = -1;
    int lost_ = -1;  // read by all threads, and
    bool silent_ = false;
    uint64_t came_[LANES] = {};
};

}  // namespace fairlead
