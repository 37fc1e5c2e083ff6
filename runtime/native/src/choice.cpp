#include "choice.h"

#include "fairlead_comm.h"

namespace fairlead {
namespace {

constexpr size_t SMALL = 8, MIDDLE = 32 << 10, LARGE = 256 << 10;
constexpr double SLOW_S = 0.3e-3;  // a message of MIDDLE bytes: LARGE ones would take too long
constexpr int REPEATS = 3, TAG = 1 << 12;

// What the nodes do together while they measure.
class Probe {
  public:
    Probe(Transport &transport, double (*now)(), Combine combine) : transport_(transport), now_(now), combine_(combine) {}
    bool room() {
        if (!room_.room(2 * LARGE)) return false;
        memset(room_.at(), 0, 2 * LARGE);
        return true;
    }
    // Seconds of the fastest message to the node that far ahead, while one comes from behind.
    int exchange(int distance, size_t size, double *seconds, Error *error) {
        const int nodes = transport_.size, to = (transport_.rank + distance) % nodes, from = (transport_.rank + nodes - distance) % nodes;
        return fastest(seconds, error, [&] {
            long requests[2];
            if (int bad = transport_.receive(room_.at() + size, size, from, TAG + 1, &requests[0], error)) return bad;
            if (int bad = transport_.send(room_.at(), size, to, TAG + 1, &requests[1], error)) return bad;
            for (long &request : requests)
                for (bool done = false; !done;) {
                    if (int bad = transport_.test(&request, &done, error)) return bad;
                    if (!done) transport_.idle();
                }
            return 0;
        });
    }
    // Of the fastest sum.
    int sum(Shape shape, size_t size, double *seconds, Error *error) {
        return fastest(seconds, error, [&] { return whole(shape, room_.at(), size / 4, F32, error); });
    }
    // Of adding one byte, here.
    double add_s() {
        combine_(room_.at(), room_.at(), room_.at() + LARGE, LARGE / 4, F32);
        const double begun = now_();
        combine_(room_.at(), room_.at(), room_.at() + LARGE, LARGE / 4, F32);
        return (now_() - begun) / double(LARGE);
    }
    // Over the nodes: all choose by the same figures.
    int mean(double *values, int count, Error *error) {
        if (int bad = whole({DOUBLING}, values, uint64_t(count), F64, error)) return bad;
        for (int i = 0; i < count; i++) values[i] /= transport_.size;
        return 0;
    }

  private:
    int whole(Shape shape, void *data, uint64_t count, Form form, Error *error) {
        if (int bad = reduction_.begin(transport_, shape, data, count, form, TAG, error)) return bad;
        for (bool done = false;;) {
            if (int bad = reduction_.step(&done, error)) return bad;
            if (done) return 0;
            transport_.idle();
        }
    }
    template <class Act> int fastest(double *seconds, Error *error, Act &&act) {
        *seconds = 1e9;
        for (int i = 0; i < REPEATS; i++) {
            int64_t one = 1;
            if (int bad = whole({DOUBLING}, &one, 1, I64, error)) return bad;  // all begin at once
            const double begun = now_();
            if (int bad = act()) return bad;
            *seconds = least(*seconds, now_() - begun);
        }
        return 0;
    }

