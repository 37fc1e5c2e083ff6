// The C interface: one world per process, its teams, and the reason why a call failed.
#include "team.h"

#include <new>

#define API extern "C" __attribute__((visibility("default")))

using namespace fairlead;

namespace {

__thread Error last;

constexpr double OTHERS_S = 5;  // for calls of other threads, when this one ends

struct State {
    Mpi mpi;
    Watch watch;
    Timeline timeline;
    Areas areas;
    World world;
    Settings settings;
    Room<char> hosts;
    char network[600] = "";  // how sums move between nodes
    Lane all;  // broadcast, average, match, barrier, finalize
    fairlead_team *teams = nullptr;
    int count = 0;
    Here here;
    Ticks clock;
    bool ready = false, finalized = false, ending = false;
    uint32_t within = 0;  // threads in calls of teams
    pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
};

// Never destroyed: MPI may be gone at exit.
State &state() {
    alignas(State) static char place[sizeof(State)];
    static State *made;
    static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    if (State *known = load(&made)) return *known;
    Lock lock(mutex);
    if (!made) store(&made, new (place) State);
    return *made;
}

// Whether a call may be made now, in this thread. Within a node only calls that make or free communicators call MPI.
int usable(const char *call, bool mpi = false) {
    last.clear();
    State &s = state();
    if (load(&s.finalized)) return last.set(FAIRLEAD_BAD_CALL, "%s was called after fairlead_comm_finalize", call);
    if (!load(&s.ready)) return last.set(FAIRLEAD_BAD_CALL, "%s was called before fairlead_comm_init", call);
    if (s.here.forked())
        return last.set(FAIRLEAD_BAD_CALL, "%s was called in process %d, a fork of rank %d (%s), process %d: MPI does not follow a fork", call, int(getpid()), s.world.rank, s.world.host(s.world.rank), int(s.here.process()));
    return mpi || s.all.nodes() > 1 ? s.mpi.here(call, &last) : 0;
}

// This thread's turn among those that call without a team, or start or end. A thread that waits for it can be
// interrupted. The call that has the turn ends: its ranks agree on it first, so it never waits for this one.
class Turn {
  public:
    Turn(State &s, const char *call) : s_(s) {
        while (pthread_mutex_trylock(&s.mutex)) {
            timespec until;
            clock_gettime(CLOCK_REALTIME, &until);
            until.tv_nsec += 100000000;
            if (until.tv_nsec >= 1000000000) until.tv_sec++, until.tv_nsec -= 1000000000;
            if (!pthread_mutex_timedlock(&s.mutex, &until)) break;
            if (!Watch::interrupted()) continue;
            bad = last.set(FAIRLEAD_INTERRUPTED, "%s was interrupted while another thread was in a call", call);
            return;
        }
        held_ = true;
        if (load(&s.finalized)) bad = last.set(FAIRLEAD_BAD_CALL, "%s was called after fairlead_comm_finalize", call);
    }
    ~Turn() {
        if (held_) pthread_mutex_unlock(&s_.mutex);
    }
    Turn(const Turn &) = delete;
    int bad = 0;

  private:
    State &s_;
    bool held_ = false;
};

// This thread is in a call of a team, which has no turn to wait for: finalize waits for its end.
class Within {
  public:
    Within(State &s, const char *call) : s_(s) {
        __atomic_fetch_add(&s.within, 1u, __ATOMIC_SEQ_CST);
        depth++;
        if (__atomic_load_n(&s.ending, __ATOMIC_SEQ_CST)) bad = last.set(FAIRLEAD_BAD_CALL, "%s was called after fairlead_comm_finalize", call);
    }
    ~Within() {
        depth--;
        __atomic_fetch_sub(&s_.within, 1u, __ATOMIC_SEQ_CST);
    }
    Within(const Within &) = delete;
    static __thread int depth;  // by a handler of while_waiting
    int bad = 0;

