// Elements of a call, cut into chunks and shares.
#pragma once

#include "lane.h"

namespace fairlead {

inline uint64_t rounded_up(uint64_t value, uint64_t to) { return (value + to - 1) / to * to; }

// What ranks must agree on for a tensor: dtype and shape, number of elements.
struct Row {
    uint64_t form, count;
};
inline Row row_of(const fairlead_tensor &t) { return {uint32_t(t.dtype) | uint64_t(uint32_t(t.shape)) << 32, t.count}; }

// Elements [from, to) of a stream, divided into a share for each rank.
struct Chunk {
    uint64_t from, to;
    int ranks;
    uint64_t share() const { return rounded_up((to - from + uint64_t(ranks) - 1) / uint64_t(ranks), 64); }
    uint64_t begin(int place) const { return least(from + share() * uint64_t(place), to); }
    uint64_t end(int place) const { return begin(place + 1); }
};

constexpr uint64_t SEVERAL = 8;

// Divides elements into chunks of equal size.
struct Cut {
    uint64_t each, count;
    // `several`: a few chunks even for a small tensor, so that summing one overlaps with packing the next.
    Cut(uint64_t elements, uint64_t at_most, bool several = false) {
        if (several) at_most = least(at_most, most(rounded_up(elements / SEVERAL, 64), at_most / 8));
        count = (elements + at_most - 1) / at_most;
        each = count ? least(rounded_up((elements + count - 1) / count, 64), at_most) : 0;
        count = count ? (elements + each - 1) / each : 0;
    }
    Chunk chunk(uint64_t k, uint64_t elements, int ranks) const { return {k * each, least((k + 1) * each, elements), ranks}; }
};

template <class Use> void Stream::each(uint64_t from, uint64_t to, Use &&use) const {
    if (from >= to) return;
    uint64_t low = 0, high = count_;  // the last piece that starts at or before `from`
    while (high - low > 1) {
        uint64_t middle = (low + high) / 2;
        (pieces_[middle].start <= from ? low : high) = middle;
    }
    const size_t w = width(form_);
    for (uint64_t i = low; from < to; i++) {
        const uint64_t end = least(pieces_[i + 1].start, to), skip = (from - pieces_[i].start) * w;
        use(pieces_[i].in + skip, pieces_[i].out ? pieces_[i].out + skip : nullptr, end - from);
        from = end;
    }
}

}  // namespace fairlead
