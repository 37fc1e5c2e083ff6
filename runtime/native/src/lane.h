// One stream of collectives over all ranks: a communicator and a segment of its own, one thread at a time.
//
// A collective is a pipeline of chunks. Every rank owns a share of each chunk. It hands the others its part of
// their shares (`packed`), sums its own share from what it received (`summed`), reduces the share over the network
// if there are several nodes (`reduced`), and takes the results of the others (`taken`). So each rank reads and
// writes an element about once, whatever the number of ranks, and the stages of different chunks overlap.
#pragma once

#include "fairlead_comm.h"
#include "choice.h"
#include "exchange.h"
#include "finite.h"
#include "kernels.h"
#include "lifeline.h"
#include "mpi.h"
#include "mpi_transport.h"
#include "segment.h"
#include "shared.h"
#include "timeline.h"

namespace fairlead {

// Kinds of call.
enum Kind : uint64_t { AGGREGATE = 1, BROADCAST = 2, FINALIZE = 3, BARRIER = 4, AVERAGE = 5, MATCH = 6, TEAM = 7, GATHER = 8, ALLOC = 9 };
enum Odd { WARN, STOP, IGNORE };

const char *kind_name(uint64_t kind);  // of Call::kind

// Settings of this process, read once from the environment.
struct Settings {
    double stall_s, timeout_s;
    long spin_us;   // before a wait yields
    long poll_us;   // between two polls of the network by a helper thread, at most
    size_t chunk;   // bytes, at most
    bool chunk_fixed;
    int past;       // 1: results are written with non-temporal stores; 0: not; -1: as it takes less time
    int node_ranks;  // at most so many ranks share memory; 0: all of a node
    bool shared_memory;
    int nonfinite;  // what to do about NaN and infinity: of enum Odd
    double timeline_mb;
    bool timeline_chunks;
    bool lifeline;  // nodes watch each other over TCP
    bool deterministic;  // sums of nodes are added in the order of the nodes
    Algorithm algorithm;  // between nodes; AUTO: as measured
    int read(Error *error);
};

struct Tensors {
    const fairlead_tensor *at;
    uint64_t count;
};

// Tensors of one dtype, as one sequence of elements.
class Stream {
  public:
    int set(const fairlead_tensor *tensors, uint64_t count, Form form, Error *error);
    uint64_t elements() const { return elements_; }
    Form form() const { return form_; }
    // Calls `use(in, out, n)` for the pieces of [from, to).
    template <class Use> void each(uint64_t from, uint64_t to, Use &&use) const;
    // Whether all of it, input and output, lies in these areas; and a number that is the same on ranks where it lies at
    // the same offsets of the same areas, or 0.
    static uint64_t shared_at(const Tensors &tensors, const Areas &areas);

  private:
    struct Piece {
        const char *in;
        char *out;
        uint64_t start;
    };
    mutable Room<Piece> pieces_;
    uint64_t count_ = 0, elements_ = 0;
    Form form_ = F32;
};

class Lane;

// What the threads of this process wait for, to detect ranks that wait for each other in different lanes.
struct Watch {
    static constexpr int MOST = Standing::MOST_LANES;
    static_assert(MOST == Lifeline::LANES);
    Lane *lanes[MOST] = {};  // the same number on every rank; the seats' `blocked` is that of the first
    int count = 0;
    uint32_t ended = 0;  // finalize was called
    Exchange exchange;   // with other nodes; opened if there are any, as is
    Lifeline lifeline;   // this
    Choice choice;       // of the algorithm between nodes, for all lanes
    pthread_t caller = {};
    uint32_t callers = 0;  // threads that have called: 0, 1, or 2 for several
    static __thread int (*go_on)(void);  // each thread has its own
    bool crowded = false;  // ranks of this node outnumber the processors that they and this one may use
    uint32_t reported_odd = 0;  // this rank has reported that it passed NaN or infinity
    static bool interrupted() { return go_on && !go_on(); }
};

// The ranks of the run, and their names for messages.
struct World {
    int rank, size;
    Watch *watch;
    Timeline *timeline;
    const char *hosts;  // 64 bytes for each rank
    const Areas *areas = nullptr;
    const char *host(int of) const { return hosts + size_t(of) * 64; }
};

class Lane {
  public:
    // Collective over `from`. `team`, and `part`, the lane's number in it, are for messages; -1: none.
    int open(Mpi &mpi, Mpi::Handle from, const World &world, const Settings &settings, int team, int part, Error *error);
    void close();
    // Collective, once the first lane is open: measures how fast nodes reach each other.
    int choose(Error *error);