  private:
    State &s_;
};
__thread int Within::depth;

// Whether no thread is in a call of a team; there is none from then on.
int all_out(State &s) {
    const char *call = "fairlead_comm_finalize";
    if (Within::depth) return last.set(FAIRLEAD_BAD_CALL, "%s was called by a handler within another call", call);
    __atomic_store_n(&s.ending, true, __ATOMIC_SEQ_CST);
    const double begun = now_s();
    while (__atomic_load_n(&s.within, __ATOMIC_SEQ_CST)) {
        int bad = 0;
        if (Watch::interrupted()) bad = last.set(FAIRLEAD_INTERRUPTED, "%s was interrupted while another thread was in a call of a team", call);
        else if (now_s() - begun > OTHERS_S) bad = last.set(FAIRLEAD_BAD_CALL, "%s: another thread has been in a call of a team for %.0f s", call, OTHERS_S);
        if (bad) {
            __atomic_store_n(&s.ending, false, __ATOMIC_SEQ_CST);
            return bad;
        }
        sleep_us(1000);
    }
    return 0;
}

int known(const fairlead_tensor *tensors, uint64_t count, const char *call, bool numbers, bool mean, bool out) {
    if (count && !tensors) return last.set(FAIRLEAD_BAD_CALL, "%s: tensors is NULL", call);
    for (uint64_t i = 0; i < count; i++) {
        const fairlead_tensor &t = tensors[i];
        char which[200];  // in words
        auto wrong = [&] {
            snprintf(which, sizeof which, t.name ? "%s: tensor %llu (%.120s)" : "%s: tensor %llu", call, static_cast<unsigned long long>(i), t.name);
            return which;
        };
        if (t.dtype < 0 || t.dtype > (numbers ? FAIRLEAD_INT64 : FAIRLEAD_BYTES)) return last.set(FAIRLEAD_BAD_CALL, "%s has dtype %d, which it does not know", wrong(), int(t.dtype));
        if (mean && (t.dtype == FAIRLEAD_INT32 || t.dtype == FAIRLEAD_INT64)) return last.set(FAIRLEAD_BAD_CALL, "%s is of integers, which have a sum and no mean", wrong());
        if (t.count > uint64_t(1) << 56) return last.set(FAIRLEAD_BAD_CALL, "%s has %llu elements", wrong(), static_cast<unsigned long long>(t.count));
        const char *in = static_cast<const char *>(t.in), *at = static_cast<const char *>(t.out);
        const uint64_t bytes = t.count * width(Form(t.dtype));
        if (out && in != at && in < at + bytes && at < in + bytes) return last.set(FAIRLEAD_BAD_CALL, "%s: `in` and `out` overlap", wrong());
        if (t.count && (!t.in || (out && !t.out))) return last.set(FAIRLEAD_BAD_CALL, "%s has a NULL address", wrong());
    }
    return 0;
}

// What must be the same on every rank, by the end of its variable's name.
const char *const SETTINGS[] = {"NODE_RANKS", "SHARED_MEMORY", "DETERMINISTIC", "NONFINITE", "LIFELINE", "CHUNK_KB", "NONTEMPORAL", "ALGORITHM"};

struct Greeting {
    uint64_t protocol, chunk, run;
    int32_t settings[sizeof SETTINGS / sizeof *SETTINGS];
    char host[64];
};
constexpr uint64_t PROTOCOL = 8;  // between ranks; increase it whenever the contents of what they must agree on change

// A call that every rank makes in the lane of calls without a team.
int together(State &s, Kind kind, const Tensors &all_of, const Tensors &part, int operation, int root) {
    if (int bad = fairlead_team::catch_up(&last)) return bad;
    s.all.block(s.all.calls() + 1);
    const int bad = s.all.run(kind, all_of, part, operation, root, false, &last);
    if (!bad) s.all.unblock();  // after an error, others can still see where this rank stands
    return bad;
}

int known(State &s, const fairlead_team *team, const char *call) {
    for (const fairlead_team *one = load(&s.teams); one; one = one->next)
        if (one == team) return 0;
    return last.set(FAIRLEAD_BAD_CALL, "%s: there is no such team", call);
}

// Every rank's processors, to all of its machine, even to those that do not share memory with it.
int crowd(State &s) {
    const Mpi &mpi = s.mpi;
    Mpi::Handle machine = 0;
    int ranks = 0;
    Cpus mine;
    Room<Cpus> each;
    mine.read();
    if (int bad = mpi.check(mpi.Comm_split_type(mpi.world, mpi.shared_type, s.world.rank, mpi.info_null, &machine), "MPI_Comm_split_type", &last)) return bad;
    if (int bad = mpi.check(mpi.Comm_size(machine, &ranks), "MPI_Comm_size", &last)) return bad;
    if (!each.room(size_t(ranks))) return last.set(FAIRLEAD_NO_MEMORY, "no memory for the processors of %d ranks", ranks);
    if (int bad = mpi.check(mpi.Allgather(&mine, int(sizeof mine), mpi.byte, each.at(), int(sizeof mine), mpi.byte, machine), "MPI_Allgather", &last)) return bad;
    s.watch.crowded = outnumbered(mine, each.at(), ranks);
    return mpi.check(mpi.Comm_free(&machine), "MPI_Comm_free", &last);
}

// In MPI_Finalize, which waits for the others, while they wait for this rank in a call: the process lives on.
int leaves(Mpi::Handle, int, void *, void *) {
    State &s = state();
    if (load(&s.finalized) || s.here.forked()) return 0;
    s.all.leave(LEFT);
    for (fairlead_team *team = load(&s.teams); team; team = team->next) team->leave(LEFT);
    uint64_t calls[Lifeline::LANES] = {};
    for (int i = 0; i < load(&s.watch.count); i++) calls[i] = s.watch.lanes[i]->come();
    s.watch.lifeline.leave(calls);
    return 0;
}

int begin(State &s) {
    if (int bad = s.settings.read(&last)) return bad;
    Mpi &mpi = s.mpi;
    if (int bad = mpi.find(&last)) return bad;
    if (int bad = mpi.start(&last)) return bad;
    if (int bad = mpi.check(mpi.Comm_rank(mpi.world, &s.world.rank), "MPI_Comm_rank", &last)) return bad;
    if (int bad = mpi.check(mpi.Comm_size(mpi.world, &s.world.size), "MPI_Comm_size", &last)) return bad;
    char host[64] = "";
    gethostname(host, sizeof host - 1);
    // What must be the same on every rank, and the rank's host name.
    const uint64_t run = mixed(mixed(uint64_t(getpid()), now_ns()), uint64_t(time(nullptr)));
    const Settings &own = s.settings;
    const Greeting mine = {PROTOCOL, own.chunk, run, {own.node_ranks, own.shared_memory, own.deterministic, own.nonfinite, own.lifeline, own.chunk_fixed, own.past, own.algorithm}, {}};
    Room<Greeting> greetings;
    if (!s.hosts.room(size_t(s.world.size) * 64) || !greetings.room(size_t(s.world.size))) return last.set(FAIRLEAD_NO_MEMORY, "no memory for the names of %d hosts", s.world.size);
    memcpy(greetings.at(), &mine, sizeof mine);
    memcpy(greetings[0].host, host, sizeof host);
    const Greeting sent = greetings[0];
    if (int bad = mpi.check(mpi.Allgather(&sent, int(sizeof sent), mpi.byte, greetings.at(), int(sizeof sent), mpi.byte, mpi.world), "MPI_Allgather", &last)) return bad;
    for (int i = 0; i < s.world.size; i++) memcpy(s.hosts.at() + size_t(i) * 64, greetings[size_t(i)].host, 64);
    s.world.hosts = s.hosts.at(), s.world.watch = &s.watch, s.world.timeline = &s.timeline, s.world.areas = &s.areas;
    for (int i = 1; i < s.world.size; i++) {
        const Greeting &a = greetings[0], &b = greetings[size_t(i)];
        const char *what = a.protocol != b.protocol ? "have different versions of this library" : a.chunk != b.chunk ? "were given different FAIRLEAD_COMM_CHUNK_KB" : nullptr;
        if (what) return last.set(FAIRLEAD_DIFFER, "rank %d (%s) and rank 0 (%s) %s", i, b.host, a.host, what);
        for (size_t j = 0; j < sizeof SETTINGS / sizeof *SETTINGS; j++)
            if (a.settings[j] != b.settings[j]) return last.set(FAIRLEAD_DIFFER, "rank %d (%s) and rank 0 (%s) were given different FAIRLEAD_COMM_%s", i, b.host, a.host, SETTINGS[j]);
    }
    s.here.mark();
    s.clock.begin();
    s.timeline.open(s.world.rank, s.world.size, s.world.host(s.world.rank), greetings[0].run, s.settings.timeline_mb, s.settings.timeline_chunks);
    if (int bad = crowd(s)) return bad;
    if (int bad = s.all.open(mpi, mpi.world, s.world, s.settings, -1, 0, &last)) return bad;
    if (s.all.nodes() > 1 && !mpi.multiple() && s.world.rank == 0) {
        char line[1200];
        const int length = snprintf(line, sizeof line, "fairlead.comm: %.600s grants MPI_THREAD_%s: between nodes everything moves in the threads that call; started calls move when the program waits%s; " FAIRLEAD_ASK_FOR_THREADS "\n", mpi.library,
                                    mpi.threads == Mpi::SERIALIZED ? "SERIALIZED" : mpi.threads == Mpi::FUNNELED ? "FUNNELED" : "SINGLE", mpi.threads == Mpi::SERIALIZED ? "" : ", and only the thread that started MPI may call");
        if (length > 0 && write(2, line, least(size_t(length), sizeof line - 1)) < 0) return last.set(FAIRLEAD_BAD_CALL, "standard error cannot be written: %s", strerror(errno));
    }
    if (s.all.nodes() > 1)
        if (int bad = s.all.choose(&last)) return bad;
    if (s.all.nodes() > 1) s.watch.choice.explain(s.network, sizeof s.network);
    if (s.all.nodes() > 1)
        if (int bad = s.watch.exchange.open(mpi, mpi.world, s.world, &last)) return bad;
    if (s.all.nodes() > 1 && s.settings.lifeline && s.all.segment().place() == 0)
        if (int bad = s.watch.lifeline.open(mpi, s.all.leaders(), s.world, &last)) return bad;
    if (int bad = mpi.at_finalize(leaves, &last)) return bad;
    store(&s.ready, true);
    return 0;
}

// Two 64-bit sums over the bytes, in four streams to keep up with memory.
struct Digest {
    uint64_t a, b;
};
Digest digest(const void *bytes, size_t size) {
    const char *at = static_cast<const char *>(bytes);
    uint64_t h[4] = {1, 2, 3, 4}, words[4];
    size_t left = size;
    for (; left >= 32; left -= 32, at += 32) {
        memcpy(words, at, 32);
        for (int i = 0; i < 4; i++) {
            h[i] = (h[i] ^ words[i]) * 0x9e3779b97f4a7c15ull;
            h[i] ^= h[i] >> 29;
        }
    }
    memset(words, 0, sizeof words);
    if (left) memcpy(words, at, left);
    for (int i = 0; i < 4; i++) h[i] = mixed(h[i], words[i]);
    return {mixed(mixed(h[0], h[1]), size), mixed(mixed(h[2], h[3]), h[0])};
}

}  // namespace

