#include "standing.h"

namespace fairlead {

void Standing::clear(int rank_, int lanes_) {
    memset(static_cast<void *>(this), 0, offsetof(Standing, rows));
    rank = rank_, lanes = 0;
    for (; lanes < lanes_; lanes++) {
        Row &row = rows[lanes];
        row.own = 0, row.least = row.ended = row.waits = {0, -1, 0};
        for (At &each : row.groups) each = {0, -1, 0};
    }
}

int Standing::group_of(uint64_t place, int one) {
    int g = 0;
    while (g < groups && group[g].place != place) g++;
    if (g == MOST_GROUPS) return -1;
    if (g == groups) group[groups++] = {place, one};
    return g;
}

void Standing::add(int of, int lane, uint64_t come, bool ended, uint64_t awaited, uint32_t kind, uint64_t place) {
    Row &row = rows[lane];
    const At here = {come, of, 0};
    if (of == rank) row.own = come;
    row.least.fewer(here);
    if (ended) row.ended.fewer(here);
    if (awaited) row.waits.later({awaited, of, kind});
    const int g = place ? group_of(place, of) : -1;
    if (g >= 0) row.groups[g].fewer(here);
}

// A part of which the first rank is behind this one here is late, or has not said so yet: that rank stands for it.
void Standing::join(const Standing &part) {
    int to[MOST_GROUPS];
    for (int g = 0; g < part.groups; g++) to[g] = group_of(part.group[g].place, int(part.group[g].rank));
    for (int i = 0; i < lanes; i++) {
        const bool known = i < part.lanes;  // otherwise the part has not come to its first call
        Row &row = rows[i];
        const At first = {known ? part.rows[i].own : 0, part.rank, 0};
        row.least.fewer(known && first.call >= row.own ? part.rows[i].least : first);
        if (known) row.ended.fewer(part.rows[i].ended), row.waits.later(part.rows[i].waits);
        for (int g = 0; g < part.groups; g++)
            if (to[g] >= 0) row.groups[to[g]].fewer(known ? part.rows[i].groups[g] : At{0, int32_t(part.group[g].rank), 0});
    }
}

void Standing::miss(int one) {
    for (int i = 0; i < lanes; i++) rows[i].least.fewer({0, one, 0});
}

}  // namespace fairlead
