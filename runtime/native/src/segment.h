// Memory shared by the ranks of one node: a seat for each rank, and buffers for the data that they exchange.
#pragma once

#include "kernels.h"
#include "mpi.h"
#include "shared_file.h"
#include "tuning.h"

namespace fairlead {

constexpr size_t FLAT = 2048;   // bytes that travel with the arrival itself; more take less time in two halves
constexpr int FLAT_RANKS = 16;  // at most so many ranks of a node do so
constexpr size_t CARRIED = 16 << 10;     // between nodes: bytes of a rank that travel with the agreement,
constexpr size_t CARRIED_NODE = 64 << 10;  // and of all ranks of a node, whose first one adds them
constexpr int MOST_CARRIED = 256;          // at most so many ranks
constexpr size_t SUMS_BYTES = 8 << 20;   // bytes of sums on their way between nodes
constexpr int DEPTH = 4;        // chunks in flight

// What a rank is about to do. Ranks whose calls differ are notified before any data moves.
struct Call {
    uint64_t kind;       // of enum Kind, the operation, the root
    uint64_t signature;  // of dtypes and counts, in order
    uint64_t count;      // of tensors
    bool operator==(const Call &other) const {
        return kind == other.kind && signature == other.signature && count == other.count;
    }
};

enum End : uint32_t { GOES_ON, FINALIZED, LEFT };  // LEFT: it called MPI_Finalize instead

constexpr size_t FEW = 96;  // bytes stored next to the arrival: they travel in two cache lines

struct alignas(128) Arrival {
    uint64_t number;  // of the call that the rest belongs to
    Call call;
    char few[FEW];
};

// Written by its own rank only, except `bell`. Counters only grow: `arrived` counts calls, the others chunks.
struct alignas(128) Seat {
    uint64_t packed, summed, reduced, taken;
    Arrival arrivals[2];  // by the parity of the call: a fast rank is at most one call ahead
    alignas(64) uint32_t waiting, bell;
    // Read only by ranks that have waited for long.
    alignas(64) uint64_t arrived;
    uint64_t token;
    int32_t rank;
    uint32_t ended;     // this rank comes to no further call: of enum End
    uint64_t promised;  // calls started, even if no helper has come to them yet
    // Of a node's first seat: the last call on which the nodes have agreed, the last on which they have not, and the last
    // in which all ranks sum in place, and the last in which its sums of a small call are NaN or infinite.
    uint64_t agreed, differs, shares, odd_small;
    // Of the first lane: what this process's only thread waits for, as lane << 48 | call; 0 if unknown, as in a
    // process that calls from several threads.
    uint64_t blocked;
    uint64_t awaited, kind;  // the call whose agreement this rank has been waiting for, and its kind (0: none)
    // By the parity of the call, a call's number: this rank's share of the sums has NaN or infinity; this rank has
    // passed one. `words` describe it.
    struct {
        uint64_t doubted, passed;
        char words[496];
    } odd[2];
    uint32_t reported_odd;  // it passed one in an earlier call, and has reported it
    Tuning::Notes notes;
};

class Segment {
  public:
    Segment() = default;
    Segment(const Segment &) = delete;
    ~Segment();

    // Collective over `node`, whose ranks share memory or find out that they do not. In that case `why` is set on
    // every rank, and each rank has a segment of its own.
    // `far`: there are other nodes.
    int open(const Mpi &mpi, Mpi::Handle node, int rank, size_t chunk, bool far, char *why, size_t why_size, Error *error);

    int place() const { return place_; }  // of this rank
    int ranks() const { return ranks_; }
    Seat &seat(int place) { return seats_[place]; }
    Seat &mine() { return seats_[place_]; }
    const Seat &mine() const { return seats_[place_]; }
    const Seat &seat(int place) const { return seats_[place]; }
    char *few(int place, uint64_t parity) { return seats_[place].arrivals[parity].few; }
    char *flat(int place, uint64_t parity) { return flats_ + (size_t(place) * 2 + parity) * flat_room_; }
    size_t flat_room() const { return flat_room_; }
    // What `place` hands to the others of a chunk.
    char *given(int place, uint64_t chunk) { return givens_ + (size_t(place) * DEPTH + chunk % DEPTH) * chunk_; }
    // The chunk's sums; wide enough for float32 if elements are halves.
    char *result(uint64_t chunk) { return results_ + chunk % DEPTH * 2 * chunk_; }
    size_t chunk() const { return chunk_; }
    // The same memory, `ring_bytes` in all, for sums that are on their way between nodes.
    char *ring_of_sums() { return results_; }
    size_t ring_bytes() const { return results_bytes_; }

    // Wakes sleepers; call it after a counter has grown. `sure`: also those that are just falling asleep, which
    // otherwise notice by themselves after a while (Lane::Wait::sleep).
    void ring(bool sure = false);
    // Whether the process of `place` still holds the segment.
    bool alive(int place) const { return file_.held(place); }

  private:
    void lay(char *base);

    int place_ = 0, ranks_ = 1;
    SharedFile file_;
    size_t common() const;
    size_t size_of() const { return common() + size_t(ranks_) * DEPTH * chunk_; }
    size_t chunk_ = 0, flat_room_ = FLAT, results_bytes_ = 0, size_ = 0;  // the latter of memory that is not shared
    char *base_ = nullptr;
    Seat *seats_ = nullptr;
    char *flats_ = nullptr, *givens_ = nullptr, *results_ = nullptr;
};

}  // namespace fairlead