API const char *fairlead_comm_error(void) { return last.text; }

API int fairlead_comm_init(void) {
    const char *call = "fairlead_comm_init";
    last.clear();
    State &s = state();
    if (load(&s.ready)) return usable(call);  // a fork of a process that was in a call has nobody who gives it the turn
    if (load(&s.finalized)) return last.set(FAIRLEAD_BAD_CALL, "%s was called after fairlead_comm_finalize; MPI can be started once in a process", call);
    const Turn turn(s, call);
    if (turn.bad) return turn.bad;
    return s.ready ? 0 : begin(s);
}

API int fairlead_comm_finalize(void) {
    State &s = state();
    last.clear();
    if (!load(&s.ready) && !load(&s.finalized)) return 0;
    if (load(&s.finalized)) return last.set(FAIRLEAD_BAD_CALL, "fairlead_comm_finalize was called twice by rank %d (%s)", s.world.rank, s.world.host(s.world.rank));
    if (int bad = usable("fairlead_comm_finalize", true)) return bad;
    const Turn turn(s, "fairlead_comm_finalize");
    if (turn.bad) return turn.bad;
    if (int bad = all_out(s)) return bad;
    int first = 0;
    Error error;
    error.clear();
    for (fairlead_team *team = s.teams; team; team = team->next)
        if (int bad = team->drain(&error))
            if (!first) first = bad, last = error;
    const Tensors none = {nullptr, 0};
    // A rank that waits for this one in a team would wait forever.
    for (fairlead_team *team = s.teams; team; team = team->next) team->leave();
    store(&s.watch.ended, uint32_t(1));
    if (!first) first = together(s, FINALIZE, none, none, 0, 0);
    if (first) s.all.leave();
    store(&s.finalized, true);
    s.timeline.flush();
    if (first) return first;  // other ranks will not come to what follows
    s.watch.lifeline.close();
    if (int bad = s.watch.exchange.close(&last)) return bad;
    for (fairlead_team *team = s.teams; team; team = team->next) team->close();
    s.all.close();
    store(&s.ready, false);
    int ended = 0;
    if (s.mpi.ours && !s.mpi.Finalized(&ended) && !ended) return s.mpi.check(s.mpi.Finalize(), "MPI_Finalize", &last);
    return 0;
}

