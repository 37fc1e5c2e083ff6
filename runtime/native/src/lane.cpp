#include "chunks.h"
#include "wait.h"

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

// Between nodes: a result larger than this exceeds a core's share of the caches. It is written with non-temporal stores,
// which keep the exchanged chunks cached and need not read the old contents.
constexpr size_t PAST = size_t(4) << 20;

constexpr int MOST_SENDERS = 4;  // ranks of a node, as many as it may have adapters

// Between nodes ranks sum in place what is worth a message for each of its tensors.
constexpr uint64_t LEAST_SHARED = 256 << 10, LEAST_OF_EACH = 64 << 10;

}  // namespace

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
    if (int code = segment_.open(mpi, node_, world.rank, least(chunk, settings.chunk), count < world.size, why_not_, sizeof why_not_, error)) return code;
    if (!settings.shared_memory) snprintf(why_not_, sizeof why_not_, "FAIRLEAD_COMM_SHARED_MEMORY=0");
    local_ = segment_.place(), locals_ = segment_.ranks();
    tuning_.open(segment_.chunk(), settings.chunk_fixed, settings.past, locals_);
    // Nodes are numbered by their first ranks.
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
    int64_t bounds[2] = {locals_, -locals_}, of_all[2];
    if (int code = bad(mpi.Allreduce(bounds, of_all, 2, mpi.i64, mpi.max, comm_), "MPI_Allreduce")) return code;
    fullest_ = int(of_all[0]), fewest_ = -int(of_all[1]), senders_ = least(fewest_, MOST_SENDERS);
    if (int code = bad(mpi.Comm_split(comm_, local_, int(common), &peers_), "MPI_Comm_split")) return code;
    for (Mpi::Handle comm : {node_, leaders_, peers_})
        if (int code = bad(mpi.Comm_set_errhandler(comm, mpi.errors_return), "MPI_Comm_set_errhandler")) return code;
    if (int code = across_.set(mpi, peers_, error)) return code;
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
    // Small elements travel with the arrival; between nodes, with the agreement.
    const bool carried = nodes_ > 1 && padded <= least(world_->watch->choice.carried(), uint64_t(segment_.flat_room())) && padded * uint64_t(fullest_) <= CARRIED_NODE && fullest_ <= MOST_CARRIED &&
                         nonfinite != STOP && (!settings_->deterministic || spreads(call)) && !wire_bits;
    const bool flat_fits = carried || (nodes_ == 1 && padded <= FLAT && locals_ <= FLAT_RANKS && !wire_bits);
    const bool few = small_few_ = padded <= FEW;
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
        const bool far = nodes_ == 1 || (fullest_ == fewest_ && bytes >= LEAST_SHARED && bytes / most(count, uint64_t(1)) >= LEAST_OF_EACH && !used[F16] && !used[BF16]);
        if (far && world_->areas->any()) may_share_ = Stream::shared_at(part, *world_->areas);
        memcpy(segment_.few(local_, calls_ & 1), &may_share_, sizeof may_share_);
    }
    Wait wait(*this, helper, call.kind);
    laps_.begin(uint32_t(id_ < 0 ? Timeline::LANES - 1 : id_), calls_ + 1);
    int bad = agree(call, all_of, carried ? &part : nullptr, wait, error);
    const uint64_t agreed = ticks(), agreed_ns = laps_.on() ? now_ns() : 0;
    const bool failed = bad;
    const bool shared = !bad && shared_;
    const Way usual = {uint32_t(segment_.chunk() >> 10), bytes > PAST};
    bool in_place = true;  // results go where the inputs were: what is read is cached, so stores are ordinary
    for (uint64_t i = 0; i < count; i++) in_place = in_place && tensors[i].in == tensors[i].out;
    const bool tuned = !bad && kind == AGGREGATE && nodes_ == 1 && locals_ > 1 && !flat_fits && !(shared && in_place);
    const Way &way = tuned ? tuning_.begin(bytes, shared, locals_, [&](int place) -> const Tuning::Notes & { return segment_.seat(place).notes; }) : usual;
    if (!bad && carried) take_small(part, call, operation & 1 ? 1.0 / world_->size : 1);
    else if (!bad && flat_fits) flat(tensors, count, kind, operation, root);
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
