#include "team.h"

#include <csignal>
#include <sys/prctl.h>

using namespace fairlead;

namespace {
// Below it several lanes cost more than they gain.
constexpr uint64_t SHARED_FROM = 1 << 20;  // bytes

// What this thread has started and not yet done, of teams whose calls move in the caller's thread.
struct Started {
    fairlead_team *team;
    uint64_t ticket;
};
constexpr int MOST_PENDING = 64;
__thread Started pending[MOST_PENDING];
__thread int pending_count;
}  // namespace

int fairlead_team::open(Mpi &mpi, Mpi::Handle from, const World &world, const Settings &settings, int number, int threads, Error *error) {
    count_ = threads;
    broke_.clear();
    for (int i = 0; i < count_; i++) {
        if (int bad = lanes_[i].open(mpi, from, world, settings, number, i, error)) return bad;
        if (count_ > 1) lanes_[i].abandon_on(&failed_);
    }
    in_caller_ = !mpi.multiple() && lanes_[0].nodes() > 1;
    return 0;
}

const char *fairlead_team::why_not() const {
    for (int i = 0; i < count_; i++)
        if (*lanes_[i].why_not()) return lanes_[i].why_not();
    return "";
}

void fairlead_team::dismiss(int started) {
    store(&leaving_, uint32_t(1));
    __atomic_fetch_add(&issued_bell_, 1, __ATOMIC_RELEASE);
    futex_wake(&issued_bell_);
    for (int i = 0; i < started; i++) pthread_join(helpers_[i].thread, nullptr);
    store(&leaving_, uint32_t(0));
}

void fairlead_team::close() {
    if (hired_) dismiss(count_);
    hired_ = false;
    for (int i = 0; i < count_; i++) lanes_[i].close();
}

int fairlead_team::hire(Error *error) {
    if (hired_ || in_caller_) return 0;
    // Signals are for the threads of the program, except those of the thread's own faults, and a profiler's.
    sigset_t every, before;
    sigfillset(&every);
    for (const int own : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGSYS, SIGPROF}) sigdelset(&every, own);
    pthread_sigmask(SIG_SETMASK, &every, &before);
    int bad = 0, started = 0;
    for (; started < count_; started++) {
        helpers_[started] = {this, started, issued_, {}};
        bad = pthread_create(&helpers_[started].thread, nullptr, help, &helpers_[started]);
        if (bad) break;
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    if (bad) dismiss(started);
    if (bad) return error->set(FAIRLEAD_NO_MEMORY, "a helper thread cannot be started: %s", strerror(bad));
    hired_ = true;
    return 0;
}

void *fairlead_team::help(void *of) {
    const Helper &helper = *static_cast<Helper *>(of);
    fairlead_team &team = *helper.team;
    syscall(SYS_prctl, PR_SET_TIMERSLACK, 1000UL, 0UL, 0UL, 0UL);  // ns; else each short sleep takes 50 us longer
    for (uint64_t ticket = helper.first;; ticket++) {
        for (;;) {
            uint32_t bell = load(&team.issued_bell_);
            if (load(&team.issued_) > ticket) break;
            if (load(&team.leaving_)) return nullptr;
            futex_wait(&team.issued_bell_, bell, 1000000);
        }
        // Its slot is reused only when it is done: if it is not, `direct` belonged to this request.
        const bool direct = helper.lane == 0 && __atomic_load_n(&team.requests_[ticket % MOST_STARTED].direct, __ATOMIC_ACQUIRE);
        while (load(&team.finished_[helper.lane]) <= ticket) {
            uint32_t bell = load(&team.finished_bell_);
            if (!direct) team.work(helper.lane, ticket, true);
            else if (load(&team.finished_[0]) <= ticket) team.sleep(bell, 1000000);
        }
    }
}

void fairlead_team::work(int lane, uint64_t ticket, bool helper) {
    Request &request = requests_[ticket % MOST_STARTED];
    const Tensors all_of = {request.tensors.at(), request.count}, part = {count_ > 1 ? request.parts[lane].at() : all_of.at, count_ > 1 ? request.counts[lane] : all_of.count};
    Error error;
    error.clear();
    if (lane == 0 || part.count) lanes_[lane].run(AGGREGATE, all_of, part, request.operation, 0, helper, &error);
    const bool broken = error.status && error.status != FAIRLEAD_NONFINITE;
    {
        Lock lock(mutex_);
        // The same words on every rank: those of the first lane.
        if (error.status && (!request.error.status || lane < request.odd)) request.error = error, request.odd = lane;
        if (broken && !broke_.status) broke_ = error;
    }
    if (broken) store(&failed_, uint32_t(1));
    store(&finished_[lane], ticket + 1);
    __atomic_fetch_add(&finished_bell_, 1, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&sleepers_, __ATOMIC_SEQ_CST)) futex_wake(&finished_bell_);
}