API int fairlead_comm_while_waiting(int (*go_on)(void)) {
    Watch::go_on = go_on;
    return 0;
}

API int fairlead_comm_rank(void) { return load(&state().ready) ? state().world.rank : -1; }
API int fairlead_comm_size(void) { return load(&state().ready) ? state().world.size : -1; }
API int fairlead_comm_local_rank(void) { return load(&state().ready) ? state().all.segment().place() : -1; }
API int fairlead_comm_local_size(void) { return load(&state().ready) ? state().all.segment().ranks() : -1; }

API int fairlead_comm_crowded(void) { return load(&state().ready) ? state().watch.crowded : -1; }

API const char *fairlead_comm_threads(void) { return load(&state().ready) ? state().mpi.level() : ""; }

API const char *fairlead_comm_network(void) { return load(&state().ready) ? state().network : ""; }

API int fairlead_comm_layout(fairlead_layout *layout) {
    if (int bad = usable("fairlead_comm_layout")) return bad;
    if (!layout) return last.set(FAIRLEAD_BAD_CALL, "fairlead_comm_layout: layout is NULL");
    const State &s = state();
    const Segment &segment = s.all.segment();
    // A team may have got less memory than the first lane.
    const char *why_not = s.all.why_not();
    for (const fairlead_team *team = load(&s.teams); team; team = team->next)
        if (!*why_not) why_not = team->why_not();
    *layout = {s.world.rank, s.world.size, segment.place(), segment.ranks(), s.all.nodes(), !*why_not, s.mpi.name(), s.mpi.library, kernels().name, why_not, s.world.host(s.world.rank)};
    return 0;
}

