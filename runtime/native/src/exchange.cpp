#include "exchange.h"

#include "lane.h"

namespace fairlead {
namespace {

constexpr double AFTER_S = 1.5;  // of waiting; most waits are shorter
constexpr double FLUSH_S = 3;    // limit for the delivery of this rank's report; afterwards it fails, and may end

}  // namespace

int Exchange::open(Mpi &mpi, Mpi::Handle from, const World &world, Error *error) {
    mpi_ = &mpi, world_ = &world, rank_ = world.rank;
    Lane &all = *world.watch->lanes[0];
    nodes_ = all.nodes(), node_ = all.node_of(rank_);
    if (!firsts_.room(size_t(nodes_))) return error->set(FAIRLEAD_NO_MEMORY, "no memory for a table of %d nodes", nodes_);
    for (int r = world.size - 1; r >= 0; r--) firsts_[size_t(all.node_of(r))] = r;
    firsts_of_ = firsts_.at();
    if (first() && children()) {
        if (!each_.room(size_t(children()))) return error->set(FAIRLEAD_NO_MEMORY, "no memory for where %d nodes stand", children());
        for (int i = 0; i < children(); i++) each_[size_t(i)].rank = -1, each_[size_t(i)].last = 0;
    }
    if (int bad = mpi.check(mpi.Comm_dup(from, &comm_), "MPI_Comm_dup", error)) return bad;
    return mpi.check(mpi.Comm_set_errhandler(comm_, mpi.errors_return), "MPI_Comm_set_errhandler", error);
}

int Exchange::close(Error *error) {
    if (!comm_) return 0;
    Lock lock(mutex_);
    int64_t mine = spread_, any = 0;
    {
        const MpiTurn turn(*mpi_);
        if (int bad = mpi_->check(mpi_->Allreduce(&mine, &any, 1, mpi_->i64, mpi_->max, comm_), "MPI_Allreduce", error)) return bad;
    }
    // Each node's first rank says that nothing more will come from it, once all from below has come.
    Error ignored;
    ignored.clear();
    auto ended = [&] {
        for (int i = 0; first() && i < children(); i++)
            if (!each_[size_t(i)].last) return false;
        return !any || heard_ || spread_;
    };
    while (!ended()) {
        take(&ignored);
        sched_yield();
    }
    while (under_way_ || told_under_way_) {
        if (under_way_) under_way_ = !gone(&on_way_);
        if (told_under_way_) told_under_way_ = !gone(&told_way_);
        sched_yield();
    }
    if (first() && node_) {
        sent_.clear(rank_, 0);
        sent_.last = 1;
        under_way_ = !send(&sent_, sent_.size(), firsts_[size_t(Tree::parent(node_))], STANDING, &on_way_);
        while (under_way_) {
            under_way_ = !gone(&on_way_);
            sched_yield();
        }
    }
    return mpi_->check(mpi_->Comm_free(&comm_), "MPI_Comm_free", error);
}

// --- messages --------------------------------------------------------------------------------

// Receives one message, if there is one; returns its tag. Never waits for the rest of a message whose head has
// come.
int Exchange::take_one() {
    for (const int tag : {VERDICT, STANDING}) {
        if (taking_ || (tag == STANDING && !each_.count())) continue;
        int flag = 0;
        Mpi::Handle message = 0;
        const MpiTurn turn(*mpi_);
        // A matched probe receives exactly the message that was seen. (With Iprobe and Irecv from any source,
        // MPICH 5 over UCX's TCP reported the message each time and never received it.)
        if (mpi_->Improbe(mpi_->any_source, tag, comm_, &flag, &message, mpi_->no_status) || !flag) continue;
        if (!mpi_->Imrecv(&inbox_, int(sizeof inbox_), mpi_->byte, &message, &taking_way_)) taking_ = tag;
    }
    if (!taking_ || !gone(&taking_way_)) return 0;
    const int taken = taking_;
    taking_ = 0;
    return taken;
}

int Exchange::send(const void *from, size_t size, int to, int tag, Mpi::Handle *request) {
    const MpiTurn turn(*mpi_);
    return mpi_->Issend(from, int(size), mpi_->byte, to, tag, comm_, request);
}

bool Exchange::gone(Mpi::Handle *request) {
    int flag = 0;
    const MpiTurn turn(*mpi_);
    return mpi_->Test(request, &flag, mpi_->no_status) || flag;
}

// --- looking ---------------------------------------------------------------------------------

// This node's ranks, as the seats show them, and what the nodes below have said.
void Exchange::stand() {
    const Watch &watch = *world_->watch;
    const Segment &here = watch.lanes[0]->segment();
    now_.clear(rank_, load(&watch.count));
    for (int i = 0; i < now_.lanes; i++) {
        const Segment &lane = watch.lanes[i]->segment();
        const bool shared = lane.ranks() == here.ranks();  // a team may have got no shared memory
        for (int place = 0; place < here.ranks(); place++) {
            if (!shared && place != here.place()) continue;
            const Seat &seat = shared ? lane.seat(place) : lane.mine();
            const uint64_t come = most(load(&seat.arrived), load(&seat.promised)), awaited = load(&seat.awaited);
            now_.add(here.seat(place).rank, i, come, load(&seat.ended) == FINALIZED, awaited, uint32_t(load(&seat.kind)), load(&here.seat(place).blocked));
        }
    }
    for (int i = 0; i < children(); i++) {
        if (each_[size_t(i)].rank < 0) now_.miss(firsts_[size_t(Tree::first_child(node_) + i)]);
        else now_.join(each_[size_t(i)]);
    }
}

int Exchange::look(double waited, Error *error) {
    if (!comm_ || pthread_mutex_trylock(&mutex_)) return 0;
    int bad = 0;
    if (!judged_) bad = take(error);
    if (!bad && !judged_ && first() && waited >= AFTER_S) {
        if (under_way_) under_way_ = !gone(&on_way_);
        if (!under_way_) {
            stand();
            if (!now_.same(sent_)) {
                memcpy(static_cast<void *>(&sent_), &now_, now_.size());
                if (node_ == 0) bad = judge(error);
                else under_way_ = !send(&sent_, sent_.size(), firsts_[size_t(Tree::parent(node_))], STANDING, &on_way_);
            }
        }
    }
    if (!bad && judged_) *error = found_, bad = found_.status;
    pthread_mutex_unlock(&mutex_);
    return bad;
}

int Exchange::verdict(Error *error) {
    if (!comm_) return 0;
    Lock lock(mutex_);
    if (!judged_)
        if (int bad = take(error)) return bad;
    if (judged_) *error = found_;
    return judged_ ? found_.status : 0;
}

int Exchange::take(Error *) {
    for (int tag; (tag = take_one());) {
        if (tag == VERDICT) {
            found_ = inbox_.verdict;
            judged_ = heard_ = true;
            spread();
            return 0;
        }
        for (int i = 0; i < children(); i++)
            if (firsts_[size_t(Tree::first_child(node_) + i)] == inbox_.standing.rank) memcpy(static_cast<void *>(&each_[size_t(i)]), &inbox_.standing, inbox_.standing.size());
    }
    return 0;
}

// --- judging, on rank 0 ------------------------------------------------------------------------

// A report was true when it was sent. It still is if the ranks wait for each other in a circle: the first to go on
// would need a call that comes after the one its peer reported.
int Exchange::judge(Error *error) {
    int bad = left(sent_, error);
    if (!bad) bad = crossed(sent_, error);
    if (!bad) return 0;
    judged_ = true;
    found_ = *error;
    spread();
    return bad;
}

int Exchange::crossed(const Standing &all, Error *error) {
    constexpr uint64_t CALL = (uint64_t(1) << 48) - 1;
    constexpr int MOST = Standing::MOST_GROUPS;
    const int groups = all.groups;
    // Of each group: one rank; the groups it waits for, and in each a rank that has not come to its call.
    uint64_t places[MOST];
    int some[MOST], held[MOST][MOST];
    uint32_t waits[MOST] = {};
    for (int g = 0; g < groups; g++) places[g] = all.group[g].place, some[g] = int(all.group[g].rank);
    for (int other = 0; other < groups; other++) {
        const int lane = int(places[other] >> 48);
        for (int g = 0; g < groups && lane < all.lanes; g++) {
            const Standing::At &at = all.rows[lane].groups[g];
            if (g != other && at.rank >= 0 && at.call < (places[other] & CALL)) waits[other] |= uint32_t(1) << g, held[other][g] = at.rank;
        }
    }
    uint32_t reached[MOST];
    memcpy(reached, waits, sizeof reached);
    for (int k = 0; k < groups; k++)
        for (int i = 0; i < groups; i++)
            if (reached[i] >> k & 1) reached[i] |= reached[k];
    for (int g = 0; g < groups; g++) {
        if (!(reached[g] >> g & 1)) continue;
        for (int other = 0; other < groups; other++) {
            if (!(waits[g] >> other & 1) || !(reached[other] >> g & 1)) continue;
            const int there = held[g][other], here = waits[other] >> g & 1 ? held[other][g] : some[g];
            const Lane &a = *world_->watch->lanes[places[other] >> 48], &b = *world_->watch->lanes[places[g] >> 48];
            return error->set(FAIRLEAD_DIFFER, "rank %d (%s) waits in call %llu of %s while rank %d (%s) waits in call %llu of %s: one of them has skipped a call or added one", there, world_->host(there),
                              static_cast<unsigned long long>(places[other] & CALL), a.name(), here, world_->host(here), static_cast<unsigned long long>(places[g] & CALL), b.name());
        }
    }
    return 0;
}

// Whether a team waits for a rank that has called finalize.
int Exchange::left(const Standing &all, Error *error) {
    for (int i = 1; i < all.lanes; i++) {
        const Standing::At &ended = all.rows[i].ended, &at = all.rows[i].waits;
        if (ended.rank < 0 || at.rank < 0 || ended.call >= at.call) continue;
        return error->by(ended.rank, FAIRLEAD_DIFFER, "rank %d (%s) called finalize while rank %d (%s) called %s: call %llu of %s", ended.rank, world_->host(ended.rank), at.rank, world_->host(at.rank), kind_name(at.kind),
                          static_cast<unsigned long long>(at.call), world_->watch->lanes[i]->name());
    }
    return 0;
}

// --- reporting -------------------------------------------------------------------------------

// The ranks that a node notifies: its own, and the first of the nodes below. If that one is gone, this node notifies
// the ranks below it.
template <class Tell> void Exchange::below(int node, int gone, Tell &&tell) {
    Lane &all = *world_->watch->lanes[0];
    for (int r = firsts_[size_t(node)] + 1; r < world_->size; r++)
        if (all.node_of(r) == node && r != gone) tell(r);
    for (int child = Tree::first_child(node); child < Tree::end_of_children(node, nodes_); child++) {
        if (firsts_[size_t(child)] == gone) below(child, gone, tell);
        else tell(firsts_[size_t(child)]);
    }
}

// Sends `found_` down the tree, or down all of it if this rank acts for rank 0; ranks that wait receive it at once.
void Exchange::spread(bool for_first) {
    if (spread_ || (!first() && !for_first)) return;
    spread_ = true;
    told_ = found_;
    Watch &watch = *world_->watch;
    // A send to a node that is gone can end this process (UCX over TCP, in MPICH 5).
    const int gone_rank = found_.status == FAIRLEAD_PEER_LOST ? found_.culprit : -1;
    const int lost = watch.lifeline.lost(), gone_node = lost < 0 ? -1 : watch.lanes[0]->node_of(lost);
    int ranks[MOST_TOLD], count = 0;
    auto tell = [&](int rank) {
        if (rank != rank_ && watch.lanes[0]->node_of(rank) != gone_node && count < MOST_TOLD) ranks[count++] = rank;
    };
    if (for_first) below(0, gone_rank, tell);
    if (first() && !(for_first && node_ == 0)) below(node_, gone_rank, tell);
    Room<bool> under_way;
    if (!ways_.room(size_t(count) + 1) || !under_way.room(size_t(count) + 1)) return;
    int left = 0;
    for (int i = 0; i < count; i++) {
        under_way[size_t(i)] = !send(&told_, sizeof told_, ranks[i], VERDICT, &ways_[size_t(i)]);
        left += under_way[size_t(i)];
    }
    for (const double begun = now_s(); left && now_s() - begun < FLUSH_S; sleep_us(200))
        for (int i = 0; i < count; i++)
            if (under_way[size_t(i)] && gone(&ways_[size_t(i)])) under_way[size_t(i)] = false, left--;
}

void Exchange::report(const Error &error, bool first_is_gone) {
    if (!comm_) return;
    Lock lock(mutex_);
    if (judged_) return;
    judged_ = true;
    found_ = error;
    if (rank_ == 0 || first_is_gone) return spread(first_is_gone);
    told_ = found_;
    told_under_way_ = !send(&told_, sizeof told_, 0, VERDICT, &told_way_);
    // Rank 0's verdict to all shows that it has received the report.
    for (const double begun = now_s(); !heard_ && now_s() - begun < FLUSH_S; sleep_us(200)) {
        if (told_under_way_) told_under_way_ = !gone(&told_way_);
        if (take_one() == VERDICT) heard_ = true;
    }
    spread();
}

size_t Exchange::missing(uint32_t lane, uint64_t call, char *to, size_t size) {
    to[0] = 0;
    if (!comm_ || pthread_mutex_trylock(&mutex_)) return 0;
    size_t used = 0;
    int left_out = 0;
    auto name = [&](int r) {
        if (used + 120 > size) left_out++;
        else used += size_t(snprintf(to + used, size - used, "%srank %d (%s)", used ? ", " : "", r, world_->host(r)));
    };
    // Who waits receives.
    if (under_way_) name(firsts_[size_t(Tree::parent(node_))]);
    for (int i = 0; first() && i < children(); i++) {
        const Standing &one = each_[size_t(i)];
        const Standing::Row *row = one.rank >= 0 && int(lane) < one.lanes ? &one.rows[lane] : nullptr;
        if (!row || row->own < call) name(firsts_[size_t(Tree::first_child(node_) + i)]);
        else if (row->least.call < call) name(row->least.rank);
    }
    if (left_out) used += size_t(snprintf(to + used, size - used, " and %d more", left_out));
    pthread_mutex_unlock(&mutex_);
    return used;
}

}  // namespace fairlead