    Transport &transport_;
    double (*now_)();
    Combine combine_;
    Reduction reduction_;
    Room<char> room_;
};

}  // namespace

// --- measuring -------------------------------------------------------------------------------

int Choice::measure(Transport &transport, double (*now)(), Algorithm pinned, Error *error, Combine combine) {
    nodes_ = transport.size;
    if (nodes_ == 1) return 0;
    if (pinned == DOUBLING || pinned == HALVING || pinned == RING || (pinned == BY_MPI && transport.sums())) {
        for (Shape &shape : shapes_) shape = {pinned};
        return 0;
    }
    Probe probe(transport, now, combine);
    if (!probe.room()) return error->set(FAIRLEAD_NO_MEMORY, "no memory to measure the network");
    int levels = 0;
    while (levels < LEVELS && int64_t(1) << levels < nodes_) levels++;
    double small[LEVELS] = {}, large[LEVELS + 1] = {};
    size_t size = SMALL;
    for (const size_t next : {SMALL, MIDDLE, LARGE}) {
        for (int i = 0; i < levels; i++)
            if (int bad = probe.exchange(1 << i, next, &large[i], error)) return bad;
        large[levels] = probe.add_s();
        if (int bad = probe.mean(large, levels + 1, error)) return bad;
        if (next == SMALL) memcpy(small, large, sizeof small);
        size = next;
        if (next == MIDDLE && large[0] > SLOW_S) break;
    }
    add_ = large[levels];
    for (int i = 0; i < LEVELS; i++) {
        const int at = least(i, levels - 1);
        latency_[i] = small[at], byte_[i] = most(large[at] - small[at], 0.0) / double(size - SMALL);
    }
    const bool races = transport.sums() && pinned == AUTO;
    for (int i = 0; i < RACES && races; i++) {
        raced_[i] = i == 0 ? SMALL : i == 1 ? MIDDLE / 4 : size;
        double pair[2];
        if (int bad = probe.sum(best(raced_[i], AUTO), raced_[i], &pair[0], error)) return bad;
        if (int bad = probe.sum({BY_MPI}, raced_[i], &pair[1], error)) return bad;
        if (int bad = probe.mean(pair, 2, error)) return bad;
        own_[i] = pair[0], theirs_[i] = pair[1];
    }
    for (int i = 0; i < SIZES; i++) {
        const uint64_t middle = (uint64_t(3) << i) / 2;
        shapes_[i] = best(middle, pinned);
        // The nearest size that was measured decides.
        int near = 0;
        while (near + 1 < RACES && middle * middle > raced_[near] * raced_[near + 1]) near++;
        if (races && theirs_[near] < own_[near]) shapes_[i] = {BY_MPI};
    }
    constexpr uint64_t ANYWAY = 16;
    for (carried_ = 64; carried_ < LARGE; carried_ *= 2) {
        const uint64_t bytes = 2 * carried_;
        if (seconds({DOUBLING}, bytes + ANYWAY) > seconds({DOUBLING}, ANYWAY) + seconds(best(bytes, pinned), bytes)) break;
    }
    return 0;
}

// --- the model -------------------------------------------------------------------------------

double Choice::message(int distance, uint64_t bytes) const {
    const int level = least(level_of(uint64_t(distance)), LEVELS - 1);
    return latency_[level] + double(bytes) * byte_[level];
}

double Choice::seconds(Shape shape, uint64_t bytes) const {
    int factors[Plan::MOST_FACTORS], part = 0, stride = 1;
    const int levels = Plan::factors(shape, nodes_, factors, &part);
    double sum = 0;
    if (part < nodes_) sum += 2 * message(1, bytes) + double(bytes) * add_;
    uint64_t range = bytes;
    for (int i = 0; i < levels; stride *= factors[i++]) {
        if (shape.algorithm == DOUBLING) {
            sum += message(stride, bytes) + double(bytes) * add_;
            continue;
        }
        const uint64_t piece = range / uint64_t(factors[i]);
        sum += double(factors[i] - 1) * (2 * message(stride, piece) + double(piece) * add_);
        range = piece;
    }
    return sum;
}

// The fastest by the model, of one algorithm or of all.
Shape Choice::best(uint64_t bytes, Algorithm among) const {
    Shape found;
    double least_s = 1e30;
    if (among == BY_MPI) among = AUTO;
    auto consider = [&](Shape shape) {
        const double s = seconds(shape, bytes);
        if (s < least_s) least_s = s, found = shape;
    };
    for (const Algorithm each : {DOUBLING, HALVING, RING})
        if (among == AUTO || among == each) consider({each});
    if (among == AUTO || among == GROUPS) {
        consider({GROUPS, 0});
        for (int group = 3; group <= nodes_ / 2; group++)
            if (nodes_ % group == 0) consider({GROUPS, group});
    }
    return found;
}

void Choice::explain(char *to, size_t size) const {
    size_t used = 0;
    to[0] = 0;
    for (int i = 2; i < SIZES && used + 40 < size; i++) {
        const Shape &one = shapes_[i], &before = shapes_[i - 1];
        if (i > 2 && one.algorithm == before.algorithm && one.group == before.group) continue;
        const uint64_t from = uint64_t(1) << i;
        if (i > 2) used += size_t(snprintf(to + used, size - used, ", from %llu %s ", static_cast<unsigned long long>(from >= 1 << 20 ? from >> 20 : from >= 1 << 10 ? from >> 10 : from), from >= 1 << 20 ? "MB" : from >= 1 << 10 ? "kB" : "B"));
        used += size_t(snprintf(to + used, size - used, one.group ? "%s of %d" : "%s", algorithm_name(one.algorithm), one.group));
    }
    if (latency_[0] > 0 && used + 80 < size)
        snprintf(to + used, size - used, "; a message: %.1f us and %.2f GB/s near, %.1f us and %.2f GB/s far", 1e6 * latency_[0], 1e-9 / most(byte_[0], 1e-15), 1e6 * latency_[LEVELS - 1], 1e-9 / most(byte_[LEVELS - 1], 1e-15));
}

}  // namespace fairlead