API int fairlead_comm_explain(fairlead_team *team, char *text, uint64_t room) {
    const char *call = "fairlead_comm_explain";
    if (int bad = usable(call)) return bad;
    if (!text || !room) return last.set(FAIRLEAD_BAD_CALL, "%s: there is no room for a text", call);
    State &s = state();
    if (team)
        if (int bad = known(s, team, call)) return bad;
    text[0] = 0;
    (team ? team->tuning() : s.all.tuning()).explain(text, room, s.clock);
    return 0;
}

API int fairlead_comm_team(int threads, fairlead_team **team) {
    if (int bad = usable("fairlead_comm_team", true)) return bad;
    if (!team) return last.set(FAIRLEAD_BAD_CALL, "fairlead_comm_team: team is NULL");
    if (threads < 1 || threads > fairlead_team::MOST_LANES) return last.set(FAIRLEAD_BAD_CALL, "fairlead_comm_team: a team has 1 to %d threads, not %d", fairlead_team::MOST_LANES, threads);
    State &s = state();
    const Turn turn(s, "fairlead_comm_team");
    if (turn.bad) return turn.bad;
    const Tensors none = {nullptr, 0};
    if (int bad = together(s, TEAM, none, none, 0, threads)) return bad;
    void *place = nullptr;
    if (posix_memalign(&place, alignof(fairlead_team), sizeof(fairlead_team))) return last.set(FAIRLEAD_NO_MEMORY, "no memory for a team");
    fairlead_team *made = new (place) fairlead_team;
    // Every rank's thread has come here, so none waits for another while it has the turn.
    const MpiTurn alone(s.mpi);
    if (int bad = made->open(s.mpi, s.mpi.world, s.world, s.settings, s.count, threads, &last)) return bad;
    s.count++;
    made->next = s.teams;
    store(&s.teams, made);
    *team = made;
    return 0;
}

