#include "lane.h"

#include <fcntl.h>

namespace fairlead {

__thread int (*Watch::go_on)(void);

const char *kind_name(uint64_t kind) {
    switch (kind & 0xff) {
        case AGGREGATE:
            if (kind >> 8 & FAIRLEAD_ANY) return kind >> 8 & 1 ? "aggregate (mean, any values)" : "aggregate (sum, any values)";
            return kind >> 8 & 1 ? "aggregate (mean)" : "aggregate (sum)";
        case BROADCAST: return "broadcast";
        case FINALIZE: return "finalize";
        case BARRIER: return "barrier";
        case AVERAGE: return "average";
        case MATCH: return "match";
        case TEAM: return "team";
        case GATHER: return "gather";
        case ALLOC: return "alloc";
    }
    return "?";
}

namespace {

const char *form_name(uint64_t form) {
    static const char *const names[] = {"float32", "float64", "float16", "bfloat16", "int32", "int64", "bytes"};
    return form < 7 ? names[form] : "?";
}

// What ranks must agree on for a tensor: dtype and shape, number of elements.
struct Row {
    uint64_t form, count;
};
Row row_of(const fairlead_tensor &t) { return {uint32_t(t.dtype) | uint64_t(uint32_t(t.shape)) << 32, t.count}; }

uint64_t rounded_up(uint64_t value, uint64_t to) { return (value + to - 1) / to * to; }

// Elements [from, to) of a stream, divided into a share for each rank.
struct Chunk {
    uint64_t from, to;
    int ranks;
    uint64_t share() const { return rounded_up((to - from + uint64_t(ranks) - 1) / uint64_t(ranks), 64); }
    uint64_t begin(int place) const { return least(from + share() * uint64_t(place), to); }
    uint64_t end(int place) const { return begin(place + 1); }
};

// Between nodes: a result larger than this exceeds a core's share of the caches. It is written with non-temporal stores,
// which keep the exchanged chunks cached and need not read the old contents.
constexpr size_t PAST = size_t(4) << 20;

constexpr uint64_t SEVERAL = 8;

// Tags of what moves between nodes: of chunks, of which few are under way at once, and of agreements.
constexpr uint64_t CHUNK_TAGS = 4096;
constexpr int AGREEMENT_TAG = 8192;

// Of marks: 0 where not all are the same.
void alike(void *to, const void *lower, const void *higher, size_t count, Form) {
    for (size_t i = 0; i < count; i++) {
        int64_t a = 0, b = 0;
        memcpy(&a, static_cast<const char *>(lower) + i * sizeof a, sizeof a), memcpy(&b, static_cast<const char *>(higher) + i * sizeof b, sizeof b);
        if (a != b) a = 0;
        memcpy(static_cast<char *>(to) + i * sizeof a, &a, sizeof a);
    }
}

// Between nodes ranks sum in place what is worth a message for each of its tensors.
constexpr uint64_t LEAST_SHARED = 256 << 10, LEAST_OF_EACH = 64 << 10, PIECE = 1 << 20;

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

}  // namespace

double number_of(const char *name, double other, const char **bad) {
    const char *text = getenv(name);
    if (!text || !*text) return other;
    char *end = nullptr;
    double value = strtod(text, &end);
    if (*end || !(value >= 0 && value <= 1e9)) *bad = name;  // in the range of an int
    return value;
}

int Settings::read(Error *error) {
    const char *bad = nullptr;
    stall_s = number_of("FAIRLEAD_COMM_STALL_S", 20, &bad);
    timeout_s = number_of("FAIRLEAD_COMM_TIMEOUT_S", 0, &bad);
    spin_us = long(number_of("FAIRLEAD_COMM_SPIN_US", 100, &bad));
    poll_us = long(number_of("FAIRLEAD_COMM_POLL_US", 100, &bad));
    chunk = size_t(number_of("FAIRLEAD_COMM_CHUNK_KB", 768, &bad) * 1024);
    const char *kilobytes = getenv("FAIRLEAD_COMM_CHUNK_KB"), *stores = getenv("FAIRLEAD_COMM_NONTEMPORAL");
    chunk_fixed = kilobytes && *kilobytes;
    past = stores && *stores && strcmp(stores, "auto") ? number_of("FAIRLEAD_COMM_NONTEMPORAL", 0, &bad) != 0 : -1;
    node_ranks = int(number_of("FAIRLEAD_COMM_NODE_RANKS", 0, &bad));
    shared_memory = number_of("FAIRLEAD_COMM_SHARED_MEMORY", 1, &bad) != 0;
    const char *asked = getenv("FAIRLEAD_COMM_NONFINITE");
    nonfinite = !asked || !*asked || !strcmp(asked, "warn") ? WARN : !strcmp(asked, "stop") ? STOP : IGNORE;
    if (nonfinite == IGNORE && strcmp(asked, "ignore")) return error->set(FAIRLEAD_BAD_CALL, "FAIRLEAD_COMM_NONFINITE=%.100s is not warn, stop or ignore", asked);
    lifeline = number_of("FAIRLEAD_COMM_LIFELINE", 1, &bad) != 0;
    timeline_mb = number_of("FAIRLEAD_COMM_TIMELINE_MB", 8, &bad);
    timeline_chunks = number_of("FAIRLEAD_COMM_TIMELINE_CHUNKS", 0, &bad) != 0;
    deterministic = number_of("FAIRLEAD_COMM_DETERMINISTIC", 0, &bad) != 0;
    const char *named = getenv("FAIRLEAD_COMM_ALGORITHM");
    const int known = !named || !*named ? AUTO : algorithm_of(named);
    if (known < 0) return error->set(FAIRLEAD_BAD_CALL, "FAIRLEAD_COMM_ALGORITHM=%.100s is not auto, mpi, doubling, halving, ring or groups", named);
    algorithm = Algorithm(known);
    if (bad) return error->set(FAIRLEAD_BAD_CALL, "%s=%s is not a number from 0 to 1000000000", bad, getenv(bad));
    if (chunk < 4096 || chunk > (size_t(1) << 28))
        return error->set(FAIRLEAD_BAD_CALL, "FAIRLEAD_COMM_CHUNK_KB=%s is not between 4 and 262144", getenv("FAIRLEAD_COMM_CHUNK_KB"));
    chunk = rounded_up(chunk, 4096);
    return 0;
}

// --- Stream ----------------------------------------------------------------------------------

int Stream::set(const fairlead_tensor *tensors, uint64_t count, Form form, Error *error) {
    if (!pieces_.room(count + 1)) return error->set(FAIRLEAD_NO_MEMORY, "no memory for a list of %llu tensors", static_cast<unsigned long long>(count));
    count_ = elements_ = 0;
    form_ = form;
    for (uint64_t i = 0; i < count; i++)
        if (Form(tensors[i].dtype) == form && tensors[i].count) {
            pieces_[count_++] = {static_cast<const char *>(tensors[i].in), static_cast<char *>(tensors[i].out), elements_};
            elements_ += tensors[i].count;
        }
    pieces_[count_] = {nullptr, nullptr, elements_};
    return 0;
}

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

uint64_t Stream::shared_at(const Tensors &tensors, const Areas &areas) {
    uint64_t mark = 1;
    for (uint64_t i = 0; i < tensors.count; i++) {
        const fairlead_tensor &t = tensors.at[i];
        const size_t bytes = t.count * width(Form(t.dtype));
        if (!bytes) continue;
        for (const void *at : {t.in, static_cast<const void *>(t.out)}) {
            const Area *area = areas.of(at, bytes);
            if (!area) return 0;
            mark = mixed(mixed(mark, area->id), uint64_t(static_cast<const char *>(at) - area->at));
        }
    }
    return mark | 1;
}

// --- waiting ---------------------------------------------------------------------------------

// What a call does while it cannot proceed: spin, then yield, then sleep.
class Lane::Wait {
  public:
    Wait(Lane &lane, bool helper, uint64_t kind) : lane_(lane), helper_(helper), kind_(kind) {}
    ~Wait() { moved(); }
    bool network = false;  // a request is in flight, which completes only when polled
    // The counter waited for, for messages, and whose: one seat's, or every seat's (-1).
    uint64_t Seat::*counter = &Seat::arrived;
    uint64_t wanted = 0;
    int whose = -1;

