// How tensors of a size move fastest, found in the first calls with them.
//
// Every way is tried in a few calls that follow each other, the same ones on all ranks, which note in their seats how
// long it took. Then all take the way whose slowest rank was fastest. Which way it is does not change a bit of the sums.
// (One way after the other in each call misleads: what a way leaves in the caches is the next one's.)
#pragma once

#include "platform.h"

namespace fairlead {

// Chunks are at most so large; results are written with non-temporal stores, which keep what is exchanged cached and need
// not read the old contents, but leave the results in memory.
struct Way {
    uint32_t chunk_kb, past;
};

class Tuning {
  public:
    static constexpr int WAYS = 6, FIRST = 13, SIZES = 36, CLASSES = 4 * SIZES, TRIES = 4;
    // The least ticks that each way took on a rank.
    struct Notes {
        uint32_t least[CLASSES][WAYS];
    };
    // `chunk`: of the segment, which no way exceeds. `fixed`: by a setting; then no other is tried.
    void open(size_t chunk, bool chunk_fixed, int past_fixed, int ranks);
    // Of this call, of so many bytes; `in_place`: a sum in memory that all ranks see. Collective, after all have come to
    // the call: `notes` gives those of a place.
    template <class Of> const Way &begin(uint64_t bytes, bool in_place, int places, Of &&notes) {
        const bool large = bytes > cached_;
        current_ = class_of(bytes, in_place, large);
        Class &c = classes_[current_];
        const Table &ways = tables_[in_place][large];
        const uint32_t tries = ways.count > 1 ? uint32_t(ways.count) * TRIES : 0;
        if (tries && c.calls == tries) {
            uint32_t best = ~0u;
            for (int way = 0; way < ways.count; way++) {
                uint32_t slowest = 0;
                for (int i = 0; i < places; i++) slowest = most(slowest, load(&notes(i).least[current_][way]));
                c.took[way] = slowest;
                if (slowest < best) best = slowest, c.chosen = way;
            }
        }
        if (c.calls < tries) c.chosen = int(c.calls / TRIES);
        trying_ = c.calls < tries && c.calls % TRIES;  // the first finds the caches as the way before has left them
        c.calls += c.calls <= tries;
        return ways.at[c.chosen];
    }
    void end(uint64_t ticks, Notes *mine) {
        if (!trying_) return;
        uint32_t &least_of = mine->least[current_][classes_[current_].chosen];
        const uint32_t took = uint32_t(least(most(ticks, uint64_t(1)), uint64_t(~0u - 1)));
        if (!least_of || took < least_of) store(&least_of, took);
    }
    // A line for each size that has been decided.
    size_t explain(char *text, size_t room, const Ticks &clock) const;

  private:
    struct Table {
        Way at[WAYS];
        int count;
    } tables_[2][2] = {};  // copied or in place; beyond the caches or not
    struct Class {
        uint32_t calls;
        int chosen;
        uint32_t took[WAYS];
    } classes_[CLASSES] = {};
    int current_ = 0;
    bool trying_ = false;
    uint64_t cached_ = 0;  // larger results exceed a rank's part of the caches
    static int class_of(uint64_t bytes, bool in_place, bool large) {
        const int log = 63 - __builtin_clzll(bytes | 1);
        return (least(most(log - FIRST, 0), SIZES - 1) * 2 + in_place) * 2 + large;
    }
};

}  // namespace fairlead