// Each lane's part of the elements; a small tensor goes to the first lane whole.
int fairlead_team::cut(Request &request, Error *error) {
    uint64_t bytes = 0, pieces = request.count + 1;
    for (uint64_t i = 0; i < request.count; i++) bytes += request.tensors[i].count * width(Form(request.tensors[i].dtype));
    for (int lane = 0; lane < count_; lane++) {
        request.counts[lane] = 0;
        if (!request.parts[lane].room(pieces)) return error->set(FAIRLEAD_NO_MEMORY, "no memory for a list of tensors");
    }
    const uint64_t lanes = bytes < SHARED_FROM ? 1 : uint64_t(count_);
    uint64_t at = 0;
    for (uint64_t i = 0; i < request.count; i++) {
        const fairlead_tensor &t = request.tensors[i];
        const uint64_t w = width(Form(t.dtype));
        for (uint64_t done = 0; done < t.count;) {
            const uint64_t lane = least(at * lanes / most(bytes, uint64_t(1)), lanes - 1);
            const uint64_t end = lane + 1 == lanes ? bytes : (bytes * (lane + 1) + lanes - 1) / lanes;
            const uint64_t n = least(t.count - done, most((end - at + w - 1) / w, uint64_t(1)));
            fairlead_tensor &part = request.parts[lane][request.counts[lane]++];
            part = t;
            part.in = static_cast<const char *>(t.in) + done * w;
            part.out = static_cast<char *>(t.out) + done * w;
            part.count = n;
            done += n, at += n * w;
        }
    }
    return 0;
}

int fairlead_team::begin(const fairlead_tensor *tensors, uint64_t count, int operation, bool direct, uint64_t *ticket, Error *error) {
    const uint64_t next = issued_;
    Request &request = requests_[next % MOST_STARTED];
    if (next >= MOST_STARTED) {  // the slot in the ring must be free, and its last user must know how it ended
        const bool reported = request.reported;
        const int bad = wait(next - MOST_STARTED, error);
        if (bad && !reported) return bad;
        error->clear();
        if (bad) {
            Lock lock(mutex_);
            Old &old = old_[olds_++ % MOST_OLD];
            if (old.status) forgotten_ = old.ticket + 1;
            old = {next - MOST_STARTED, bad};
        }
    }
    if (count_ > 1 && load(&failed_)) {
        Lock lock(mutex_);
        return error->set(broke_.status, "an earlier call of %s failed: %.1000s", lanes_[0].name(), broke_.text);
    }
    if (!request.tensors.room(count + 1)) return error->set(FAIRLEAD_NO_MEMORY, "no memory for a list of %llu tensors", static_cast<unsigned long long>(count));
    if (count) memcpy(request.tensors.at(), tensors, count * sizeof *tensors);
    request.count = count, request.operation = operation;
    __atomic_store_n(&request.direct, direct, __ATOMIC_RELEASE);
    request.error.clear(), request.reported = false;
    if (count_ > 1)
        if (int bad = cut(request, error)) return bad;
    *ticket = next;
    lanes_[0].promise(next + 1);
    store(&issued_, next + 1);
    // What the caller does alone is no reason to wake a helper: it passes over it when it is woken for another call.
    if (hired_ && !(direct && count_ == 1)) {
        __atomic_fetch_add(&issued_bell_, 1, __ATOMIC_RELEASE);
        futex_wake(&issued_bell_);
    }
    return 0;
}

// Without helpers and with one lane there is nothing to hand over.
int fairlead_team::alone(const fairlead_tensor *tensors, uint64_t count, int operation, Error *error) {
    const uint64_t ticket = issued_;
    Request &request = requests_[ticket % MOST_STARTED];
    Lane &lane = lanes_[0];
    request.error.clear(), request.reported = false;
    store(&issued_, ticket + 1);
    moved_ = ticket + 1;
    lane.block(ticket + 1);
    const Lane::Spent before = lane.spent();
    const Tensors all_of = {tensors, count};
    const int bad = lane.run(AGGREGATE, all_of, all_of, operation, 0, false, error);
    const Lane::Spent after = lane.spent();
    spend(after.wait + after.move - before.wait - before.move);
    store(&finished_[0], ticket + 1);
    if (!bad) lane.unblock();
    else request.error = *error, request.reported = true;
    return bad;
}

int fairlead_team::aggregate(const fairlead_tensor *tensors, uint64_t count, int operation, Error *error) {
    if (int bad = catch_up(error)) return bad;
    if (count_ == 1 && !hired_ && moved_ == issued_) return alone(tensors, count, operation, error);
    const uint64_t begun = ticks();
    uint64_t ticket = 0;
    if (count_ > 1)
        if (int bad = hire(error)) return bad;
    // Calls that were started earlier come first, on every rank.
    const bool direct = !in_caller_ && (issued_ == 0 || finished(issued_ - 1));
    if (int bad = begin(tensors, count, operation, direct, &ticket, error)) return bad;
    lanes_[0].block(ticket + 1);
    if (direct) work(0, ticket, false);
    int bad = wait(ticket, error);
    if (!bad) lanes_[0].unblock();
    spend(between(begun, ticks()));
    return bad;
}