    void moved() {
        if (armed_) store(&lane_.segment_.mine().waiting, uint32_t(0));
        armed_ = false;
        turns_ = 0;
        if (shown_) store(&lane_.segment_.mine().awaited, uint64_t(0)), shown_ = false;
    }
    int idle(Error *error) {
        if (++turns_ == 1) {
            begun_ = now_s();
            lane_.segment_.ring(true);
        }
        const long spin_us = helper_ || lane_.world_->watch->crowded ? 0 : lane_.settings_->spin_us;
        if (turns_ < 128 && spin_us) {
            // A pause may take 140 cycles, as long as the transfer of a cache line; spin without it at first.
            if (turns_ > 32) relax();
            return 0;
        }
        const double now = now_s();
        if ((now - begun_) * 1e6 < double(spin_us)) {
            for (int i = 0; i < 8; i++) relax();
            return 0;
        }
        if (!helper_ && yields_++ % 16 < 8) {
            sched_yield();
            return look(now, error);
        }
        if (network) sleep_us(helper_ ? lane_.settings_->poll_us : 20);
        else sleep();
        return look(now, error);
    }

  private:
    // The caller looks once more between setting `waiting` and sleeping: it sees what came before, and what comes
    // later rings.
    void sleep() {
        Seat &mine = lane_.segment_.mine();
        if (!armed_) {
            bell_ = load(&mine.bell);
            store(&mine.waiting, uint32_t(1));
            __atomic_thread_fence(__ATOMIC_SEQ_CST);
            armed_ = true;
        } else {
            futex_wait(&mine.bell, bell_, 2000);
            store(&mine.waiting, uint32_t(0));
            armed_ = false;
        }
    }

    int look(double now, Error *error) {
        if (now - looked_ < 0.1) return 0;
        looked_ = now;
        Exchange &others = lane_.world_->watch->exchange;
        if (int bad = look_here(now, error)) {
            if (bad == FAIRLEAD_DIFFER || bad == FAIRLEAD_PEER_LOST) others.report(*error, gone_ == 0);
            return bad;
        }
        if (const int bad = node_gone(now, error)) {
            others.report(*error, gone_ == 0);
            return bad;
        }
        if (agrees() && !shown_) {
            store(&lane_.segment_.mine().kind, kind_), store(&lane_.segment_.mine().awaited, wanted);
            shown_ = true;
        }
        return others.look(now - begun_, error);
    }

    // Whether all ranks of another node have ended. Ranks that were notified of an error first are not lost: the
    // notification is on its way here, or another thread has received it.
    int node_gone(double now, Error *error) {
        const World &world = *lane_.world_;
        const int rank = world.watch->lifeline.lost();
        if (rank < 0) return 0;
        if (world.watch->lifeline.came(lane_.id_, lane_.calls_)) return 0;  // it has done its part
        if (gone_since_ == 0) gone_since_ = now;
        if (now - gone_since_ < GRACE_S) return 0;
        if (const int bad = world.watch->exchange.verdict(error)) return bad;
        gone_ = rank;
        const char *what = world.watch->lifeline.silent() ? "rank %d (%s): its host cannot be reached; rank %d waits in %s, call %llu of %s" : "rank %d (%s) has ended without fairlead_comm_finalize; rank %d waits in %s, call %llu of %s";
        return error->by(rank, FAIRLEAD_PEER_LOST, what, rank, world.host(rank), world.rank, kind_name(kind_), static_cast<unsigned long long>(lane_.calls_), lane_.name_);
    }

    // What the seats of this node show.
    int look_here(double now, Error *error) {
        Segment &segment = lane_.segment_;
        const World &world = *lane_.world_;
        if (int bad = crossed(error)) return bad;
        for (int i = 0; i < segment.ranks(); i++) {
            const int rank = segment.seat(i).rank;
            if (counter == &Seat::agreed && i) continue;  // they have come
            if (load(&(segment.seat(i).*counter)) >= wanted) continue;
            uint32_t ended = load(&segment.seat(i).ended);
            // One that had come to this call before has done its part, or a thread of its is about to.
            if (ended == LEFT && most(load(&segment.seat(i).arrived), load(&segment.seat(i).promised)) >= lane_.calls_) ended = GOES_ON;
            if (ended) gone_ = rank;
            if (ended == FINALIZED && lane_.id_ == 0)
                return error->by(rank, FAIRLEAD_PEER_LOST, "rank %d (%s) ended after a call of its had failed; rank %d waits for it in %s, call %llu of %s", rank, world.host(rank), world.rank, kind_name(kind_),
                                  static_cast<unsigned long long>(lane_.calls_), lane_.name_);
            if (ended == FINALIZED)
                return error->by(rank, FAIRLEAD_DIFFER, "rank %d (%s) called finalize while rank %d (%s) called %s: call %llu of %s", rank, world.host(rank), world.rank, world.host(world.rank),
                                  kind_name(kind_), static_cast<unsigned long long>(lane_.calls_), lane_.name_);
            if (ended != LEFT && segment.alive(i)) continue;
            if (load(&(segment.seat(i).*counter)) >= wanted) continue;  // it came, then ended
            gone_ = rank;
            return error->by(rank, FAIRLEAD_PEER_LOST, "rank %d (%s) has ended without fairlead_comm_finalize; rank %d waits for it in %s, call %llu of %s", rank, world.host(rank), world.rank,
                              kind_name(kind_), static_cast<unsigned long long>(lane_.calls_), lane_.name_);
        }
        if (lane_.abandoned_ && load(lane_.abandoned_)) return error->set(FAIRLEAD_MPI_FAILED, "another part of the call failed");
        if (!helper_ && Watch::interrupted())
            return error->set(FAIRLEAD_INTERRUPTED, "rank %d (%s) was interrupted in %s, call %llu of %s", world.rank, world.host(world.rank), kind_name(kind_),
                              static_cast<unsigned long long>(lane_.calls_), lane_.name_);
        const double waited = now - begun_;
        const Settings &settings = *lane_.settings_;
        if (settings.stall_s > 0 && waited > settings.stall_s * double(warned_ + 1)) warn(waited);
        if (settings.timeout_s > 0 && waited > settings.timeout_s) {
            char who[400];
            missing(who, sizeof who);
            return error->set(FAIRLEAD_TIMEOUT, "rank %d (%s) waited %.0f s in %s, call %llu of %s, for %s", world.rank, world.host(world.rank), waited, kind_name(kind_),
                              static_cast<unsigned long long>(lane_.calls_), lane_.name_, who);
        }
        return 0;
    }