    // Reduces `part`, after all ranks have agreed on `all_of`. `operation` is SUM or MEAN and, in bits 8 and up,
    // the form in which float32 travels. `helper`: called by a helper thread, which waits without using a core.
    int run(Kind kind, const Tensors &all_of, const Tensors &part, int operation, int root, bool helper, Error *error);

    const Segment &segment() const { return segment_; }
    const Tuning &tuning() const { return tuning_; }
    const char *why_not() const { return why_not_; }
    int nodes() const { return nodes_; }
    // On the first rank of each node: those ranks.
    Mpi::Handle leaders() const { return leaders_; }
    // The ranks of this node.
    Mpi::Handle node() const { return node_; }
    int node_of(int rank) { return node_of_[size_t(rank)]; }
    // This rank comes to no further call, here or because of an earlier failure.
    void leave(End how = FINALIZED);
    // So many calls have been started, by any thread.
    void promise(uint64_t calls) { store(&segment_.mine().promised, calls); }
    uint64_t calls() const { return calls_; }
    const char *name() const { return name_; }
    void name(const char *name);
    // For other ranks: the calls that this rank has come to or started.
    uint64_t come() const { return most(load(&segment_.mine().arrived), load(&segment_.mine().promised)); }
    // The calling thread waits for this call only, until `unblock`.
    void block(uint64_t call);
    void unblock();
    // Polled while waiting: set when another lane's part of the call has failed.
    void abandon_on(const uint32_t *flag) { abandoned_ = flag; }
    // As fairlead_stats, in ticks.
    struct Spent {
        uint64_t calls, bytes, wait, move, stalls, aggregates;
    };
    // From any thread, without waiting: a sum may include a call that a count does not yet.
    Spent spent() const {
        Spent now;
        for (uint64_t Spent::*each : {&Spent::calls, &Spent::bytes, &Spent::wait, &Spent::move, &Spent::stalls, &Spent::aggregates}) now.*each = __atomic_load_n(&(spent_.*each), __ATOMIC_RELAXED);
        return now;
    }

  private:
    class Wait;
    int agree(const Call &call, const Tensors &tensors, const Tensors *carried, Wait &wait, Error *error);
    bool spreads(const Call &call) const;
    void load_small(const Tensors &tensors, const Call &call);
    void take_small(const Tensors &tensors, const Call &call, double scale);
    bool odd_here(const fairlead_tensor &tensor, size_t given);
    int differ(const Call &call, const Tensors &tensors, Wait &wait, Error *error);
    // Until the request is complete.
    int complete(Mpi::Handle *request, Wait &wait, Error *error);
    // `size` bytes of rank `root`, to all ranks.
    int spread_bytes(void *bytes, size_t size, int root, Wait &wait, Error *error);
    void flat(const fairlead_tensor *tensors, uint64_t count, Kind kind, int operation, int root);
    int reduce(const Stream &stream, Form wire, double scale, const Way &way, Wait &wait, Error *error);
    // The same where all ranks see the tensors of all.
    int reduce_shared(const Stream &stream, double scale, const Way &way, Wait &wait, Error *error);
    int reduce_shared_far(const Stream &stream, double scale, Wait &wait, Error *error);
    int spread(const Stream &stream, int root, Wait &wait, Error *error);
    template <class Ready> int until(Ready &&ready, Wait &wait, Error *error);
    // Begins the sum of a chunk over the nodes, as one of DEPTH in flight. `advance` moves all of them, and reports progress to `wait`.
    int post(char *at, size_t count, Form form, uint64_t slot, Error *error);
    int advance(uint64_t slot, bool *done, Wait &wait, Error *error);
    int test(Mpi::Handle *request, bool *done, Error *error);
    bool all(uint64_t Seat::*counter, uint64_t least);
    // NaN and infinity, which show in the sums: see odd.cpp. A rank that finds them in its share of the sums
    // notifies the others of its node before they take it, and each then checks its own input.
    void doubt(const char *in, const char *sums, Form form, Form summed, uint64_t n, bool kept);
    void look(const char *in, Form form, uint64_t n);
    void doubt_shared(const void *const *sources, Form form, uint64_t n, const char *in);
    void look_flat(const fairlead_tensor &tensor, size_t at);
    bool doubted(int place) const { return looks_ && load(&segment_.seat(place).odd[number_ & 1].doubted) == number_; }
    void name_odd(char *words, size_t size, int rank, const char *what, uint64_t tensor, uint64_t element) const;
    void name_sum(char *words, size_t size, const char *what, uint64_t tensor, uint64_t element) const;
    void find(const char *at, Form form, uint64_t *tensor, uint64_t *element) const;
    void say_odd(const char *words);
    int judge(int nonfinite, Wait &wait, Error *error);

