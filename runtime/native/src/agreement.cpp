// Ranks agree on a call before any data moves, or learn in what they differ.
#include "chunks.h"
#include "wait.h"

namespace fairlead {
namespace {

constexpr int AGREEMENT_TAG = 8192;  // above those of chunks

// What the first ranks of nodes send each other. The elements of a small call follow, those of halves as float32.
struct Message {
    uint64_t call;    // its kind, dtypes and counts as a number; 0 where not all are the same
    uint64_t shared;  // where all ranks may sum in place, or 0
};

// The elements that travel with the agreement.
struct Carried {
    const Tensors &tensors;
    bool spreads;  // from one node, whose message is the only one that is not 0
};

template <class Use> void each_carried(const Tensors &tensors, Use &&use) {
    size_t given = 0, carried = sizeof(Message);
    for (uint64_t i = 0; i < tensors.count; i++) {
        const fairlead_tensor &t = tensors.at[i];
        const Form form = Form(t.dtype), wide = summed_in(form);
        use(t, form, wide, given, carried);
        given += rounded_up(t.count * width(form), 8), carried += rounded_up(t.count * width(wide), 8);
    }
}

size_t size_with(const Tensors *tensors) {
    size_t bytes = sizeof(Message);
    for (uint64_t i = 0; tensors && i < tensors->count; i++) bytes += rounded_up(tensors->at[i].count * width(summed_in(Form(tensors->at[i].dtype))), 8);
    return bytes;
}

void merged(const void *context, void *to, const void *lower, const void *higher) {
    Message a, b;
    memcpy(&a, lower, sizeof a), memcpy(&b, higher, sizeof b);
    if (a.call != b.call) a.call = 0;
    if (a.shared != b.shared) a.shared = 0;
    memcpy(to, &a, sizeof a);
    if (!context || !a.call) return;  // the messages differ in size
    const Carried &carried = *static_cast<const Carried *>(context);
    each_carried(carried.tensors, [&](const fairlead_tensor &t, Form form, Form wide, size_t, size_t at) {
        const void *sources[] = {static_cast<const char *>(lower) + at, static_cast<const char *>(higher) + at};
        char *sum = static_cast<char *>(to) + at;
        const Form forms[] = {wide, wide};
        if (!carried.spreads) return void(kernels().sum(sum, wide, nullptr, wide, sources, forms, 2, t.count, 1, false));
        for (uint64_t i = 0; i < t.count * width(form); i++) sum[i] = static_cast<const char *>(sources[0])[i] | static_cast<const char *>(sources[1])[i];
    });
}

const char *form_name(uint64_t form) {
    static const char *const names[] = {"float32", "float64", "float16", "bfloat16", "int32", "int64", "bytes"};
    return form < 7 ? names[form] : "?";
}

}  // namespace

// The ranks of a node agree by their seats; then the first of each does with those of other nodes, and its seat shows
// what has come of it. The elements of a small call, `carried`, are in the seats, and travel with the agreement.
int Lane::agree(const Call &call, const Tensors &tensors, const Tensors *carried, Wait &wait, Error *error) {
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
        const size_t bytes = size_with(carried), most = sizeof(Message) + 2 * segment_.flat_room();
        if (!message_.room(most)) return error->set(FAIRLEAD_NO_MEMORY, "no memory for what %d nodes agree on", nodes_);
        Message message = {same ? mixed(mixed(mixed(mixed(0, call.kind), call.signature), call.count), bytes) | 1 : 0, shared_};
        memcpy(message_.at(), &message, sizeof message);
        const Carried with = {carried ? *carried : tensors, spreads(call)};
        if (carried && same) load_small(*carried, call);
        if (int bad = agreement_.begin(between_, {merged, carried ? &with : nullptr}, message_.at(), bytes, most, AGREEMENT_TAG, error)) return bad;
        bool done = false;
        int failed = 0;
        wait.network = true;
        const int bad = until([&] { return (failed = agreement_.step(&done, error)) || done; }, wait, error);
        if (bad || failed) return bad ? bad : failed;
        memcpy(&message, message_.at(), sizeof message);
        same = message.call != 0, shared_ = message.shared != 0;
        if (carried && same) memcpy(segment_.result(0), message_.at(), bytes);  // all have left the call that used it
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

bool Lane::spreads(const Call &call) const { return (call.kind & 0xff) == BROADCAST || (call.kind & 0xff) == MATCH; }

// What this node's ranks have in their seats, as one node's elements.
void Lane::load_small(const Tensors &tensors, const Call &call) {
    const int root = int(call.kind >> 32);
    const bool whole = spreads(call);
    Seat &mine = segment_.mine();
    each_carried(tensors, [&](const fairlead_tensor &t, Form form, Form wide, size_t given, size_t at) {
        char *to = message_.at() + at;
        if (whole) {
            if (node_of_[size_t(root)] == node_of_[size_t(world_->rank)]) memcpy(to, small(place_of_[size_t(root)]) + given, t.count * width(form));
            else memset(to, 0, t.count * width(form));
            return;
        }
        const void *sources[MOST_CARRIED];
        Form forms[MOST_CARRIED];
        for (int i = 0; i < locals_; i++) sources[i] = small(i) + given, forms[i] = form;
        if (kernels().sum(to, wide, nullptr, wide, sources, forms, locals_, t.count, 1, false)) store(&mine.odd_small, calls_);
    });
}

// The sums of all nodes, or what the root gave.
void Lane::take_small(const Tensors &tensors, const Call &call, double scale) {
    const bool odd = looks_ && load(&segment_.seat(0).odd_small) == calls_;
    each_carried(tensors, [&](const fairlead_tensor &t, Form form, Form wide, size_t given, size_t at) {
        const void *source = segment_.result(0) + at;
        if (!spreads(call)) kernels().sum(t.out, form, nullptr, form, &source, &wide, 1, t.count, scale, false);
        else if (t.out) memmove(t.out, source, t.count * width(form));
        if (odd && odd_here(t, given)) look_flat(t, given);
    });
}

// Whether the sum of this node's elements of a tensor is NaN or infinite.
bool Lane::odd_here(const fairlead_tensor &t, size_t given) {
    const Form form = Form(t.dtype), wide = summed_in(form);
    double sums[64];
    for (uint64_t from = 0; from < t.count; from += 64) {
        const void *sources[MOST_CARRIED];
        Form forms[MOST_CARRIED];
        for (int i = 0; i < locals_; i++) sources[i] = small(i) + given + from * width(form), forms[i] = form;
        if (kernels().sum(sums, wide, nullptr, wide, sources, forms, locals_, least(t.count - from, uint64_t(64)), 1, false)) return true;
    }
    return false;
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

}  // namespace fairlead