API int fairlead_comm_alloc(uint64_t bytes, void **at) {
    const char *call = "fairlead_comm_alloc";
    if (int bad = usable(call, true)) return bad;
    if (!at) return last.set(FAIRLEAD_BAD_CALL, "%s: at is NULL", call);
    if (!bytes || bytes > uint64_t(1) << 46) return last.set(FAIRLEAD_BAD_CALL, "%s: %llu bytes are not between 1 and 2^46", call, static_cast<unsigned long long>(bytes));
    if (reinterpret_cast<uintptr_t>(*at) % 4096 || (*at && bytes % 4096)) return last.set(FAIRLEAD_BAD_CALL, "%s: memory that is to be shared starts and ends with a page of 4096 bytes", call);
    State &s = state();
    const Turn turn(s, call);
    if (turn.bad) return turn.bad;
    const fairlead_tensor size = {nullptr, nullptr, bytes, FAIRLEAD_BYTES, 0, nullptr};
    if (int bad = together(s, ALLOC, {&size, 1}, {nullptr, 0}, 0, *at != nullptr)) return bad;
    const MpiTurn alone(s.mpi);
    char why[700];
    if (int bad = s.areas.open(s.mpi, s.mpi.world, s.all.node(), bytes, at, why, sizeof why, &last)) return bad;
    if (*why && s.all.segment().place() == 0) {
        char line[900];
        const int length = snprintf(line, sizeof line, "fairlead.comm: %llu bytes of tensors are copied in each call: %.600s\n", static_cast<unsigned long long>(bytes), why);
        if (length > 0 && write(2, line, least(size_t(length), sizeof line - 1)) < 0) return 0;
    }
    return 0;
}

API int fairlead_comm_free(void *at) {
    const char *call = "fairlead_comm_free";
    last.clear();
    State &s = state();
    if (s.here.forked()) return last.set(FAIRLEAD_BAD_CALL, "%s was called in a fork of rank %d", call, s.world.rank);
    return s.areas.close(at) ? 0 : last.set(FAIRLEAD_BAD_CALL, "%s: no shared memory starts at %p", call, at);
}

API int fairlead_comm_team_name(fairlead_team *team, const char *name) {
    const char *call = "fairlead_comm_team_name";
    if (int bad = usable(call)) return bad;
    if (int bad = known(state(), team, call)) return bad;
    if (!name || !*name) return last.set(FAIRLEAD_BAD_CALL, "%s: name is NULL or empty", call);
    team->name(name);
    return 0;
}

namespace {
int check_operation(int operation, const char *call) {
    const int wire = operation >> 8;
    if ((operation & 0xff) > (FAIRLEAD_MEAN | FAIRLEAD_ANY) || (wire && wire != F16 && wire != BF16)) return last.set(FAIRLEAD_BAD_CALL, "%s: there is no operation %d", call, operation);
    return 0;
}
}  // namespace

