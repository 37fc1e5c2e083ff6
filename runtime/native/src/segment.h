// Memory that the ranks of one node share: a seat for each, and room for what they hand each other.
#pragma once

#include "kernels.h"
#include "mpi.h"

namespace fairlead {

constexpr size_t FLAT = 8192;   // bytes that are handed over with the arrival itself
constexpr int FLAT_RANKS = 16;  // of a node that do so
constexpr int DEPTH = 4;        // chunks in flight

// What a rank is about to do. Ranks whose calls differ are told so, before anything moves.
struct Call {
    uint64_t kind;       // of enum Kind, the operation, the root
    uint64_t signature;  // of dtypes and counts, in order
    uint64_t count;      // of tensors
    bool operator==(const Call &other) const {
        return kind == other.kind && signature == other.signature && count == other.count;
    }
};

constexpr size_t FEW = 96;  // bytes that lie beside the arrival: two lines of cache change hands

struct alignas(128) Arrival {
    uint64_t number;  // of the call that the rest is of
    Call call;
    char few[FEW];
};

// Written by its rank alone, but for `bell`. Counters only grow: `arrived` counts calls, the others chunks.
struct alignas(128) Seat {
    uint64_t packed, summed, reduced, taken;
    Arrival arrivals[2];  // by the parity of the call: a fast rank is at most one ahead
    alignas(64) uint32_t waiting, bell;
    // What is looked at only by who has waited for long.
    alignas(64) uint64_t arrived;
    uint64_t token;
    int32_t rank;
    uint32_t ended;     // finalize was called: this rank comes to no further call
    uint64_t promised;  // calls that are started, whether or not a helper has come to them
    // Of the first lane: what this process's one thread waits for, as lane << 48 | call; 0: nothing that
    // can be told, as in a process that calls from several threads.
    uint64_t blocked;
    // By the parity of the call, a call's number: this rank's share of the sums has NaN or an infinity; this rank has
    // passed one. `words` say which.
    struct {
        uint64_t doubted, passed;
        char words[496];
    } odd[2];
    uint32_t told_odd;  // it has passed one in a call before, and said so
};

class Segment {
  public:
    Segment() = default;
    Segment(const Segment &) = delete;
    ~Segment();

    // Collective over `node`, whose ranks share memory or are to find out that they do not. `why` is then
    // filled on every rank, and each has a segment of its own.
    int open(const Mpi &mpi, Mpi::Handle node, int rank, size_t chunk, char *why, size_t why_size, Error *error);

    int place() const { return place_; }  // of this rank
    int ranks() const { return ranks_; }
    Seat &seat(int place) { return seats_[place]; }
    Seat &mine() { return seats_[place_]; }
    const Seat &mine() const { return seats_[place_]; }
    const Seat &seat(int place) const { return seats_[place]; }
    char *few(int place, uint64_t parity) { return seats_[place].arrivals[parity].few; }
    char *flat(int place, uint64_t parity) { return flats_ + (size_t(place) * 2 + parity) * FLAT; }
    // What `place` hands to the others of a chunk.
    char *given(int place, uint64_t chunk) { return givens_ + (size_t(place) * DEPTH + chunk % DEPTH) * chunk_; }
    // The chunk's sums; wide enough for float32 where elements are halves.
    char *result(uint64_t chunk) { return results_ + chunk % DEPTH * 2 * chunk_; }
    size_t chunk() const { return chunk_; }

    // Wakes who sleeps; to be called after a counter has grown. `sure`: also who falls asleep just now, who else
    // finds out by itself after a while (Lane::Wait::sleep).
    void ring(bool sure = false);
    // Whether the process of `place` still has the segment.
    bool alive(int place);

  private:
    int make(const char *folder, char *name, size_t size, char *why, size_t why_size);
    void lay(char *base);

    int place_ = 0, ranks_ = 1, file_ = -1;
    size_t chunk_ = 0, size_ = 0;
    char *base_ = nullptr;
    Seat *seats_ = nullptr;
    char *flats_ = nullptr, *givens_ = nullptr, *results_ = nullptr;
};

}  // namespace fairlead