    // Whether another rank's only thread waits for this rank in another lane while this rank's only thread waits
    // for it here: a deadlock. Detected within a node; `Exchange` detects it between nodes.
    int crossed(Error *error) {
        Segment &segment = lane_.segment_;
        Watch &watch = *lane_.world_->watch;
        const Segment &first = watch.lanes[0]->segment_;
        if (counter != &Seat::arrived || first.ranks() != segment.ranks()) return 0;
        const uint64_t ours = load(&first.seat(first.place()).blocked);
        if (!ours || int(ours >> 48) != lane_.id_) return 0;
        for (int i = 0; i < segment.ranks(); i++) {
            const uint64_t theirs = load(&first.seat(i).blocked), call = theirs & CALL;
            const int other = int(theirs >> 48);
            if (!theirs || other == lane_.id_ || other >= load(&watch.count) || first.seat(i).rank != segment.seat(i).rank) continue;
            const Lane &there = *watch.lanes[other];
            if (load(&segment.seat(i).arrived) >= wanted || load(&segment.seat(i).promised) >= wanted) continue;
            if (load(&segment.seat(i).ended)) continue;  // reported as such, which is more specific
            const Seat &mine = there.segment_.seat(there.segment_.place());
            if (load(&mine.arrived) >= call || load(&mine.promised) >= call) continue;
            // Confirmed after a while: the first values may have been read at different times.
            if (i != crossed_with_ || theirs != crossed_) crossed_with_ = i, crossed_ = theirs, crossed_since_ = looked_;
            if (looked_ - crossed_since_ < 0.5 && segment.alive(i)) return 0;  // the other rank may report it first
            const World &world = *lane_.world_;
            const int rank = segment.seat(i).rank;
            return error->set(FAIRLEAD_DIFFER, "rank %d (%s) waits in call %llu of %s while rank %d (%s) waits in %s, call %llu of %s: one of them has skipped a call or added one", rank, world.host(rank),
                              static_cast<unsigned long long>(call), there.name_, world.rank, world.host(world.rank), kind_name(kind_), static_cast<unsigned long long>(lane_.calls_), lane_.name_);
        }
        crossed_with_ = -1;
        return 0;
    }

    // Waits for the agreement, of this node's ranks or of all nodes.
    bool agrees() const { return counter == &Seat::arrived || counter == &Seat::agreed; }

    // The first rank of this node, which waits for other nodes, is not what is missing.
    bool awaits(int place) const {
        if (counter == &Seat::agreed) return false;
        const uint64_t has = load(&(lane_.segment_.seat(place).*counter));
        return (whose < 0 || whose == place) && has < wanted;
    }

    void missing(char *to, size_t size) {
        Segment &segment = lane_.segment_;
        size_t used = 0;
        int left_out = 0;
        to[0] = 0;
        for (int i = 0; i < segment.ranks(); i++) {
            if (i == segment.place() || !awaits(i)) continue;
            const int rank = segment.seat(i).rank;
            if (used + 120 > size) left_out++;
            else used += size_t(snprintf(to + used, size - used, "%srank %d (%s)", used ? ", " : "", rank, lane_.world_->host(rank)));
        }
        if (left_out) snprintf(to + used, size - used, " and %d more", left_out);
        else if (!used && !(agrees() && lane_.id_ >= 0 && lane_.world_->watch->exchange.missing(uint32_t(lane_.id_), wanted, to, size)))
            snprintf(to, size, "ranks on other hosts");
    }

    void warn(double waited) {
        warned_++;
        lane_.spend(&Spent::stalls, 1);
        // One rank of a node reports for all that wait.
        Segment &segment = lane_.segment_;
        for (int i = 0; i < segment.place(); i++)
            if (!awaits(i)) return;
        char who[400], line[900];
        missing(who, sizeof who);
        const World &world = *lane_.world_;
        int n = snprintf(line, sizeof line, "fairlead.comm: rank %d (%s) has waited %.0f s in %s (call %llu of %s) for %s\n", world.rank, world.host(world.rank), waited, kind_name(kind_),
                         static_cast<unsigned long long>(lane_.calls_), lane_.name_, who);
        if (n > 0 && write(2, line, least(size_t(n), sizeof line - 1)) < 0) return;
    }