API int fairlead_comm_aggregate(fairlead_team *team, const fairlead_tensor *tensors, uint64_t count, int operation) {
    const char *call = "fairlead_comm_aggregate";
    if (int bad = usable(call)) return bad;
    if (int bad = check_operation(operation, call)) return bad;
    if (int bad = known(tensors, count, call, true, operation & 1, true)) return bad;
    if (!team) {
        State &s = state();
        const Turn turn(s, "fairlead_comm_aggregate");
        if (turn.bad) return turn.bad;
        const Tensors list = {tensors, count};
        return together(s, AGGREGATE, list, list, operation, 0);
    }
    const Within within(state(), call);
    if (within.bad) return within.bad;
    if (int bad = known(state(), team, call)) return bad;
    return team->aggregate(tensors, count, operation, &last);
}

API int fairlead_comm_start(fairlead_team *team, const fairlead_tensor *tensors, uint64_t count, int operation, uint64_t *ticket) {
    const char *call = "fairlead_comm_start";
    if (int bad = usable(call)) return bad;
    if (int bad = check_operation(operation, call)) return bad;
    if (int bad = known(tensors, count, call, true, operation & 1, true)) return bad;
    const Within within(state(), call);
    if (within.bad) return within.bad;
    if (int bad = known(state(), team, call)) return bad;
    if (!ticket) return last.set(FAIRLEAD_BAD_CALL, "%s: ticket is NULL", call);
    return team->start(tensors, count, operation, ticket, &last);
}

API int fairlead_comm_done(fairlead_team *team, uint64_t ticket) {
    const char *call = "fairlead_comm_done";
    if (int bad = usable(call)) return bad;
    const Within within(state(), call);
    if (within.bad) return within.bad;
    if (int bad = known(state(), team, call)) return bad;
    return team->done(ticket, &last);
}

API int fairlead_comm_wait(fairlead_team *team, uint64_t ticket) {
    const char *call = "fairlead_comm_wait";
    if (int bad = usable(call)) return bad;
    const Within within(state(), call);
    if (within.bad) return within.bad;
    if (int bad = known(state(), team, call)) return bad;
    return team->wait_for(ticket, &last);
}

API int fairlead_comm_stats(fairlead_team *team, fairlead_stats *stats) {
    const char *call = "fairlead_comm_stats";
    if (int bad = usable(call)) return bad;
    if (!stats) return last.set(FAIRLEAD_BAD_CALL, "%s: stats is NULL", call);
    if (!team) {
        *stats = in_seconds(state().all.spent(), state().clock);
        return 0;
    }
    if (int bad = known(state(), team, call)) return bad;
    *stats = team->stats(state().clock);
    return 0;
}

API int fairlead_comm_broadcast(const fairlead_tensor *tensors, uint64_t count, int root) {
    const char *call = "fairlead_comm_broadcast";
    if (int bad = usable(call)) return bad;
    if (int bad = known(tensors, count, call, false, false, true)) return bad;
    State &s = state();
    if (root < 0 || root >= s.world.size) return last.set(FAIRLEAD_BAD_CALL, "%s: there is no rank %d among %d", call, root, s.world.size);
    const Turn turn(s, "fairlead_comm_broadcast");
    if (turn.bad) return turn.bad;
    const Tensors list = {tensors, count};
    return together(s, BROADCAST, list, list, 0, root);
}

API int fairlead_comm_average(double *values, uint64_t count) {
    if (int bad = usable("fairlead_comm_average")) return bad;
    if (count && !values) return last.set(FAIRLEAD_BAD_CALL, "fairlead_comm_average: values is NULL");
    State &s = state();
    const Turn turn(s, "fairlead_comm_average");
    if (turn.bad) return turn.bad;
    fairlead_tensor t = {values, values, count, FAIRLEAD_FLOAT64, 0, nullptr};
    const Tensors list = {&t, 1};
    return together(s, AVERAGE, list, list, FAIRLEAD_MEAN, 0);
}

