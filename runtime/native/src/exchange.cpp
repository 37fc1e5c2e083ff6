#include "exchange.h"

#include "lane.h"

namespace fairlead {
namespace {

constexpr double AFTER_S = 1.5;  // of waiting; most waits are shorter
constexpr double FLUSH_S = 3;    // limit for the delivery of this rank's report; afterwards it fails, and may end

bool same(const Standing &a, const Standing &b) { return a.size() == b.size() && !memcmp(&a, &b, a.size()); }

}  // namespace

int Exchange::open(Mpi &mpi, Mpi::Handle from, const World &world, Error *error) {
    mpi_ = &mpi, world_ = &world;
    if (int bad = mpi.check(mpi.Comm_dup(from, &comm_), "MPI_Comm_dup", error)) return bad;
    return mpi.check(mpi.Comm_set_errhandler(comm_, mpi.errors_return), "MPI_Comm_set_errhandler", error);
}

int Exchange::close(Error *error) {
    if (!comm_) return 0;
    Lock lock(mutex_);
    int64_t mine[2] = {sent_to_first_, spread_}, all[2] = {};
    {
        const MpiTurn turn(*mpi_);
        if (int bad = mpi_->check(mpi_->Allreduce(mine, all, 2, mpi_->i64, mpi_->sum, comm_), "MPI_Allreduce", error)) return bad;
    }
    while (world_->rank == 0 ? taken_ < all[0] : all[1] && !heard_) {
        if (take_one() == VERDICT) heard_ = true;
        sched_yield();
    }
    while (under_way_ || told_under_way_) {
        if (under_way_) under_way_ = !gone(&on_way_);
        if (told_under_way_) told_under_way_ = !gone(&told_way_);
        sched_yield();
    }
    return mpi_->check(mpi_->Comm_free(&comm_), "MPI_Comm_free", error);
}

// --- messages --------------------------------------------------------------------------------

// Receives one message, if there is one; returns its tag. Never waits for the rest of a message whose head has
// come.
int Exchange::take_one() {
    for (const int tag : {VERDICT, STANDING}) {
        if (taking_ || (tag == STANDING && world_->rank)) continue;
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
    taking_ = 0, taken_++;
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

Standing Exchange::standing() const {
    const Watch &watch = *world_->watch;
    Standing mine = {};
    mine.rank = world_->rank, mine.lanes = load(&watch.count);
    const Seat &seat = watch.lanes[0]->segment().mine();
    mine.blocked = load(&seat.blocked), mine.ended = load(&watch.ended);
    for (int i = 0; i < mine.lanes; i++) {
        const Lane &lane = *watch.lanes[i];
        mine.come[i] = lane.come();
        const uint64_t call = lane.awaited();
        if (call && mine.waiting < Standing::MOST_WAITS) mine.waits[mine.waiting++] = {uint32_t(i), uint32_t(lane.kind()), call};
    }
    return mine;
}

int Exchange::look(double waited, Error *error) {
    if (!comm_ || pthread_mutex_trylock(&mutex_)) return 0;
    int bad = 0;
    const bool first = world_->rank == 0, late = waited >= AFTER_S;
    if (!judged_) bad = take(error);
    if (!bad && !judged_ && first && late) bad = judge(error);
    if (!bad && !judged_ && !first && late) {
        if (under_way_) under_way_ = !gone(&on_way_);
        const Standing mine = standing();
        if (!under_way_ && !same(mine, sent_)) {
            sent_ = mine;
            under_way_ = !send(&sent_, sent_.size(), 0, STANDING, &on_way_);
            sent_to_first_ += under_way_;
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

int Exchange::take(Error *error) {
    for (int tag; (tag = take_one());) {
        if (tag == VERDICT) {
            found_ = inbox_.verdict;
            judged_ = heard_ = true;
            if (world_->rank == 0) spread();
            return 0;
        }
        if (!each_.count()) {
            if (!each_.room(size_t(world_->size))) return error->set(FAIRLEAD_NO_MEMORY, "no memory for where %d ranks stand", world_->size);
            for (int i = 0; i < world_->size; i++) each_[size_t(i)].rank = -1;
        }
        each_[size_t(inbox_.standing.rank)] = inbox_.standing;
        fresh_ = true;
    }
    return 0;
}

// --- judging, on rank 0 ------------------------------------------------------------------------

const Standing *Exchange::of(int rank) {
    if (rank == 0) return &sent_;
    const Standing *one = each_.count() ? &each_[size_t(rank)] : nullptr;
    return one && one->rank >= 0 ? one : nullptr;
}

// A report was true when it was sent. It still is if the ranks wait for each other in a circle: the first to go on
// would need a call that comes after the one its peer reported.
int Exchange::judge(Error *error) {
    const Standing mine = standing();
    if (!each_.count() || (!fresh_ && same(mine, sent_))) return 0;
    sent_ = mine, fresh_ = false;
    int bad = left(error);
    if (!bad) bad = crossed(error);
    if (!bad) return 0;
    judged_ = true;
    found_ = *error;
    spread();
    return bad;
}

int Exchange::crossed(Error *error) {
    constexpr uint64_t CALL = (uint64_t(1) << 48) - 1;
    constexpr int MOST = 32;
    // Ranks whose only thread waits for the same call form a group.
    uint64_t places[MOST];
    int some[MOST], held[MOST][MOST], groups = 0;  // one rank of each; a rank of the group that has not come to this one's call
    uint32_t waits[MOST] = {};
    for (int pass = 0; pass < 2; pass++)
        for (int r = 0; r < world_->size; r++) {
            const Standing *one = of(r);
            if (!one || !one->blocked) continue;
            int g = 0;
            while (g < groups && places[g] != one->blocked) g++;
            if (g == MOST) continue;
            if (g == groups) places[g] = one->blocked, some[g] = r, groups++;
            for (int other = 0; pass && other < groups; other++)
                if (other != g && one->call_of(uint32_t(places[other] >> 48)) < (places[other] & CALL) && !(waits[other] >> g & 1)) waits[other] |= uint32_t(1) << g, held[other][g] = r;
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

// Whether a team waits for a rank that has called finalize: in each lane, the one of them that came to the fewest calls
// stands for all. One pass over the ranks, for many wait in finalize for a slow one.
int Exchange::left(Error *error) {
    struct {
        uint64_t come;
        int rank;
    } ended[Standing::MOST_LANES];
    const int lanes = load(&world_->watch->count);
    for (int i = 0; i < lanes; i++) ended[i] = {~uint64_t(0), -1};
    for (int r = 0; r < world_->size; r++) {
        const Standing *gone = of(r);
        for (int i = 0; gone && gone->ended && i < lanes; i++)
            if (gone->call_of(uint32_t(i)) < ended[i].come) ended[i] = {gone->call_of(uint32_t(i)), r};
    }
    for (int r = 0; r < world_->size; r++) {
        const Standing *one = of(r);
        for (uint32_t i = 0; one && i < one->waiting; i++) {
            const Standing::At &at = one->waits[i];
            if (at.lane == 0 || int(at.lane) >= lanes || ended[at.lane].come >= at.call) continue;
            const int q = ended[at.lane].rank;
            return error->by(q, FAIRLEAD_DIFFER, "rank %d (%s) called finalize while rank %d (%s) called %s: call %llu of %s", q, world_->host(q), r, world_->host(r), kind_name(at.kind),
                              static_cast<unsigned long long>(at.call), world_->watch->lanes[at.lane]->name());
        }
    }
    return 0;
}

// --- reporting -------------------------------------------------------------------------------

// Sends `found_` to every other rank; those that wait receive it at once.
void Exchange::spread() {
    if (spread_ || !ways_.room(size_t(world_->size))) return;
    spread_ = true;
    told_ = found_;
    Room<bool> under_way;
    if (!under_way.room(size_t(world_->size))) return;
    int left = 0;
    // A send to a node that is gone can end this process (UCX over TCP, in MPICH 5).
    Watch &watch = *world_->watch;
    const int lost = watch.lifeline.lost();
    const int gone_node = lost < 0 ? -1 : watch.lanes[0]->node_of(lost);
    for (int r = 0; r < world_->size; r++) {
        under_way[size_t(r)] = r != world_->rank && watch.lanes[0]->node_of(r) != gone_node && !send(&told_, sizeof told_, r, VERDICT, &ways_[size_t(r)]);
        left += under_way[size_t(r)];
    }
    for (const double begun = now_s(); left && now_s() - begun < FLUSH_S; sleep_us(200))
        for (int r = 0; r < world_->size; r++)
            if (under_way[size_t(r)] && gone(&ways_[size_t(r)])) under_way[size_t(r)] = false, left--;
}

void Exchange::report(const Error &error, bool first_is_gone) {
    if (!comm_) return;
    Lock lock(mutex_);
    if (judged_) return;
    judged_ = true;
    found_ = error;
    if (world_->rank == 0 || first_is_gone) return spread();
    told_ = found_;
    told_under_way_ = !send(&told_, sizeof told_, 0, VERDICT, &told_way_);
    sent_to_first_ += told_under_way_;
    // Rank 0's verdict to all shows that it has received the report.
    for (const double begun = now_s(); !heard_ && now_s() - begun < FLUSH_S; sleep_us(200)) {
        if (told_under_way_) told_under_way_ = !gone(&told_way_);
        if (take_one() == VERDICT) heard_ = true;
    }
}

size_t Exchange::missing(uint32_t lane, uint64_t call, char *to, size_t size) {
    to[0] = 0;
    if (!comm_ || pthread_mutex_trylock(&mutex_)) return 0;
    size_t used = 0;
    int left_out = 0;
    // Waiting ranks report to rank 0, which receives while it waits.
    for (int r = 0; r < (world_->rank ? int(under_way_) : world_->size); r++) {
        const Standing *one = world_->rank ? nullptr : of(r);
        if (r == world_->rank || (one && one->call_of(lane) >= call)) continue;
        if (used + 120 > size) left_out++;
        else used += size_t(snprintf(to + used, size - used, "%srank %d (%s)", used ? ", " : "", r, world_->host(r)));
    }
    if (left_out) used += size_t(snprintf(to + used, size - used, " and %d more", left_out));
    pthread_mutex_unlock(&mutex_);
    return used;
}

}  // namespace fairlead
