// Sums over nodes as messages between them.
//
// An algorithm is a list of rounds; in a round a node sends a range of its elements to one node and receives a range
// from one. A reduction goes through its rounds when it is stepped, and never waits. It knows neither threads nor MPI:
// a transport carries its messages, so the same code runs over MPI, in a simulator, and between threads in tests.
#pragma once

#include "kernels.h"

namespace fairlead {

// Messages from one node to another with the same tag arrive in the order in which they were sent. They may be smaller
// than the receiver expects, never larger.
class Transport {
  public:
    int rank = 0, size = 1;
    virtual int send(const void *from, size_t bytes, int to, int tag, long *request, Error *error) = 0;
    virtual int receive(void *to, size_t bytes, int from, int tag, long *request, Error *error) = 0;
    virtual int test(long *request, bool *done, Error *error) = 0;
    // What carries messages may know a sum of its own, in place: it is one of the algorithms then.
    virtual bool sums() const { return false; }
    virtual int sum(void *, uint64_t, Form, long *, Error *) { return 0; }
    // Called while nothing moves; it may wait until something has.
    virtual void idle() { sched_yield(); }

  protected:
    ~Transport() = default;
};

// Recursive doubling exchanges everything with nodes at distance 1, 2, 4 and so on. The others scatter the sums over
// the nodes and gather them: in one ring (RING); in halves, near nodes first, so that most bytes stay near (HALVING);
// in rings of `group` near nodes, then in rings of the prime factors of the number of groups (GROUPS). ORDERED sends
// each node its part from all others; it adds them in the order of the nodes. BY_MPI is the transport's own.
//
// Sources: R. Thakur, R. Rabenseifner, W. Gropp, Optimization of Collective Communication Operations in MPICH, IJHPCA
// 19 (2005); P. Patarasuk, X. Yuan, Bandwidth optimal all-reduce algorithms, JPDC 69 (2009).
enum Algorithm : int { AUTO, BY_MPI, DOUBLING, HALVING, RING, GROUPS, ORDERED };
const char *algorithm_name(Algorithm algorithm);
// Of a name; -1: there is none.
int algorithm_of(const char *name);

struct Shape {
    Algorithm algorithm = HALVING;
    int group = 0;  // of GROUPS: it divides the number of nodes
};

// What a node does in a round, in elements. ADD: what comes is added; COPY: it replaces; KEEP: it is kept for the end.
struct Round {
    enum What { COPY, ADD, KEEP };
    int to = -1, from = -1;
    uint64_t give = 0, gives = 0, take = 0, takes = 0;
    What what = COPY;
};

// The rounds of one node.
class Plan {
  public:
    static constexpr int MOST_FACTORS = 64;
    void set(Shape shape, int rank, int size, uint64_t count);
    int rounds() const { return rounds_; }
    Round round(int index) const;
    // Where the sums of pieces that were kept go.
    uint64_t piece_at(int node) const { return piece(0, count_, node, size_); }
    // Of the scattering: nodes that take part, and the sizes of its rings, nearest first.
    static int factors(Shape shape, int size, int *factors, int *taking_part);

  private:
    static uint64_t piece(uint64_t at, uint64_t count, int index, int of) { return at + count * uint64_t(index) / uint64_t(of); }
    int real(int virtual_rank) const { return virtual_rank < extra_ ? 2 * virtual_rank : virtual_rank + extra_; }
    Round ring(int level, int step, bool gathers) const;

    Shape shape_;
    int rank_ = 0, size_ = 1, rounds_ = 0;
    int part_ = 1, extra_ = 0, virtual_ = 0;  // nodes that take part, those that do not, and this node's number
    int factors_[MOST_FACTORS], levels_ = 0;
    uint64_t count_ = 0;
};

// How two nodes' elements become one's, `lower` those of the node with the lower number: into `to`, one of them.
using Combine = void (*)(void *to, const void *lower, const void *higher, size_t count, Form form);
void add(void *to, const void *lower, const void *higher, size_t count, Form form);

// The same of messages, which may differ in size between nodes that have gone out of step.
struct Merge {
    void (*merge)(const void *context, void *to, const void *lower, const void *higher);
    const void *context;
};

// The sum of all nodes' elements, in place, for one node. All nodes begin the same reductions, those with the same tag
// in the same order, and at most `tags` apart.
class Reduction {
  public:
    int begin(Transport &transport, Shape shape, void *data, uint64_t count, Form form, int tag, Error *error, Combine combine = add);
    // What all nodes' messages merge to, by recursive doubling, in place: in `data` there is room for `most` bytes, the
    // largest message of any node.
    int begin(Transport &transport, Merge merge, void *data, uint64_t bytes, uint64_t most, int tag, Error *error);
    // Goes on as far as it can now.
    int step(bool *done, Error *error);
    bool active() const { return active_; }
    int rounds() const { return index_; }  // that are done

  private:
    int post(Error *error);
    void finish();

    Transport *transport_ = nullptr;
    Combine combine_ = add;
    Merge merge_ = {};
    uint64_t most_ = 0;  // of a message; 0: both sides know the size
    Plan plan_;
    Shape shape_;
    Round round_;
    char *data_ = nullptr;
    uint64_t count_ = 0;
    Form form_ = F32;
    int tag_ = 0, index_ = 0;
    bool active_ = false, sending_ = false, receiving_ = false;
    long sent_ = 0, received_ = 0;
    Room<char> kept_;  // what has come and is not yet added
    Room<const void *> sources_;
    Room<Form> forms_;
};

}  // namespace fairlead
