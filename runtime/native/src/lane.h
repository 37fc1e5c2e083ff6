// One stream of collectives over all ranks: a communicator and a segment of its own, one thread at a time.
//
// A collective is a pipeline of chunks. Every rank owns a share of each chunk. It gives the others what it
// has of theirs (`packed`), adds up its own share from what it was given (`summed`), the share goes over
// the network where there are several nodes (`reduced`), and everyone takes the others' results (`taken`).
// So each rank reads and writes an element about once for itself, whatever the number of ranks, and the
// stages of different chunks overlap.
#pragma once

#include "fairlead_comm.h"
#include "exchange.h"
#include "finite.h"
#include "kernels.h"
#include "lifeline.h"
#include "mpi.h"
#include "segment.h"
#include "timeline.h"

namespace fairlead {

// Kinds of call.
enum Kind : uint64_t { AGGREGATE = 1, BROADCAST = 2, FINALIZE = 3, BARRIER = 4, AVERAGE = 5, MATCH = 6, TEAM = 7, GATHER = 8 };
enum Odd { TELL, STOP, IGNORE };

const char *kind_name(uint64_t kind);  // of Call::kind

// Settings of this process, read once from the environment.
struct Settings {
    double stall_s, timeout_s;
    long spin_us;   // before a wait gives way to others
    long poll_us;   // between looks at the network, of a helper thread
    size_t chunk;   // bytes
    int node_ranks;  // that share memory at most; 0: all of a node
    bool shared_memory;
    int nonfinite;  // what is done about NaN and infinities: of enum Odd
    double timeline_mb;
    bool timeline_chunks;
    bool lifeline;  // nodes watch each other by TCP
    bool deterministic;  // nodes' sums are added in the order of the nodes, not in one of MPI's
    int read(Error *error);
};

// Tensors of one dtype, as one row of elements.
class Stream {
  public:
    int set(const fairlead_tensor *tensors, uint64_t count, Form form, Error *error);
    uint64_t elements() const { return elements_; }
    Form form() const { return form_; }
    // Calls `use(in, out, n)` for the pieces of [from, to).
    template <class Use> void each(uint64_t from, uint64_t to, Use &&use) const;

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

// What this process's threads wait for, so that ranks that wait for each other in different lanes find out.
struct Watch {
    static constexpr int MOST = Standing::MOST_LANES;
    Lane *lanes[MOST] = {};  // the same number on every rank; the first is that of the seats' `blocked`
    int count = 0;
    uint32_t ended = 0;  // finalize was called
    Exchange exchange;   // with other nodes; opened where there are any, as
    Lifeline lifeline;   // this
    pthread_t caller = {};
    uint32_t callers = 0;  // threads that have called: 0, 1, or 2 for several
    int (*go_on)(void) = nullptr;  // asked by the thread that gave it
    pthread_t asked = {};
    uint32_t told_odd = 0;  // this rank has said that it passed NaN or infinity
    bool interrupted() const { return go_on && pthread_equal(asked, pthread_self()) && !go_on(); }
};

// The ranks of the run, and names for messages.
struct World {
    int rank, size;
    Watch *watch;
    Timeline *timeline;
    const char *hosts;  // of each rank, 64 bytes each
    const char *host(int of) const { return hosts + size_t(of) * 64; }
};

struct Tensors {
    const fairlead_tensor *at;
    uint64_t count;
};

class Lane {
  public:
    // Collective over `from`. `team` and `part`, the lane's number in it, are for messages; -1: none.
    int open(Mpi &mpi, Mpi::Handle from, const World &world, const Settings &settings, int team, int part, Error *error);
    void close();

    // Moves `part`, once all ranks have shown to have the same `all_of`. `operation` is SUM or MEAN and, in
    // bits 8 and up, the form in which float32 travels. `helper`: of a thread beside the one that computes;
    // it waits without using a core.
    int run(Kind kind, const Tensors &all_of, const Tensors &part, int operation, int root, bool helper, Error *error);

    const Segment &segment() const { return segment_; }
    const char *why_not() const { return why_not_; }
    int nodes() const { return nodes_; }
    int node_of(int rank) { return node_of_[size_t(rank)]; }
    // This rank comes to no further call, here or by an earlier failure.
    void leave();
    // So many calls are started, by whichever thread.
    void promise(uint64_t calls) { store(&segment_.mine().promised, calls); }
    uint64_t calls() const { return calls_; }
    const char *name() const { return name_; }
    // For other ranks: the calls that this one has come to or has started; the call in whose agreement it has
    // waited for long, and its kind (0: none).
    uint64_t come() const { return most(load(&segment_.mine().arrived), load(&segment_.mine().promised)); }
    uint64_t awaited() const { return load(&awaited_); }
    uint64_t kind() const { return load(&kind_); }
    // The calling thread waits for this call and for nothing else, until told otherwise.
    void block(uint64_t call);
    void unblock();
    // While it waits it looks whether this is set: another lane's part of its call has failed.
    void abandon_on(const uint32_t *flag) { abandoned_ = flag; }
    // As fairlead_stats, in ticks.
    struct Spent {
        uint64_t calls, bytes, wait, move, stalls, aggregates;
    };
    Spent spent = {};