    Mpi *mpi_ = nullptr;
    const World *world_ = nullptr;
    const Settings *settings_ = nullptr;
    char name_[64] = "";
    int part_ = 0;  // of its team
    Mpi::Handle comm_ = 0, node_ = 0, leaders_ = 0, peers_ = 0;
    MpiTransport across_, between_;  // to the ranks that send the same share across the network; between leaders
    Reduction flights_[DEPTH], agreement_;
    uint64_t posts_ = 0;
    int senders_ = 1;  // ranks of a node that send to other nodes, its first ones
    int nodes_ = 1;
    int local_ = 0, locals_ = 1;
    Room<int> node_of_, place_of_;  // of each rank
    Segment segment_;
    char why_not_[700] = "";
    uint64_t calls_ = 0, chunks_ = 0;
    int slowest_ = 0;
    bool broken_ = false, told_apart_ = false;
    void blame(const Error &error) const;
    int id_ = -1;  // index in the watch
    const uint32_t *abandoned_ = nullptr;
    Room<char> message_;   // of the agreement; MPI may still write to it after a call has failed,
    Room<Call> calls_of_;  // and to these: the calls of all ranks where they differ
    Call ours_;
    Error broke_;
    Laps laps_;
    Tuning tuning_;
    bool looks_ = false;  // in this call
    // Where this rank's tensors lie in memory that ranks share, as a number, or 0; whether all ranks sum in place.
    uint64_t may_share_ = 0;
    bool shared_ = false;
    int fullest_ = 1, fewest_ = 1;  // ranks of a node, on any
    bool small_few_ = false;        // a small call's elements are next to the arrivals
    // Where a rank of this node has them, once all have come.
    char *small(int place) {
        const uint64_t parity = (calls_ - 1) & 1;
        return small_few_ ? segment_.few(place, parity) : segment_.flat(place, parity);
    }
    uint64_t kind_ = 0, number_ = 0;  // of this call, and
    Tensors all_of_ = {};             // all of its tensors
    int64_t odd_[2];      // the lowest rank that passed NaN or infinity; MPI may write to it later
    Stream streams_[7];
    Spent spent_ = {};
    void spend(uint64_t Spent::*what, uint64_t more) { __atomic_store_n(&(spent_.*what), spent_.*what + more, __ATOMIC_RELAXED); }
};

inline fairlead_stats in_seconds(const Lane::Spent &spent, const Ticks &clock) {
    const double wait = clock.seconds(spent.wait), move = clock.seconds(spent.move);
    return {spent.calls, spent.bytes, wait, move, wait + move, spent.stalls, spent.aggregates};
}

}  // namespace fairlead
