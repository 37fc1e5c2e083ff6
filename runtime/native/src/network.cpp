#include "network.h"

#include "fairlead_comm.h"

// Of libstdc++, which is not linked: what an abstract class calls in its own constructor, so never.
extern "C" void __cxa_pure_virtual() { abort(); }

namespace fairlead {
namespace {

const char *const NAMES[] = {"auto", "mpi", "doubling", "halving", "ring", "groups", "ordered"};

int power_of_two_within(int size) {
    int power = 1;
    while (2 * power <= size) power *= 2;
    return power;
}

// Appends the prime factors of `number`, the least first.
int primes(int number, int *to) {
    int count = 0;
    for (int prime = 2; number > 1; prime++) {
        if (prime * prime > number) prime = number;
        for (; number % prime == 0; number /= prime) to[count++] = prime;
    }
    return count;
}

}  // namespace

const char *algorithm_name(Algorithm algorithm) { return NAMES[algorithm]; }

int algorithm_of(const char *name) {
    for (int i = AUTO; i < ORDERED; i++)
        if (!strcmp(name, NAMES[i])) return i;
    return -1;
}

// --- rounds ----------------------------------------------------------------------------------

int Plan::factors(Shape shape, int size, int *factors, int *taking_part) {
    *taking_part = shape.algorithm == DOUBLING || shape.algorithm == HALVING ? power_of_two_within(size) : size;
    if (shape.algorithm == RING || *taking_part == 1) {
        factors[0] = size;
        return *taking_part > 1;
    }
    if (shape.algorithm != GROUPS || shape.group < 2 || size % shape.group) return primes(*taking_part, factors);
    factors[0] = shape.group;
    return 1 + primes(size / shape.group, factors + 1);
}

void Plan::set(Shape shape, int rank, int size, uint64_t count) {
    shape_ = shape, rank_ = rank, size_ = size, count_ = count;
    if (shape.algorithm == ORDERED) {
        rounds_ = 2 * (size - 1);
        return;
    }
    levels_ = factors(shape, size, factors_, &part_);
    extra_ = size - part_;
    virtual_ = rank < 2 * extra_ ? rank / 2 : rank - extra_;
    rounds_ = 0;
    for (int i = 0; i < levels_; i++) rounds_ += shape.algorithm == DOUBLING ? 1 : 2 * (factors_[i] - 1);
    if (extra_) rounds_ += 2;
}

// In each level the range of the one before is divided among the nodes of a ring.
Round Plan::ring(int level, int step, bool gathers) const {
    uint64_t at = 0, end = count_;
    int stride = 1;
    for (int i = 0; i < level; stride *= factors_[i++]) {
        const int own = virtual_ / stride % factors_[i];
        const uint64_t begin = at, count = end - at;
        at = piece(begin, count, own, factors_[i]), end = piece(begin, count, own + 1, factors_[i]);
    }
    const int many = factors_[level], own = virtual_ / stride % many, lowest = virtual_ - own * stride;
    const int given = (own + 2 * many - step - (gathers ? 0 : 1)) % many, taken = (given + many - 1) % many;
    auto begin = [&](int index) { return piece(at, end - at, index, many); };
    Round round;
    round.to = real(lowest + (own + 1) % many * stride), round.from = real(lowest + (own + many - 1) % many * stride);
    round.give = begin(given), round.gives = begin(given + 1) - round.give;
    round.take = begin(taken), round.takes = begin(taken + 1) - round.take;
    round.what = gathers ? Round::COPY : Round::ADD;
    return round;
}

Round Plan::round(int index) const {
    Round round;
    if (shape_.algorithm == ORDERED) {
        const int step = index < size_ - 1 ? index + 1 : index - (size_ - 1);
        if (index < size_ - 1) {
            round.to = (rank_ + step) % size_, round.from = (rank_ + size_ - step) % size_;
            round.give = piece_at(round.to), round.gives = piece_at(round.to + 1) - round.give;
            round.take = piece_at(rank_), round.takes = piece_at(rank_ + 1) - round.take;
            round.what = Round::KEEP;
        } else {
            const int given = (rank_ + size_ - step) % size_, taken = (given + size_ - 1) % size_;
            round.to = (rank_ + 1) % size_, round.from = (rank_ + size_ - 1) % size_;
            round.give = piece_at(given), round.gives = piece_at(given + 1) - round.give;
            round.take = piece_at(taken), round.takes = piece_at(taken + 1) - round.take;
        }
        return round;
    }
    if (extra_) {
        const bool first = index == 0, last = index == rounds_ - 1, idle = rank_ < 2 * extra_ && rank_ % 2;
        if (first || last) {
            if (rank_ >= 2 * extra_) return round;
            const int other = rank_ ^ 1;
            if (first == idle) round.to = other, round.gives = count_;
            else round.from = other, round.takes = count_;
            round.what = first ? Round::ADD : Round::COPY;
            return round;
        }
        if (idle) return round;
        index--;
    }
    if (shape_.algorithm == DOUBLING) {
        round.to = round.from = real(virtual_ ^ 1 << index);
        round.gives = round.takes = count_;
        round.what = Round::ADD;
        return round;
    }
    const int half = (rounds_ - (extra_ ? 2 : 0)) / 2;
    const bool gathers = index >= half;
    int step = gathers ? index - half : index, level = gathers ? levels_ - 1 : 0;
    for (; step >= factors_[level] - 1; level += gathers ? -1 : 1) step -= factors_[level] - 1;
    return ring(level, step, gathers);
}

// --- a reduction -----------------------------------------------------------------------------

void add(void *to, const void *lower, const void *higher, size_t count, Form form) {
    const void *sources[] = {lower, higher};
    const Form forms[] = {form, form};
    kernels().sum(to, form, nullptr, form, sources, forms, 2, count, 1, false);
}

int Reduction::begin(Transport &transport, Shape shape, void *data, uint64_t count, Form form, int tag, Error *error, Combine combine) {
    transport_ = &transport, shape_ = shape, data_ = static_cast<char *>(data), count_ = count, form_ = form, tag_ = tag, combine_ = combine;
    most_ = 0, index_ = 0, active_ = true, sending_ = receiving_ = false;
    if (shape.algorithm == BY_MPI) {
        plan_.set({}, 0, 1, 0);
        receiving_ = true;
        return transport.sum(data, count, form, &received_, error);
    }
    plan_.set(shape, transport.rank, transport.size, count);
    uint64_t most_kept = 0;
    if (shape.algorithm == ORDERED) {
        const size_t nodes = size_t(transport.size);
        most_kept = nodes * (plan_.piece_at(transport.rank + 1) - plan_.piece_at(transport.rank));
        if (!sources_.room(nodes) || !forms_.room(nodes)) return error->set(FAIRLEAD_NO_MEMORY, "no memory for the pieces of %d nodes", transport.size);
    } else
        for (int i = 0; i < least(plan_.rounds(), 2); i++) {  // later ones are one element longer at most
            const Round round = plan_.round(i);
            if (round.what == Round::ADD) most_kept = most(most_kept, round.takes);
        }
    if (!kept_.room((most_kept + 1) * width(form))) return error->set(FAIRLEAD_NO_MEMORY, "no memory for what %d nodes send each other", transport.size);
    return plan_.rounds() ? post(error) : 0;
}

int Reduction::begin(Transport &transport, Merge merge, void *data, uint64_t bytes, uint64_t most, int tag, Error *error) {
    transport_ = &transport, shape_ = {DOUBLING}, data_ = static_cast<char *>(data), count_ = bytes, form_ = RAW, tag_ = tag, merge_ = merge;
    most_ = most, index_ = 0, active_ = true, sending_ = receiving_ = false;
    plan_.set(shape_, transport.rank, transport.size, bytes);
    if (!kept_.room(most)) return error->set(FAIRLEAD_NO_MEMORY, "no memory for what %d nodes send each other", transport.size);
    return plan_.rounds() ? post(error) : 0;
}

int Reduction::post(Error *error) {
    round_ = plan_.round(index_);
    const size_t wide = width(form_);
    char *to = data_ + round_.take * wide;
    if (round_.what == Round::ADD) to = kept_.at();
    if (round_.what == Round::KEEP) to = kept_.at() + size_t(round_.from) * size_t(round_.takes) * wide;
    // A node that has nothing to send in a round says nothing; the other side knows.
    if (round_.from >= 0 && round_.takes) {
        if (int bad = transport_->receive(to, most_ ? most_ : round_.takes * wide, round_.from, tag_, &received_, error)) return bad;
        receiving_ = true;
    }
    if (round_.to >= 0 && round_.gives) {
        if (int bad = transport_->send(data_ + round_.give * wide, round_.gives * wide, round_.to, tag_, &sent_, error)) return bad;
        sending_ = true;
    }
    return 0;
}

// What a round has brought.
void Reduction::finish() {
    const size_t wide = width(form_);
    if (round_.what == Round::ADD && round_.from >= 0) {
        char *own = data_ + round_.take * wide;
        const void *lower = own, *higher = kept_.at();
        if (round_.from < transport_->rank) lower = kept_.at(), higher = own;
        if (most_) merge_.merge(merge_.context, own, lower, higher);
        else combine_(own, lower, higher, round_.takes, form_);
    }
    if (round_.what == Round::KEEP && index_ == transport_->size - 2) {
        char *own = data_ + round_.take * wide;
        for (int i = 0; i < transport_->size; i++) {
            sources_[size_t(i)] = i == transport_->rank ? own : kept_.at() + size_t(i) * size_t(round_.takes) * wide;
            forms_[size_t(i)] = form_;
        }
        kernels().sum(own, form_, nullptr, form_, sources_.at(), forms_.at(), transport_->size, round_.takes, 1, false);
    }
}

int Reduction::step(bool *done, Error *error) {
    *done = !active_;
    while (active_) {
        for (const bool receives : {true, false}) {
            bool &busy = receives ? receiving_ : sending_;
            bool complete = !busy;
            if (busy)
                if (int bad = transport_->test(receives ? &received_ : &sent_, &complete, error)) return bad;
            busy = !complete;
        }
        if (receiving_ || sending_) return 0;
        if (index_ < plan_.rounds()) finish();
        if (++index_ >= plan_.rounds()) {
            active_ = false, *done = true;
            return 0;
        }
        if (int bad = post(error)) return bad;
    }
    return 0;
}

}  // namespace fairlead