int fairlead_team::start(const fairlead_tensor *tensors, uint64_t count, int operation, uint64_t *ticket, Error *error) {
    if (int bad = hire(error)) return bad;
    if (in_caller_ && pending_count == MOST_PENDING)
        if (int bad = catch_up(error)) return bad;
    if (int bad = begin(tensors, count, operation, false, ticket, error)) return bad;
    if (in_caller_) pending[pending_count++] = {this, *ticket};
    return 0;
}

bool fairlead_team::finished(uint64_t ticket) const {
    for (int i = 0; i < count_; i++)
        if (load(&finished_[i]) <= ticket) return false;
    return true;
}

bool fairlead_team::done(uint64_t ticket, Error *error) {
    settle(ticket, error);
    return finished(ticket);
}

int fairlead_team::catch_up(Error *error) {
    int bad = 0;
    for (int i = 0; i < pending_count && !bad; i++) bad = pending[i].team->move(pending[i].ticket, error);
    pending_count = 0;  // after an interrupt the team of the rest is unusable, or its calls move when they are waited for
    return bad;
}

// Another thread may have started that call.
int fairlead_team::settle(uint64_t ticket, Error *error) {
    if (!in_caller_ || ticket >= issued_) return 0;
    if (int bad = catch_up(error)) return bad;
    return move(ticket, error);
}

int fairlead_team::move(uint64_t ticket, Error *error) {
    Lock lock(moving_);
    for (; moved_ <= ticket; moved_++) {
        lanes_[0].block(moved_ + 1);
        for (int lane = 0; lane < count_; lane++) work(lane, moved_, false);
        const Request &request = requests_[moved_ % MOST_STARTED];
        if (!request.error.status) lanes_[0].unblock();
        else if (request.error.status == FAIRLEAD_INTERRUPTED) {
            moved_++;
            return error->set(request.error.status, "%s", request.error.text);
        }
    }
    return 0;
}

int fairlead_team::wait(uint64_t ticket, Error *error) {
    if (ticket >= issued_) return error->set(FAIRLEAD_BAD_CALL, "ticket %llu was never given; %llu were", static_cast<unsigned long long>(ticket), static_cast<unsigned long long>(issued_));
    if (ticket + MOST_STARTED < issued_) {  // its slot was reused, so it is done
        Lock lock(mutex_);
        for (const Old &old : old_)
            if (old.status && old.ticket == ticket) return error->set(old.status, "call %llu of %s has failed; %llu were started after it, and its message is kept no longer", static_cast<unsigned long long>(ticket + 1), lanes_[0].name(), static_cast<unsigned long long>(issued_ - ticket - 1));
        if (ticket < forgotten_) return error->set(FAIRLEAD_BAD_CALL, "how call %llu of %s ended is known no longer: %d calls after it have failed", static_cast<unsigned long long>(ticket + 1), lanes_[0].name(), MOST_OLD);
        return 0;
    }
    if (int bad = settle(ticket, error)) return bad;
    while (!finished(ticket)) {
        uint32_t bell = load(&finished_bell_);
        if (finished(ticket)) break;
        sleep(bell, 100000);
        if (!finished(ticket) && Watch::interrupted()) return error->set(FAIRLEAD_INTERRUPTED, "interrupted while waiting for ticket %llu", static_cast<unsigned long long>(ticket));
    }
    Lock lock(mutex_);
    Request &request = requests_[ticket % MOST_STARTED];
    request.reported = request.error.status != 0;
    return request.reported ? error->set(request.error.status, "%s", request.error.text) : 0;
}

int fairlead_team::wait_for(uint64_t ticket, Error *error) {
    const uint64_t begun = ticks();
    lanes_[0].block(ticket + 1);
    int bad = wait(ticket, error);
    if (!bad || bad == FAIRLEAD_BAD_CALL || bad == FAIRLEAD_INTERRUPTED) lanes_[0].unblock();
    spend(between(begun, ticks()));
    return bad;
}

int fairlead_team::drain(Error *error) { return issued_ ? wait(issued_ - 1, error) : 0; }

fairlead_stats fairlead_team::stats(const Ticks &clock) {
    fairlead_stats sum = in_seconds(lanes_[0].spent(), clock);
    for (int i = 1; i < count_; i++) {
        const Lane::Spent one = lanes_[i].spent();
        sum.bytes += one.bytes, sum.stalls += one.stalls;
    }
    sum.blocked_s = clock.seconds(__atomic_load_n(&blocked_, __ATOMIC_RELAXED));
    return sum;
}
