// Where the ranks of a part of the run stand, merged: what is needed to find ranks that wait for each other, those that
// have ended too early, and one that is late, whatever the number of ranks.
#pragma once

#include "platform.h"

namespace fairlead {

// Lanes have the same numbers on every rank; calls count from 1.
struct Standing {
    static constexpr int MOST_LANES = 256, MOST_GROUPS = 16;
    // The fewest calls that some ranks have come to, or the latest call that one waits for; a rank of which it is true;
    // that call's kind. rank -1: of none.
    struct At {
        uint64_t call;
        int32_t rank;
        uint32_t kind;
        void fewer(const At &other) {
            if (other.rank >= 0 && (rank < 0 || other.call < call || (other.call == call && other.rank < rank))) *this = other;
        }
        void later(const At &other) {
            if (other.rank >= 0 && (rank < 0 || other.call > call || (other.call == call && other.rank < rank))) *this = other;
        }
    };
    struct Row {
        uint64_t own;               // calls that `rank` has come to
        At least, ended, waits;     // of all ranks; of those that have called finalize; of those that wait for agreement
        At groups[MOST_GROUPS];     // of the ranks of each group
    };
    int32_t rank, lanes, groups;    // `rank` speaks for the others
    uint32_t last;                  // nothing more will come
    // Ranks whose only thread waits for the same call, as lane << 48 | call; and one of them.
    struct {
        uint64_t place;
        int64_t rank;
    } group[MOST_GROUPS];
    Row rows[MOST_LANES];

    size_t size() const { return offsetof(Standing, rows) + size_t(lanes) * sizeof *rows; }
    bool same(const Standing &other) const { return size() == other.size() && !memcmp(this, &other, size()); }
    void clear(int rank, int lanes);
    // One of the ranks, in one lane; `place`: where its only thread waits, or 0.
    void add(int rank, int lane, uint64_t come, bool ended, uint64_t awaited, uint32_t kind, uint64_t place);
    // What another rank says of its own part.
    void join(const Standing &part);
    // That one has said nothing yet.
    void miss(int rank);

  private:
    int group_of(uint64_t place, int rank);
};

// Nodes as a tree.
struct Tree {
    static constexpr int FAN = 32;
    static int parent(int node) { return (node - 1) / FAN; }
    static int first_child(int node) { return FAN * node + 1; }
    static int end_of_children(int node, int nodes) { return least(FAN * node + FAN + 1, nodes); }
};

}  // namespace fairlead