API int fairlead_comm_barrier(void) {
    if (int bad = usable("fairlead_comm_barrier")) return bad;
    State &s = state();
    const Turn turn(s, "fairlead_comm_barrier");
    if (turn.bad) return turn.bad;
    const Tensors none = {nullptr, 0};
    return together(s, BARRIER, none, none, 0, 0);
}

API int fairlead_comm_gather(const void *mine, uint64_t bytes, void *all) {
    const char *call = "fairlead_comm_gather";
    if (int bad = usable(call)) return bad;
    if (bytes > uint64_t(1) << 40) return last.set(FAIRLEAD_BAD_CALL, "%s: %llu bytes are too many", call, static_cast<unsigned long long>(bytes));
    if (bytes && (!mine || !all)) return last.set(FAIRLEAD_BAD_CALL, "%s: an address is NULL", call);
    State &s = state();
    const Turn turn(s, "fairlead_comm_gather");
    if (turn.bad) return turn.bad;
    // A row with one entry per rank, zero except this rank's: the sum holds them all.
    const size_t ranks = size_t(s.world.size), own = size_t(s.world.rank), words = (bytes + 7) / 8;
    Room<int64_t> row;
    if (!row.room(ranks * words + 1)) return last.set(FAIRLEAD_NO_MEMORY, "%s: no memory for %llu bytes of %zu ranks", call, static_cast<unsigned long long>(bytes), ranks);
    for (size_t i = 0; i < ranks * words; i++) row[i] = 0;
    if (bytes) memcpy(row.at() + own * words, mine, bytes);
    fairlead_tensor t = {row.at(), row.at(), ranks * words, FAIRLEAD_INT64, 0, nullptr};
    const Tensors list = {&t, 1};
    if (int bad = together(s, GATHER, list, list, FAIRLEAD_SUM, 0)) return bad;
    for (size_t i = 0; i < ranks && bytes; i++) memcpy(static_cast<char *>(all) + i * bytes, row.at() + i * words, bytes);
    return 0;
}

API int fairlead_comm_match(const fairlead_tensor *tensors, uint64_t count, fairlead_match *match) {
    const char *call = "fairlead_comm_match";
    if (int bad = usable(call)) return bad;
    if (int bad = known(tensors, count, call, false, false, false)) return bad;
    if (!match) return last.set(FAIRLEAD_BAD_CALL, "%s: match is NULL", call);
    State &s = state();
    const Turn turn(s, "fairlead_comm_match");
    if (turn.bad) return turn.bad;
    const size_t ranks = size_t(s.world.size), mine = size_t(s.world.rank);
    Room<Digest> ours, firsts;
    Room<int64_t> found;
    if (!ours.room(count + 1) || !firsts.room(count + 1) || !found.room(ranks)) return last.set(FAIRLEAD_NO_MEMORY, "%s: no memory for the digests", call);
    for (uint64_t i = 0; i < count; i++) ours[i] = digest(tensors[i].in, tensors[i].count * width(Form(tensors[i].dtype)));
    // Rank 0's digests to all ranks; then each rank's first difference to all, as a row with one entry per rank.
    fairlead_tensor sums = {ours.at(), firsts.at(), count * sizeof(Digest), FAIRLEAD_BYTES, 0, nullptr};
    const Tensors greetings = {&sums, 1}, all_of = {tensors, count};
    if (int bad = together(s, MATCH, all_of, greetings, 0, 0)) return bad;
    memset(found.at(), 0, ranks * sizeof(int64_t));
    for (uint64_t i = 0; i < count && !found[mine]; i++)
        if (ours[i].a != firsts[i].a || ours[i].b != firsts[i].b) found[mine] = int64_t(i) + 1;
    fairlead_tensor row = {found.at(), found.at(), ranks, FAIRLEAD_INT64, 0, nullptr};
    const Tensors rows = {&row, 1};
    if (int bad = together(s, GATHER, rows, rows, FAIRLEAD_SUM, 0)) return bad;
    *match = {1, -1, -1};
    for (size_t i = 0; i < ranks; i++)
        if (found[i] && (match->matches || found[i] - 1 < match->tensor)) *match = {0, int32_t(i), found[i] - 1};
    return 0;
}
