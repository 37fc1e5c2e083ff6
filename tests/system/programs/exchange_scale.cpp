// What rank 0 makes of where NODES nodes stand, one rank each, as they report it up the tree: when all have come to
// finalize but one, as after a checkpoint; when one waits in a team for one that has ended; when three wait for each
// other; and when one is late. Compiled with the core's sources, without ranks.
//
//   exchange_scale NODES
#define private public
#include "lane.h"
#undef private

#include "exchange.h"

using namespace fairlead;

namespace {

constexpr int LANES = 3;

struct Rank {
    uint64_t come[LANES], awaited, place;
    int lane, kind;
    bool ended, silent;
};

Room<Rank> ranks;
int nodes, messages, most_children, depth;

Standing stand(int node, int level) {
    depth = most(depth, level);
    Standing one;
    one.clear(node, LANES);
    const Rank &rank = ranks[size_t(node)];
    for (int i = 0; i < LANES; i++) one.add(node, i, rank.come[i], rank.ended, rank.lane == i ? rank.awaited : 0, uint32_t(rank.kind), rank.place);
    int children = 0;
    for (int child = Tree::first_child(node); child < Tree::end_of_children(node, nodes); child++, children++) {
        const Standing part = stand(child, level + 1);
        if (ranks[size_t(child)].silent) one.miss(child);
        else one.join(part), messages++;
    }
    most_children = most(most_children, children);
    return one;
}

}  // namespace

int main(int, char **argv) {
    nodes = atoi(argv[1]);
    Room<char> hosts;
    static Lane lanes[LANES];
    static Watch watch;
    if (!hosts.room(size_t(nodes) * 64) || !ranks.room(size_t(nodes))) return 1;
    memset(hosts.at(), 0, size_t(nodes) * 64);
    World world = {0, nodes, &watch, nullptr, hosts.at()};
    for (int i = 0; i < LANES; i++) watch.lanes[i] = &lanes[i], snprintf(lanes[i].name_, sizeof lanes[i].name_, "team %d", i);
    watch.count = LANES;
    Exchange &exchange = watch.exchange;
    exchange.world_ = &world;
    Error error;
    const int late = 7, least_of_all = nodes - 3;
    auto all = [&](Rank rank) {
        for (int r = 0; r < nodes; r++) ranks[size_t(r)] = rank;
        messages = most_children = depth = 0;
        error.clear();
    };
    auto judge = [&] {
        const Standing root = stand(0, 0);
        const int bad = exchange.left(root, &error);
        return bad ? bad : exchange.crossed(root, &error);
    };
    const Rank in_finalize = {{5, 4, 4}, 5, uint64_t(0) << 48 | 5, 0, FINALIZE, true, false};
    all(in_finalize);
    ranks[late] = {{4, 4, 4}, 0, 0, 0, 0, false, true};
    if (judge()) return 2;
    const Standing waiting = stand(0, 0);
    printf("late: rank %d; %d levels, %d messages to a rank at most, %d in all\n", waiting.rows[0].least.rank, depth, most_children, messages / 2);
    all(in_finalize);
    ranks[late] = {{4, 4, 5}, 5, uint64_t(2) << 48 | 5, 2, AGGREGATE, false, false};
    ranks[size_t(least_of_all)].come[2] = 3;  // the one that has come to the fewest calls
    if (judge() != FAIRLEAD_DIFFER) return 3;
    puts(error.text);
    all({{1, 0, 0}, 0, 0, 0, 0, false, false});
    for (int i = 0; i < LANES; i++) {
        Rank &one = ranks[size_t(nodes / 2 + i)];
        one = {{0, 0, 0}, 1, uint64_t(i) << 48 | 1, i, AGGREGATE, false, false};
        one.come[i] = 1;
    }
    if (judge() != FAIRLEAD_DIFFER) return 4;
    puts(error.text);
    // One node below another that is late as well: the upper one is named until it comes.
    all({{5, 5, 5}, 5, uint64_t(1) << 48 | 5, 1, AGGREGATE, false, false});
    const int above = Tree::parent(Tree::parent(least_of_all));
    ranks[size_t(least_of_all)] = {{5, 3, 5}, 0, 0, 0, 0, false, true};
    ranks[size_t(above)].come[1] = 4;
    if (judge()) return 5;
    printf("late: rank %d, then", stand(0, 0).rows[1].least.rank);
    ranks[size_t(above)].come[1] = 5;
    printf(" rank %d\n", stand(0, 0).rows[1].least.rank);
    return 0;
}