    Lane &lane_;
    const bool helper_;
    const uint64_t kind_;
    long turns_ = 0, yields_ = 0;
    double begun_ = 0, looked_ = 0;
    int warned_ = 0;
    bool armed_ = false, shown_ = false;
    int gone_ = -1;  // the rank that was found to have ended
    uint32_t bell_ = 0;
    static constexpr uint64_t CALL = (uint64_t(1) << 48) - 1;
    int crossed_with_ = -1;
    uint64_t crossed_ = 0;
    double crossed_since_ = 0;
    static constexpr double GRACE_S = 1;
    double gone_since_ = 0;
};

template <class Ready> int Lane::until(Ready &&ready, Wait &wait, Error *error) {
    while (!ready())
        if (int bad = wait.idle(error)) return bad;
    wait.moved();
    return 0;
}

bool Lane::all(uint64_t Seat::*counter, uint64_t wanted) {
    // The rank that was late last time is likely to be late again.
    if (load(&(segment_.seat(slowest_).*counter)) < wanted) return false;
    for (int i = 0; i < locals_; i++)
        if (load(&(segment_.seat(i).*counter)) < wanted) {
            slowest_ = i;
            return false;
        }
    return true;
}

// --- opening ---------------------------------------------------------------------------------

int Lane::open(Mpi &mpi, Mpi::Handle from, const World &world, const Settings &settings, int team, int part, Error *error) {
    mpi_ = &mpi, world_ = &world, settings_ = &settings;
    snprintf(name_, sizeof name_, team < 0 ? "all" : "team %d", team);
    laps_.on(world.timeline);
    auto bad = [&](int code, const char *call) { return mpi.check(code, call, error); };
    if (int code = bad(mpi.Comm_dup(from, &comm_), "MPI_Comm_dup")) return code;
    if (int code = bad(mpi.Comm_set_errhandler(comm_, mpi.errors_return), "MPI_Comm_set_errhandler")) return code;
    if (settings.shared_memory) {
        if (int code = bad(mpi.Comm_split_type(comm_, mpi.shared_type, world.rank, mpi.info_null, &node_), "MPI_Comm_split_type")) return code;
    } else if (int code = bad(mpi.Comm_split(comm_, world.rank, 0, &node_), "MPI_Comm_split")) return code;
    if (settings.node_ranks) {
        Mpi::Handle whole = node_;
        int place = 0;
        if (int code = bad(mpi.Comm_rank(whole, &place), "MPI_Comm_rank")) return code;
        if (int code = bad(mpi.Comm_split(whole, place / settings.node_ranks, place, &node_), "MPI_Comm_split")) return code;
        mpi.Comm_free(&whole);
    }
    // The chunk size must be the same on all ranks, and fit the memory of the node with the most ranks.
    int64_t here = 0, fullest = 0;
    int count = 0;
    if (int code = bad(mpi.Comm_size(node_, &count), "MPI_Comm_size")) return code;
    here = count;
    if (int code = bad(mpi.Allreduce(&here, &fullest, 1, mpi.i64, mpi.max, comm_), "MPI_Allreduce")) return code;
    const size_t chunk = most(size_t(64) << 10, least(settings.chunk, rounded_up((size_t(64) << 20) / size_t(fullest) / DEPTH, 4096)));
    if (int code = segment_.open(mpi, node_, world.rank, least(chunk, settings.chunk), why_not_, sizeof why_not_, error)) return code;
    if (!settings.shared_memory) snprintf(why_not_, sizeof why_not_, "FAIRLEAD_COMM_SHARED_MEMORY=0");
    local_ = segment_.place(), locals_ = segment_.ranks();
    tuning_.open(segment_.chunk(), settings.chunk_fixed, settings.past, locals_);
    // Nodes are numbered by their first ranks.
    int64_t mine[2] = {local_, locals_};
    Room<int64_t> each;
    if (!each.room(2 * size_t(world.size)) || !node_of_.room(size_t(world.size)) || !place_of_.room(size_t(world.size)))
        return error->set(FAIRLEAD_NO_MEMORY, "no memory for a table of %d ranks", world.size);
    if (int code = bad(mpi.Comm_split(comm_, local_ == 0 ? 0 : 1, world.rank, &leaders_), "MPI_Comm_split")) return code;
    int64_t node = 0, common = 0;
    int leader = 0;
    if (int code = bad(mpi.Comm_rank(leaders_, &leader), "MPI_Comm_rank")) return code;
    node = local_ == 0 ? leader : 0;
    if (locals_ > 1) {  // without shared memory each rank is a node of its own
        if (int code = bad(mpi.Allreduce(&node, &common, 1, mpi.i64, mpi.max, node_), "MPI_Allreduce")) return code;
    } else common = node;
    int64_t place[2] = {common, local_};
    if (int code = bad(mpi.Allgather(place, 2, mpi.i64, each.at(), 2, mpi.i64, comm_), "MPI_Allgather")) return code;
    nodes_ = 0;
    for (int i = 0; i < world.size; i++) {
        node_of_[size_t(i)] = int(each[2 * size_t(i)]), place_of_[size_t(i)] = int(each[2 * size_t(i) + 1]);
        nodes_ = most(nodes_, node_of_[size_t(i)] + 1);
    }
    int64_t fewest = 0, most_of = 0;
    if (int code = bad(mpi.Allreduce(&mine[1], &fewest, 1, mpi.i64, mpi.min, comm_), "MPI_Allreduce")) return code;
    if (int code = bad(mpi.Allreduce(&mine[1], &most_of, 1, mpi.i64, mpi.max, comm_), "MPI_Allreduce")) return code;
    even_ = fewest == most_of;
    if (int code = bad(mpi.Comm_split(comm_, local_, int(common), &peers_), "MPI_Comm_split")) return code;
    for (Mpi::Handle comm : {node_, leaders_, peers_})
        if (int code = bad(mpi.Comm_set_errhandler(comm, mpi.errors_return), "MPI_Comm_set_errhandler")) return code;
    if (int code = across_.set(mpi, even_ ? peers_ : leaders_, error)) return code;
    if (int code = between_.set(mpi, leaders_, error)) return code;
    Watch &watch = *world.watch;
    if (watch.count < Watch::MOST) {
        watch.lanes[id_ = watch.count] = this;
        store(&watch.count, id_ + 1);
    }
    part_ = part;
    world.timeline->name(id_, name_, part);
    return 0;
}

int Lane::choose(Error *error) {
    Choice &choice = world_->watch->choice;
    int64_t status = local_ == 0 ? choice.measure(between_, now_s, settings_->algorithm, error) : 0;
    if (locals_ == 1) return int(status);
    if (int bad = mpi_->check(mpi_->Bcast(&status, 1, mpi_->i64, 0, node_), "MPI_Bcast", error)) return bad;
    if (status) return local_ == 0 ? int(status) : error->set(int(status), "the first rank of this node failed to measure the network");
    return mpi_->check(mpi_->Bcast(&choice, int(sizeof choice), mpi_->byte, 0, node_), "MPI_Bcast", error);
}

void Lane::name(const char *name) {
    snprintf(name_, sizeof name_, "%s", name);
    world_->timeline->name(id_, name_, part_);
}

void Lane::leave(End how) {
    store(&segment_.mine().ended, uint32_t(how));
    segment_.ring();
}

void Lane::block(uint64_t call) {
    Watch &watch = *world_->watch;
    Seat &seat = watch.lanes[0]->segment_.mine();
    const pthread_t self = pthread_self();
    uint32_t none = 0;
    const uint32_t callers = __atomic_load_n(&watch.callers, __ATOMIC_ACQUIRE);
    if (callers == 2) return;
    if (!callers && __atomic_compare_exchange_n(&watch.callers, &none, 1, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) __atomic_store_n(&watch.caller, self, __ATOMIC_RELEASE);
    else if (__atomic_load_n(&watch.caller, __ATOMIC_ACQUIRE) != self) {
        __atomic_store_n(&watch.callers, 2, __ATOMIC_RELEASE);
        return store(&seat.blocked, uint64_t(0));
    }
    if (id_ >= 0) store(&seat.blocked, uint64_t(id_) << 48 | call);
}

void Lane::unblock() {
    Seat &seat = world_->watch->lanes[0]->segment_.mine();
    if (load(&seat.blocked)) store(&seat.blocked, uint64_t(0));
}

void Lane::close() {
    for (Mpi::Handle *comm : {&peers_, &leaders_, &node_, &comm_})
        if (*comm) mpi_->Comm_free(comm), *comm = 0;
}

// --- agreement -------------------------------------------------------------------------------

// The ranks of a node agree by their seats; then the first of each does with those of other nodes, and its seat shows
// what has come of it.
int Lane::agree(const Call &call, const Tensors &tensors, Wait &wait, Error *error) {
    Seat &mine = segment_.mine();
    Arrival &arrival = mine.arrivals[calls_ & 1];
    arrival.call = call;
    store(&mine.arrived, calls_ + 1);
    store(&arrival.number, calls_ + 1);
    segment_.ring();
    calls_++;
    wait.counter = &Seat::arrived, wait.wanted = calls_, wait.whose = -1;
    wait.network = false;
    const uint64_t parity = (calls_ - 1) & 1;
    auto here = [&](int i) { return load(&segment_.seat(i).arrivals[parity].number) >= calls_; };
    auto arrived = [&] {
        bool all = here(slowest_);
        for (int i = 0; all && i < locals_; i++)
            if (!here(i)) slowest_ = i, all = false;
        return all;
    };
    if (int bad = until(arrived, wait, error)) return bad;
    // All ranks have left the previous call, whose arrival slot is reused next.
    claim(&mine.arrivals[calls_ & 1]);
    bool same = true;
    for (int i = 1; i < locals_; i++) same = same && segment_.seat(i).arrivals[parity].call == segment_.seat(0).arrivals[parity].call;
    shared_ = may_share_;
    for (int i = 0; shared_ && i < locals_; i++) shared_ = !memcmp(segment_.few(i, parity), &may_share_, sizeof may_share_);
    if (nodes_ > 1 && local_ == 0) {
        marks_[0] = same ? int64_t(mixed(mixed(mixed(0, call.kind), call.signature), call.count) | 1) : 0;
        marks_[1] = shared_;
        if (int bad = agreement_.begin(between_, {DOUBLING}, marks_, 2, I64, AGREEMENT_TAG, error, alike)) return bad;
        bool done = false;
        int failed = 0;
        wait.network = true;
        const int bad = until([&] { return (failed = agreement_.step(&done, error)) || done; }, wait, error);
        if (bad || failed) return bad ? bad : failed;
        same = marks_[0] != 0, shared_ = marks_[1] != 0;
        if (!same) store(&mine.differs, calls_);
        if (shared_) store(&mine.shares, calls_);
        store(&mine.agreed, calls_);
        segment_.ring();
    } else if (nodes_ > 1) {
        const Seat &first = segment_.seat(0);
        wait.counter = &Seat::agreed, wait.whose = 0;
        if (int bad = until([&] { return load(&first.agreed) >= calls_; }, wait, error)) return bad;
        same = load(&first.differs) != calls_, shared_ = load(&first.shares) == calls_;
        wait.counter = &Seat::arrived, wait.whose = -1;
    }
    return same ? 0 : differ(call, tensors, wait, error);
}

// Collective; calls differ. Reports which rank differs from the majority, and in what.
int Lane::differ(const Call &call, const Tensors &tensors, Wait &wait, Error *error) {
    constexpr uint64_t LISTED = 1 << 16;
    Room<Row> rows[2];
    const int size = world_->size;
    if (!calls_of_.room(size_t(size)) || !rows[0].room(LISTED) || !rows[1].room(LISTED)) return error->set(FAIRLEAD_NO_MEMORY, "no memory to say in what the ranks differ");
    Room<Call> &calls = calls_of_;
    if (nodes_ == 1)
        for (int i = 0; i < locals_; i++) calls[size_t(segment_.seat(i).rank)] = segment_.seat(i).arrivals[(calls_ - 1) & 1].call;
    else {
        Mpi::Handle request = mpi_->request_null;
        ours_ = call;
        {
            const MpiTurn turn(*mpi_);
            if (int bad = mpi_->check(mpi_->Iallgather(&ours_, int(sizeof ours_), mpi_->byte, calls.at(), int(sizeof ours_), mpi_->byte, comm_, &request), "MPI_Iallgather", error)) return bad;
        }
        if (int bad = complete(&request, wait, error)) return bad;
    }
    told_apart_ = true;
    int alike = 0, odd = 0, usual = 0;
    for (int i = 0; i < size; i++) alike += calls[size_t(i)] == calls[0];
    for (int i = size - 1; i > 0; i--)
        if (!(calls[size_t(i)] == calls[0])) odd = i;
    if (2 * alike < size) usual = odd, odd = 0;  // rank 0 is in the minority
    const Call &a = calls[size_t(usual)], &b = calls[size_t(odd)];
    const char *host_a = world_->host(usual), *host_b = world_->host(odd);
    const unsigned long long number = calls_;
    if (a.kind != b.kind) {
        char roots[120] = "";
        const uint64_t kind = (a.kind & 0xff) == (b.kind & 0xff) ? a.kind & 0xff : 0;
        const char *of = kind == BROADCAST ? "roots" : kind == TEAM ? "threads" : nullptr;
        if (of) snprintf(roots, sizeof roots, " (%s %d and %d)", of, int(b.kind >> 32), int(a.kind >> 32));
        else if (kind && (a.kind ^ b.kind) >> 16 & 0xff) snprintf(roots, sizeof roots, " (float32 travels as %s and as %s)", form_name(b.kind >> 16 & 0xff), form_name(a.kind >> 16 & 0xff));
        return error->by(odd, FAIRLEAD_DIFFER, "rank %d (%s) called %s while rank %d (%s) called %s%s: call %llu of %s", odd, host_b, kind_name(b.kind), usual, host_a, kind_name(a.kind), roots, number, name_);
    }
    const int asked[2] = {usual, odd};
    for (int i = 0; i < 2; i++) {
        if (asked[i] == world_->rank)
            for (uint64_t j = 0; j < least(tensors.count, LISTED); j++) rows[i][j] = row_of(tensors.at[j]);
        const uint64_t n = least(calls[size_t(asked[i])].count, LISTED);
        if (int bad = spread_bytes(rows[i].at(), n * sizeof(Row), asked[i], wait, error)) {
            told_apart_ = false;
            return bad;
        }
    }
    const uint64_t common = least(least(a.count, b.count), LISTED);
    uint64_t i = 0;
    while (i < common && rows[0][i].form == rows[1][i].form && rows[0][i].count == rows[1][i].count) i++;
    if (i == common)
        return error->by(odd, FAIRLEAD_DIFFER, "rank %d (%s) passed %llu tensors to %s, rank %d (%s) passed %llu: call %llu of %s", odd, host_b, static_cast<unsigned long long>(b.count), kind_name(a.kind), usual,
                          host_a, static_cast<unsigned long long>(a.count), number, name_);
    char name[200] = "";
    if (i < tensors.count && tensors.at[i].name) snprintf(name, sizeof name, " (%.180s)", tensors.at[i].name);
    const Row &theirs = rows[1][i], &others = rows[0][i];
    const char *shape = uint32_t(theirs.form) == uint32_t(others.form) && theirs.count == others.count ? ", in another shape" : "";
    return error->by(odd, FAIRLEAD_DIFFER, "rank %d (%s) passed %s of %llu elements as tensor %llu%s to %s, rank %d (%s) passed %s of %llu%s: call %llu of %s", odd, host_b, form_name(uint32_t(theirs.form)),
                      static_cast<unsigned long long>(theirs.count), static_cast<unsigned long long>(i), name, kind_name(a.kind), usual, host_a, form_name(uint32_t(others.form)),
                      static_cast<unsigned long long>(others.count), shape, number, name_);
}

// --- network ---------------------------------------------------------------------------------

int Lane::post(char *at, size_t count, Form form, uint64_t slot, Error *error) {
    const Shape shape = settings_->deterministic ? Shape{ORDERED} : world_->watch->choice.shape(count * width(form));
    return flights_[slot].begin(across_, shape, at, count, form, int(posts_++ % CHUNK_TAGS), error);
}

int Lane::advance(uint64_t slot, bool *done, Wait &wait, Error *error) {
    for (Reduction &each : flights_) {
        if (!each.active()) continue;
        const int before = each.rounds();
        bool ended = false;
        if (int bad = each.step(&ended, error)) return bad;
        if (each.rounds() != before) wait.moved();
    }
    *done = !flights_[slot].active();
    return 0;
}

int Lane::test(Mpi::Handle *request, bool *done, Error *error) {
    int flag = 0;
    const MpiTurn turn(*mpi_);
    const int bad = mpi_->check(mpi_->Test(request, &flag, mpi_->no_status), "MPI_Test", error);
    *done = flag != 0;
    return bad;
}

int Lane::complete(Mpi::Handle *request, Wait &wait, Error *error) {
    bool done = false;
    int failed = 0;
    wait.network = true;
    const int bad = until([&] { return (failed = test(request, &done, error)) || done; }, wait, error);
    return bad ? bad : failed;
}

// --- the pipelines ---------------------------------------------------------------------------

int Lane::reduce(const Stream &stream, Form wire, double scale, const Way &way, Wait &wait, Error *error) {
    constexpr int MANY = 256;  // sources at a time: a table of fixed size on the stack
    const Kernels &kernel = kernels();
    const Form form = stream.form();
    const bool network = nodes_ > 1;
    // Halves cross the network as float32, unless the caller asked for them to save bytes.
    const Form sums = network && wire == form ? summed_in(form) : wire;
    // A sum may overflow a half where the mean does not.
    const bool early = !network || wire != form;
    const size_t given = width(wire), wide = width(sums);
    const Cut cut(stream.elements(), (size_t(way.chunk_kb) << 10) / given, !network);
    const uint64_t base = chunks_, K = cut.count;
    const bool posts = network && (even_ || local_ == 0);
    // A share's sums overwrite the next rank's packed input, which the owner has just read: the cache lines are
    // already here. Not if sums are wider than inputs, or if a whole chunk crosses the network at once.
    const bool in_place = wide == given && (!network || even_) && locals_ <= MANY;
    const bool past = way.past;
    Seat &mine = segment_.mine();
    uint64_t packed = 0, summed = 0, posted = 0, reduced = 0, taken = 0;
    auto chunk = [&](uint64_t k) { return cut.chunk(k, stream.elements(), locals_); };
    auto sums_of = [&](uint64_t k, int place) { return in_place ? segment_.given((place + 1) % locals_, base + k) : segment_.result(base + k); };

    auto pack = [&](uint64_t k) {
        const Laps::Lap lap(laps_, PACK, k);
        const Chunk c = chunk(k);
        char *to = segment_.given(local_, base + k);
        auto give = [&](const char *in, char *, uint64_t n) {
            kernel.convert(to, wire, in, form, n);
            to += n * given;
        };
        for (int i = 0; i < locals_; i++) {
            if (i == local_) continue;
            to = segment_.given(local_, base + k) + (c.begin(i) - c.from) * given;
            stream.each(c.begin(i), c.end(i), give);
        }
    };
    auto sum = [&](uint64_t k) {
        const Laps::Lap lap(laps_, SUM, k);
        const Chunk c = chunk(k);
        uint64_t at = c.begin(local_) - c.from;
        char *result = sums_of(k, local_);
        stream.each(c.begin(local_), c.end(local_), [&](const char *in, char *out, uint64_t n) {
            const void *sources[MANY];
            Form forms[MANY];
            char *one = result + at * wide;
            void *two = network ? nullptr : out;
            for (int i = 0; i < locals_;) {
                int used = 0;
                if (i) sources[used] = one, forms[used++] = sums;
                for (; i < locals_ && used < MANY; i++) {
                    sources[used] = i == local_ ? in : segment_.given(i, base + k) + at * given;
                    forms[used++] = i == local_ ? form : wire;
                }
                const bool last = i == locals_;
                const bool odd = kernel.sum(one, sums, last ? two : nullptr, form, sources, forms, used, n, last && early ? scale : 1, past);
                if (odd && last && looks_) doubt(in, one, form, sums, n, !two || two != in);
            }
            at += n;
        });
    };
    auto take = [&](uint64_t k) {
        const Laps::Lap lap(laps_, TAKE, k);
        const Chunk c = chunk(k);
        const char *from = nullptr;
        auto put = [&](const char *, char *out, uint64_t n) {
            const void *source = from;
            if (!early && scale != 1) kernel.sum(out, form, nullptr, form, &source, &sums, 1, n, scale, false);
            else if (past && form == sums) kernel.copy_past(out, source, n * wide);
            else kernel.convert(out, form, source, sums, n);
            from += n * wide;
        };
        for (int i = 0; i < locals_; i++) {
            if (i == local_ && !network) continue;  // written together with the sum
            from = sums_of(k, i) + (c.begin(i) - c.from) * wide;
            if (doubted(i)) stream.each(c.begin(i), c.end(i), [&](const char *in, char *, uint64_t n) { look(in, form, n); });
            stream.each(c.begin(i), c.end(i), put);
        }
    };

    // The part of a chunk that this rank sends across the network.
    auto share = [&](uint64_t k, size_t *count) {
        const Chunk c = chunk(k);
        *count = even_ ? c.end(local_) - c.begin(local_) : c.to - c.from;
        return sums_of(k, local_) + (even_ ? c.begin(local_) - c.from : 0) * wide;
    };
    size_t count = 0;

    while (taken < K) {
        wait.network = posts && reduced < posted;
        if (wait.network) {
            bool done = false;
            if (int bad = advance(reduced % DEPTH, &done, wait, error)) return bad;
            if (done) {
                laps_.arrived(reduced);
                store(&mine.reduced, base + ++reduced);
                segment_.ring();
                wait.moved();
            }
        }
        if (summed < packed && all(&Seat::packed, base + summed + 1)) {
            sum(summed);
            store(&mine.summed, base + ++summed);
            if (!network) store(&mine.reduced, base + summed);
            segment_.ring();
            wait.moved();
        } else if (posts && posted < summed && (even_ || all(&Seat::summed, base + posted + 1))) {
            char *at = share(posted, &count);
            if (int bad = post(at, count, sums, posted % DEPTH, error)) return bad;
            laps_.posted(posted++);
            wait.moved();
        } else if (packed < K && all(&Seat::taken, base + packed + 1 < DEPTH ? 0 : base + packed + 1 - DEPTH)) {
            pack(packed);
            store(&mine.packed, base + ++packed);
            segment_.ring();
            wait.moved();
        } else if (network && !even_ ? load(&segment_.seat(0).reduced) > base + taken : all(&Seat::reduced, base + taken + 1)) {
            take(taken);
            store(&mine.taken, base + ++taken);
            segment_.ring();
            wait.moved();
        } else {
            wait.counter = summed < packed ? &Seat::packed : &Seat::reduced;
            wait.wanted = summed < packed ? base + summed + 1 : base + taken + 1;
            if (int bad = wait.idle(error)) return bad;
        }
    }
    if (past) written_past();
    chunks_ += K;
    store(&mine.reduced, chunks_);
    return 0;
}

// Every rank adds its part of the elements, from all ranks' input to all ranks' output.
int Lane::reduce_shared(const Stream &stream, double scale, const Way &way, Wait &wait, Error *error) {
    const Kernels &kernel = kernels();
    const Form form = stream.form();
    const size_t w = width(form);
    const Chunk whole = {0, stream.elements(), locals_};
    const bool past = way.past;
    Seat &mine = segment_.mine();
    {
        const Laps::Lap lap(laps_, SUM, 0);
        const void *sources[MOST_SHARED];
        void *outs[MOST_SHARED];
        stream.each(whole.begin(local_), whole.end(local_), [&](const char *in, char *out, uint64_t n) {
            const Area *from = world_->areas->of(in, n * w), *to = world_->areas->of(out, n * w);
            auto at_element = [&](uint64_t at) {
                for (int i = 0; i < locals_; i++) sources[i] = from->of(i, in + at * w), outs[i] = to->of(i, out + at * w);
            };
            for (uint64_t at = 0; at < n;) {
                at_element(at);
                const bool look = looks_ && load(&mine.odd[number_ & 1].doubted) != number_;
                at += kernel.sum_shared(outs, sources, locals_, form, n - at, scale, look, past && in != out);
                if (at == n) break;
                at_element(at);
                doubt_shared(sources, form, n - at, in + at * w);
            }
        });
    }
    if (past) written_past();
    const uint64_t ended = ++chunks_;
    store(&mine.packed, ended), store(&mine.reduced, ended), store(&mine.taken, ended);
    store(&mine.summed, ended);
    segment_.ring();
    wait.counter = &Seat::summed, wait.wanted = ended;
    return until([&] { return all(&Seat::summed, ended); }, wait, error);
}

// The same with several nodes. A rank adds its part of the elements of its node in its own output, a piece after the
// other; each piece crosses the network from there, and goes to the node's other ranks when it has come back.
int Lane::reduce_shared_far(const Stream &stream, double scale, Wait &wait, Error *error) {
    const Kernels &kernel = kernels();
    const Form form = stream.form();
    const size_t w = width(form);
    const Chunk whole = {0, stream.elements(), locals_};
    Seat &mine = segment_.mine();
    struct Part {
        const char *in;
        char *out;
        uint64_t n;
    };
    Room<Part> parts;
    uint64_t count = 0, room = 0;
    for (const bool counts : {true, false}) {
        if (!counts && !parts.room(room + 1)) return error->set(FAIRLEAD_NO_MEMORY, "no memory for a list of %llu pieces", static_cast<unsigned long long>(room));
        stream.each(whole.begin(local_), whole.end(local_), [&](const char *in, char *out, uint64_t n) {
            for (uint64_t at = 0; at < n; at += PIECE / w) {
                if (counts) room++;
                else parts[count++] = {in + at * w, out + at * w, least(n - at, uint64_t(PIECE / w))};
            }
        });
    }
    auto sum = [&](const Part &part) {
        alignas(64) char sums[BLOCK * sizeof(double)];
        const void *sources[MOST_SHARED];
        Form forms[MOST_SHARED];
        const Area *from = world_->areas->of(part.in, part.n * w);
        for (int i = 0; i < locals_; i++) forms[i] = form;
        for (uint64_t at = 0; at < part.n; at += BLOCK) {
            const size_t n = least(uint64_t(BLOCK), part.n - at);
            for (int i = 0; i < locals_; i++) sources[i] = from->of(i, part.in + at * w);
            if (kernel.sum(sums, form, nullptr, form, sources, forms, locals_, n, 1, false) && looks_) doubt_shared(sources, form, n, part.in + at * w);
            memcpy(part.out + at * w, sums, n * w);
        }
    };
    auto hand_out = [&](const Part &part) {
        const Area *to = world_->areas->of(part.out, part.n * w);
        const void *source = part.out;
        if (scale != 1) kernel.sum(part.out, form, nullptr, form, &source, &form, 1, part.n, scale, false);
        for (int i = 0; i < locals_; i++)
            if (i != local_) kernel.convert(to->of(i, part.out), form, part.out, form, part.n);
    };
    uint64_t summed = 0, reduced = 0;
    const uint64_t ended = ++chunks_;
    wait.counter = &Seat::reduced, wait.wanted = ended, wait.whose = local_;
    while (reduced < count) {
        wait.network = reduced < summed;
        bool done = false;
        if (wait.network)
            if (int bad = advance(reduced % DEPTH, &done, wait, error)) return bad;
        if (done) {
            laps_.arrived(reduced);
            const Laps::Lap lap(laps_, TAKE, reduced);
            hand_out(parts[reduced++]);
            wait.moved();
        } else if (summed < count && summed < reduced + DEPTH) {
            {
                const Laps::Lap lap(laps_, SUM, summed);
                sum(parts[summed]);
            }
            if (int bad = post(parts[summed].out, parts[summed].n, form, summed % DEPTH, error)) return bad;
            laps_.posted(summed++);
            wait.moved();
        } else if (int bad = wait.idle(error)) return bad;
    }
    wait.network = false;
    store(&mine.packed, ended), store(&mine.reduced, ended), store(&mine.taken, ended);
    store(&mine.summed, ended);
    segment_.ring();
    wait.counter = &Seat::summed, wait.whose = -1;
    return until([&] { return all(&Seat::summed, ended); }, wait, error);
}

int Lane::spread(const Stream &stream, int root, Wait &wait, Error *error) {
    const size_t w = width(stream.form());
    const Cut cut(stream.elements(), segment_.chunk() / w);
    const uint64_t base = chunks_, K = cut.count;
    const int root_node = node_of_[size_t(root)], root_place = place_of_[size_t(root)];
    const bool network = nodes_ > 1, source = root == world_->rank, posts = network && local_ == 0;
    const bool here = node_of_[size_t(world_->rank)] == root_node;
    Seat &mine = segment_.mine();
    Mpi::Handle requests[DEPTH];
    uint64_t packed = 0, posted = 0, reduced = 0, taken = 0;
    auto chunk = [&](uint64_t k) { return cut.chunk(k, stream.elements(), 1); };
    auto free_for = [&](uint64_t k) { return all(&Seat::taken, base + k + 1 < DEPTH ? 0 : base + k + 1 - DEPTH); };

    while (taken < K) {
        wait.network = posts && reduced < posted;
        if (wait.network) {
            bool done = false;
            if (int bad = test(&requests[reduced % DEPTH], &done, error)) return bad;
            if (done) {
                laps_.arrived(reduced);
                store(&mine.reduced, base + ++reduced);
                segment_.ring();
                wait.moved();
            }
        }
        const Seat &first = segment_.seat(0);
        if (source && packed < K && free_for(packed)) {
            const Laps::Lap lap(laps_, PACK, packed);
            char *to = segment_.result(base + packed);
            const Chunk c = chunk(packed);
            stream.each(c.from, c.to, [&](const char *in, char *, uint64_t n) {
                memcpy(to, in, n * w);
                to += n * w;
            });
            store(&mine.packed, base + ++packed);
            segment_.ring();
            wait.moved();
        } else if (posts && posted < K && (here ? load(&segment_.seat(root_place).packed) > base + posted : free_for(posted))) {
            const Chunk c = chunk(posted);
            const MpiTurn turn(*mpi_);
            if (int bad = mpi_->check(mpi_->Ibcast(segment_.result(base + posted), int((c.to - c.from) * w), mpi_->byte, root_node, leaders_, &requests[posted % DEPTH]), "MPI_Ibcast", error)) return bad;
            laps_.posted(posted++);
            wait.moved();
        } else if (load(network ? &first.reduced : &segment_.seat(root_place).packed) > base + taken) {
            const Laps::Lap lap(laps_, TAKE, taken);
            const char *from = segment_.result(base + taken);
            const Chunk c = chunk(taken);
            stream.each(c.from, c.to, [&](const char *in, char *out, uint64_t n) {
                if (out && !(source && out == in)) memcpy(out, from, n * w);
                from += n * w;
            });
            store(&mine.taken, base + ++taken);
            segment_.ring();
            wait.moved();
        } else {
            // For room, which others make by taking chunks; for the root's chunks; or for those from another node.
            const bool sends = posts && posted == taken && posted < K, full = (source && packed < K) || (sends && !here);
            wait.counter = full ? &Seat::taken : !network || (sends && here) ? &Seat::packed : &Seat::reduced;
            wait.wanted = full ? base + (source ? packed : posted) + 1 - DEPTH : base + taken + 1;
            wait.whose = full ? -1 : wait.counter == &Seat::packed ? root_place : 0;
            if (int bad = wait.idle(error)) return bad;
        }
    }
    wait.whose = -1;
    chunks_ += K;
    store(&mine.packed, chunks_), store(&mine.summed, chunks_), store(&mine.reduced, chunks_);
    return 0;
}

int Lane::spread_bytes(void *bytes, size_t size, int root, Wait &wait, Error *error) {
    const fairlead_tensor t = {bytes, bytes, size, FAIRLEAD_BYTES, 0, nullptr};
    if (int bad = streams_[RAW].set(&t, 1, RAW, error)) return bad;
    return spread(streams_[RAW], root, wait, error);
}

// Small tensors travel with the arrival itself: one exchange, and every rank sums for itself.
void Lane::flat(const fairlead_tensor *tensors, uint64_t count, bool few, Kind kind, int operation, int root) {
    const Kernels &kernel = kernels();
    const uint64_t parity = (calls_ - 1) & 1;
    const double scale = operation & 1 ? 1.0 / world_->size : 1;
    auto given = [&](int place) { return few ? segment_.few(place, parity) : segment_.flat(place, parity); };
    size_t at = 0;
    for (uint64_t i = 0; i < count; i++) {
        const Form form = Form(tensors[i].dtype);
        const size_t bytes = tensors[i].count * width(form);
        if (kind == BROADCAST || kind == MATCH) {
            if (tensors[i].out) memmove(tensors[i].out, given(place_of_[size_t(root)]) + at, bytes);
        } else {
            const void *sources[FLAT_RANKS];
            Form forms[FLAT_RANKS];
            for (int j = 0; j < locals_; j++) sources[j] = given(j) + at, forms[j] = form;
            const bool odd = kernel.sum(tensors[i].out, form, nullptr, form, sources, forms, locals_, tensors[i].count, scale, false);
            if (odd && looks_) look_flat(tensors[i], few, parity, at);
        }
        at += rounded_up(bytes, 8);
    }
}

// Resolves a doubt about NaN and infinity. All doubts of a node are known: each was recorded before the others
// could take the sums, and so was each rank's own odd input.
int Lane::judge(int nonfinite, Wait &wait, Error *error) {
    auto noted = [&](uint64_t passed) {
        int place = 0;
        for (; place < locals_; place++) {
            const auto &odd = segment_.seat(place).odd[calls_ & 1];
            if (load(passed ? &odd.passed : &odd.doubted) == calls_) break;
        }
        return place;
    };
    int place = noted(0);
    const bool doubts = place < locals_;
    if (doubts) {
        wait.network = false;
        wait.counter = &Seat::taken, wait.wanted = chunks_;
        if (int bad = until([&] { return all(&Seat::taken, chunks_); }, wait, error)) return bad;
    }
    const int passed = doubts ? noted(1) : locals_;
    const bool sure = passed < locals_;
    if (sure) place = passed;
    char words[sizeof Seat::odd[0].words] = "";
    if (doubts) memcpy(words, segment_.seat(place).odd[calls_ & 1].words, sizeof words);
    if (nonfinite == WARN) {
        // If no rank found odd input of its own, the owner of the sums reports it.
        bool reported = sure;
        for (int i = 0; i < locals_ && doubts; i++) reported = reported || load(&segment_.seat(i).reported_odd);
        if (doubts && !reported && place == local_) say_odd(words);
        return 0;
    }
    if (nodes_ > 1) {
        // The lowest rank that is sure, else the lowest that is in doubt.
        const int64_t rank = doubts ? segment_.seat(place).rank : 0, size = world_->size;
        odd_[0] = doubts ? (sure ? 2 : 1) * size - rank : 0;
        Mpi::Handle request = mpi_->request_null;
        {
            const MpiTurn turn(*mpi_);
            if (int bad = mpi_->check(mpi_->Iallreduce(&odd_[0], &odd_[1], 1, mpi_->i64, mpi_->max, comm_, &request), "MPI_Iallreduce", error)) return bad;
        }
        if (int bad = complete(&request, wait, error)) return bad;
        if (!odd_[1]) return 0;
        const int from = int(odd_[1] > size ? 2 * size - odd_[1] : size - odd_[1]);
        if (int bad = spread_bytes(words, sizeof words, from, wait, error)) return bad;
    } else if (!doubts) return 0;
    return error->set(FAIRLEAD_NONFINITE, "%s", words);
}

// Which rank this one fails for, as a number in the run's folder: the closing error of the run names that one, and not
// its victims, who end first.
void Lane::blame(const Error &error) const {
    const char *folder = getenv("FAIRLEAD_RUN_FOLDER");
    if (error.culprit < 0 || !folder || !*folder) return;
    char path[600], number[16];
    snprintf(path, sizeof path, "%s/blames.%d", folder, world_->rank);
    const int digits = snprintf(number, sizeof number, "%d", error.culprit);
    const int file = ::open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (file < 0) return;
    if (write(file, number, size_t(digits)) < 0) unlink(path);
    ::close(file);
}

int Lane::run(Kind kind, const Tensors &all_of, const Tensors &part, int operation, int root, bool helper, Error *error) {
    const fairlead_tensor *tensors = part.at;
    const uint64_t count = part.count;
    if (broken_) return error->set(broke_.status, "an earlier call of %s failed: %.1000s", name_, broke_.text);
    const Rounding rounding;
    const uint64_t begun = ticks(), begun_ns = laps_.on() ? now_ns() : 0;
    const int wire_bits = operation >> 8;
    Call call = {uint64_t(kind) | uint64_t(operation & 0xffff) << 8 | uint64_t(uint32_t(root)) << 32, 0, all_of.count};
    for (uint64_t i = 0; i < all_of.count; i++) call.signature = mixed(mixed(call.signature, row_of(all_of.at[i]).form), all_of.at[i].count);
    uint64_t bytes = 0, padded = 0;
    bool used[7] = {};
    for (uint64_t i = 0; i < count; i++) {
        const Form form = Form(tensors[i].dtype);
        bytes += tensors[i].count * width(form);
        padded += rounded_up(tensors[i].count * width(form), 8);
        used[form] = used[form] || tensors[i].count;
    }
    const int nonfinite = kind == AGGREGATE && !(operation & FAIRLEAD_ANY) ? settings_->nonfinite : IGNORE;
    store(&kind_, call.kind);
    number_ = calls_ + 1, all_of_ = all_of;
    looks_ = nonfinite != IGNORE && !segment_.mine().reported_odd;
    const bool flat_fits = nodes_ == 1 && padded <= FLAT && locals_ <= FLAT_RANKS && !wire_bits;
    const bool few = padded <= FEW;
    if (flat_fits && kind != FINALIZE) {
        size_t at = 0;
        char *to = few ? segment_.few(local_, calls_ & 1) : segment_.flat(local_, calls_ & 1);
        for (uint64_t i = 0; i < count; i++) {
            const size_t size = tensors[i].count * width(Form(tensors[i].dtype));
            if (size && ((kind != BROADCAST && kind != MATCH) || root == world_->rank)) kernels().convert(to + at, RAW, tensors[i].in, RAW, size);
            at += rounded_up(size, 8);
        }
    }
    // Ranks sum in place if each has its tensors where the others have theirs. `few` is not used otherwise.
    may_share_ = 0;
    if (kind == AGGREGATE && !flat_fits && !wire_bits && locals_ > 1 && locals_ <= MOST_SHARED) {
        const bool far = nodes_ == 1 || (even_ && bytes >= LEAST_SHARED && bytes / most(count, uint64_t(1)) >= LEAST_OF_EACH && !used[F16] && !used[BF16]);
        if (far && world_->areas->any()) may_share_ = Stream::shared_at(part, *world_->areas);
        memcpy(segment_.few(local_, calls_ & 1), &may_share_, sizeof may_share_);
    }
    Wait wait(*this, helper, call.kind);
    laps_.begin(uint32_t(id_ < 0 ? Timeline::LANES - 1 : id_), calls_ + 1);
    int bad = agree(call, all_of, wait, error);
    const uint64_t agreed = ticks(), agreed_ns = laps_.on() ? now_ns() : 0;
    const bool failed = bad;
    const bool shared = !bad && shared_;
    const Way usual = {uint32_t(segment_.chunk() >> 10), bytes > PAST};
    bool in_place = true;  // results go where the inputs were: what is read is cached, so stores are ordinary
    for (uint64_t i = 0; i < count; i++) in_place = in_place && tensors[i].in == tensors[i].out;
    const bool tuned = !bad && kind == AGGREGATE && nodes_ == 1 && locals_ > 1 && !flat_fits && !(shared && in_place);
    const Way &way = tuned ? tuning_.begin(bytes, shared, locals_, [&](int place) -> const Tuning::Notes & { return segment_.seat(place).notes; }) : usual;
    if (!bad && flat_fits) flat(tensors, count, few, kind, operation, root);
    else
        for (int f = 0; f < 7 && !bad; f++) {
            if (!used[f]) continue;
            const Form form = Form(f), wire = form == F32 && wire_bits ? Form(wire_bits) : form;
            bad = streams_[f].set(tensors, count, form, error);
            if (!bad && shared && nodes_ > 1) bad = reduce_shared_far(streams_[f], operation & 1 ? 1.0 / world_->size : 1, wait, error);
            else if (!bad && shared) bad = reduce_shared(streams_[f], operation & 1 ? 1.0 / world_->size : 1, way, wait, error);
            else if (!bad) bad = kind == BROADCAST || kind == MATCH ? spread(streams_[f], root, wait, error) : reduce(streams_[f], wire, operation & 1 ? 1.0 / world_->size : 1, way, wait, error);
        }
    if (!bad && nonfinite != IGNORE) {
        const auto &mine = segment_.mine().odd[calls_ & 1];
        if (!flat_fits) bad = judge(nonfinite, wait, error);
        else if (nonfinite == STOP && load(&mine.doubted) == calls_) bad = error->set(FAIRLEAD_NONFINITE, "%s", mine.words);
    }
    const uint64_t ended = ticks();
    if (tuned && !bad) tuning_.end(between(agreed, ended), &segment_.mine().notes);
    spend(&Spent::calls, 1);
    spend(&Spent::aggregates, kind == AGGREGATE);
    spend(&Spent::bytes, bytes);
    spend(&Spent::wait, between(begun, agreed));
    spend(&Spent::move, between(agreed, ended));
    if (laps_.on())
        laps_.add({0, begun_ns, failed ? 0 : agreed_ns, now_ns(), calls_, bytes, uint32_t(call.kind), 0, uint32_t(count), bad, {}});
    // Ranks whose calls differ are all notified before any data has moved, so they may go on. Parts of a team's
    // call run in other lanes, whose progress is unknown.
    if (bad) blame(*error);
    if (bad && bad != FAIRLEAD_NONFINITE && (!told_apart_ || abandoned_)) {
        broken_ = true;
        broke_ = *error;
    }
    told_apart_ = false;
    return bad;
}

}  // namespace fairlead
