// What rank 0 makes of the reports of 65,536 ranks that have all come to finalize but one, as after a checkpoint; and of
// those of a rank that waits in a team for one that has ended. Compiled with the core's sources, without ranks.
#define private public
#include "lane.h"
#undef private

#include "exchange.h"

using namespace fairlead;

int main() {
    constexpr int RANKS = 65536, LANES = 3;
    Room<char> hosts;
    static Lane lanes[LANES];
    static Watch watch;
    hosts.room(size_t(RANKS) * 64);
    memset(hosts.at(), 0, size_t(RANKS) * 64);
    World world = {0, RANKS, &watch, nullptr, hosts.at()};
    for (int i = 0; i < LANES; i++) watch.lanes[i] = &lanes[i], snprintf(lanes[i].name_, sizeof lanes[i].name_, "team %d", i);
    watch.count = LANES;
    Exchange &exchange = watch.exchange;
    exchange.world_ = &world;
    exchange.sent_.rank = 0, exchange.sent_.lanes = LANES, exchange.sent_.ended = 1;
    exchange.each_.room(RANKS);
    for (int r = 0; r < RANKS; r++) {
        Standing &one = exchange.each_[size_t(r)];
        one = {};
        one.rank = r, one.lanes = LANES, one.ended = r != 7, one.waiting = 1;
        one.waits[0] = {0, FINALIZE, 5};
        for (int i = 0; i < LANES; i++) one.come[i] = 4;
    }
    for (uint64_t &come : exchange.sent_.come) come = 4;
    Error error;
    error.clear();
    for (int look = 0; look < 20; look++)
        if (exchange.left(&error)) return 1;
    Standing &late = exchange.each_[7];
    late.waits[0] = {2, AGGREGATE, 5};
    exchange.each_[40000].come[2] = 3;  // the one that has come to the fewest calls
    if (exchange.left(&error) != FAIRLEAD_DIFFER) return 2;
    puts(error.text);
    return 0;
}
