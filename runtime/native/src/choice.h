// Which algorithm sums so many bytes over the nodes: by a model of its rounds, whose figures are measured.
#pragma once

#include "network.h"

namespace fairlead {

// A message over a distance of d nodes takes `latency + bytes * byte`, measured while all nodes send as far at once: so
// it shows what near and far nodes, and links that many share, cost. A sum costs its rounds, one after the other, and
// what is added. The transport's own sum is measured against the best of these.
//
// It is plain data: one node measures for all of its ranks.
//
// Sources: A. Alexandrov et al., LogGP, SPAA 1995; R. Thakur et al., IJHPCA 19 (2005).
class Choice {
  public:
    static constexpr int LEVELS = 24;  // distances of 1, 2, 4, …
    // By all nodes at once; takes a few milliseconds. `pinned`: the algorithm to take, or AUTO.
    int measure(Transport &transport, double (*now)(), Algorithm pinned, Error *error, Combine combine = add);
    Shape shape(uint64_t bytes) const { return shapes_[level_of(bytes)]; }
    // What a sum takes.
    double seconds(Shape shape, uint64_t bytes) const;
    // So many bytes are best sent along with 16 others that go round anyway, by recursive doubling.
    uint64_t carried() const { return carried_; }
    // In words, one line.
    void explain(char *to, size_t size) const;

  private:
    static constexpr int SIZES = 32, RACES = 3;  // powers of two; sizes at which the transport's sum is measured
    static int level_of(uint64_t value) { return value < 2 ? 0 : least(63 - __builtin_clzll(value), SIZES - 1); }
    double message(int distance, uint64_t bytes) const;
    Shape best(uint64_t bytes, Algorithm among) const;

    int nodes_ = 1;
    double latency_[LEVELS] = {}, byte_[LEVELS] = {}, add_ = 0;
    uint64_t raced_[RACES] = {};
    uint64_t carried_ = ~uint64_t(0);
    double own_[RACES] = {}, theirs_[RACES] = {};
    Shape shapes_[SIZES];
};

}  // namespace fairlead
