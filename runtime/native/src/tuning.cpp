#include "tuning.h"

#include <fcntl.h>

namespace fairlead {

namespace {

// Reads a file of sysfs.
bool read_text(char *to, size_t size, const char *file, int index) {
    char path[100];
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu0/cache/index%d/%s", index, file);
    const int opened = ::open(path, O_RDONLY | O_CLOEXEC);
    if (opened < 0) return false;
    const ssize_t n = read(opened, to, size - 1);
    ::close(opened);
    to[n > 0 ? n : 0] = 0;
    return n > 0;
}

// A rank's part of the largest cache, in bytes.
uint64_t cache_part(int ranks) {
    uint64_t largest = uint64_t(16) << 20;  // of one that sysfs does not describe
    for (int index = 0; index < 8; index++) {
        char size[32], sharing[1100];
        if (!read_text(size, sizeof size, "size", index) || !read_text(sharing, sizeof sharing, "shared_cpu_map", index)) continue;
        char *unit = nullptr;
        uint64_t bytes = strtoull(size, &unit, 10);
        if (*unit == 'K' || *unit == 'M') bytes <<= *unit == 'K' ? 10 : 20;
        int cpus = 0;
        for (const char *at = sharing; *at; at++)
            if (*at != ',' && *at != '\n') cpus += __builtin_popcount(unsigned(*at <= '9' ? *at - '0' : (*at | 32) - 'a' + 10));
        largest = bytes / uint64_t(most(1, least(ranks, cpus)));  // the levels come in order
    }
    return largest;
}

}  // namespace

void Tuning::open(size_t chunk, bool chunk_fixed, int past_fixed, int ranks) {
    const uint32_t whole = uint32_t(chunk >> 10);
    cached_ = cache_part(ranks) / 4;  // input, output, and what the ranks hand to each other
    for (const uint32_t past : {0u, 1u})
        for (const bool large : {false, true}) {
            if (past_fixed >= 0 ? uint32_t(past_fixed) != past : past && !large) continue;
            for (const uint32_t part : {2u, 1u, 4u}) {
                Table &copied = tables_[0][large];
                if (!chunk_fixed || part == 1) copied.at[copied.count++] = {most(whole / part, 4u), past};
            }
            Table &in_place = tables_[1][large];
            in_place.at[in_place.count++] = {whole, past};
        }
}

size_t Tuning::explain(char *text, size_t room, const Ticks &clock) const {
    size_t used = 0;
    for (int i = 0; i < CLASSES; i++) {
        const Class &c = classes_[i];
        const bool in_place = i / 2 % 2;
        const Table &ways = tables_[in_place][i % 2];
        if (ways.count < 2 || c.calls <= uint32_t(ways.count) * TRIES || used + 200 > room) continue;
        const Way &way = ways.at[c.chosen];
        used += size_t(snprintf(text + used, room - used, "%llu kB and more, %s: ", static_cast<unsigned long long>(uint64_t(1) << (i / 4 + FIRST) >> 10), in_place ? "in place" : "copied"));
        if (!in_place) used += size_t(snprintf(text + used, room - used, "chunks of %u kB, ", way.chunk_kb));
        used += size_t(snprintf(text + used, room - used, "%s stores: %.3g ms;", way.past ? "non-temporal" : "ordinary", 1e3 * clock.seconds(c.took[c.chosen])));
        uint32_t slowest = 0;
        for (int way_of = 0; way_of < ways.count; way_of++) slowest = most(slowest, c.took[way_of]);
        used += size_t(snprintf(text + used, room - used, " the slowest of %d ways took %.3g ms\n", ways.count, 1e3 * clock.seconds(slowest)));
    }
    return used;
}

}  // namespace fairlead