  private:
    class Wait;
    int agree(const Call &call, const Tensors &tensors, Wait &wait, Error *error);
    int differ(const Call &call, const Tensors &tensors, Error *error);
    void flat(const fairlead_tensor *tensors, uint64_t count, bool few, Kind kind, int operation, int root);
    int reduce(const Stream &stream, Form wire, double scale, Wait &wait, Error *error);
    int spread(const Stream &stream, int root, Wait &wait, Error *error);
    template <class Ready> int until(Ready &&ready, Wait &wait, Error *error);
    int post(char *at, size_t count, Form form, Mpi::Handle *request, Error *error);
    Mpi::Handle type_of(Form form) const;
    // The same in the order of the nodes: each node gets its piece of all others', adds them up, and gives the
    // sum to all. `slot` is the chunk's place among those in flight.
    struct Pieces {
        char *mine, *theirs;
        size_t each;  // elements
    };
    Pieces pieces(size_t count, uint64_t slot);
    int scatter(const char *at, size_t count, Form form, uint64_t slot, Mpi::Handle *request, Error *error);
    int collect(size_t count, Form form, uint64_t slot, Mpi::Handle *request, Error *error);
    int test(Mpi::Handle *request, bool *done, Error *error);
    bool all(uint64_t Seat::*counter, uint64_t least);
    // NaN and infinities, of which the sums tell: odd.cpp. A rank whose share of the sums is odd says so to the
    // others of its node before they take it, and each looks whether it has passed something odd there itself.
    void doubt(const char *in, const char *sums, Form form, Form summed, uint64_t n, bool kept);
    void look(const char *in, Form form, uint64_t n);
    void look_flat(const fairlead_tensor &tensor, bool few, uint64_t parity, size_t at);
    bool doubted(int place) const { return looks_ && load(&segment_.seat(place).odd[number_ & 1].doubted) == number_; }
    void name_odd(char *words, size_t size, int rank, const char *what, uint64_t tensor, uint64_t element) const;
    void name_sum(char *words, size_t size, const char *what, uint64_t tensor, uint64_t element) const;
    void find(const char *at, Form form, uint64_t *tensor, uint64_t *element) const;
    void say_odd(const char *words);
    int judge(int nonfinite, Wait &wait, Error *error);

    Mpi *mpi_ = nullptr;
    const World *world_ = nullptr;
    const Settings *settings_ = nullptr;
    char name_[24] = "";
    Mpi::Handle comm_ = 0, node_ = 0, leaders_ = 0, peers_ = 0;
    // Of the ranks that take this one's share across. Non-blocking collectives must be called in the same order
    // everywhere: what is called when something else has ended has a communicator of its own.
    Mpi::Handle across_ = 0, collected_ = 0;
    Room<char> pieces_;
    Room<const void *> sources_;
    Room<Form> forms_;
    bool even_ = true;    // every node has the same number of ranks: each share has a network of its own
    int nodes_ = 1;
    int local_ = 0, locals_ = 1;
    Room<int> node_of_, place_of_;  // of each rank
    Segment segment_;
    char why_not_[700] = "";
    uint64_t calls_ = 0, chunks_ = 0;
    int slowest_ = 0;
    bool crowded_ = false;  // more ranks here than processors
    bool broken_ = false, told_apart_ = false;
    int id_ = -1;  // in the watch
    const uint32_t *abandoned_ = nullptr;
    uint64_t awaited_ = 0;
    int64_t mark_[2], largest_[2];  // of the agreement; MPI may still write there after a call has failed
    Error broke_;
    Laps laps_;
    bool looks_ = false;  // in this call
    uint64_t kind_ = 0, number_ = 0;  // of this call, and
    Tensors all_of_ = {};             // all of its tensors
    int64_t odd_[2];      // the lowest rank that has passed something odd: MPI may write there later
    Stream streams_[7];
};

inline fairlead_stats in_seconds(const Lane::Spent &spent, const Ticks &clock) {
    const double wait = clock.seconds(spent.wait), move = clock.seconds(spent.move);
    return {spent.calls, spent.bytes, wait, move, wait + move, spent.stalls, spent.aggregates};
}

}  // namespace fairlead
