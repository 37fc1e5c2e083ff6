// Memory for tensors that every rank of a node has mapped: sums are read from it and written to it in place, without
// a copy through a segment.
#pragma once

#include "mpi.h"

namespace fairlead {

// One allocation, at the same offset in each rank's part of a file.
struct Area {
    char *at;       // where this rank uses its part
    size_t bytes;
    char *parts;    // all parts of the node, `stride` bytes apart; null: other ranks do not see it
    size_t stride;  // of whole pages
    uint64_t id;    // the same on all ranks
    int place, ranks;
    // Where `place` has what this rank has at `own`.
    char *of(int of_place, const char *own) const { return parts + size_t(of_place) * stride + (own - at); }
};

class Areas {
  public:
    // Collective over `from`, whose ranks pass the same size; the ranks of `node` share it. If they cannot, on any
    // node, it is ordinary memory and `why` is set. `at`: null, or `bytes` of whole pages, mapped and written by no
    // other thread: these pages are replaced, with the same contents.
    int open(const Mpi &mpi, Mpi::Handle from, Mpi::Handle node, size_t bytes, void **at, char *why, size_t why_size, Error *error);
    // Returns false if there is no area at that address. Memory that `open` was given stays mapped.
    bool close(void *at);
    // The area that has all of these bytes, or null.
    const Area *of(const void *at, size_t bytes) const;
    bool any() const { return load(&count_) > 0; }

  private:
    static constexpr int MOST = 1024;
    // Threads look areas up while others come and go: an entry never changes, and is not freed.
    const Area *all_[MOST] = {};
    bool given_[MOST] = {};
    int count_ = 0;
    uint64_t made_ = 0;
    pthread_mutex_t mutex_ = PTHREAD_MUTEX_INITIALIZER;
};

}  // namespace fairlead
