// NaN and infinity: which rank passed them, in words.
#include "wait.h"

namespace fairlead {

void Lane::name_odd(char *words, size_t size, int rank, const char *what, uint64_t tensor, uint64_t element) const {
    char name[200] = "";
    if (tensor < all_of_.count && all_of_.at[tensor].name) snprintf(name, sizeof name, " (%.180s)", all_of_.at[tensor].name);
    snprintf(words, size, "rank %d (%s) passed %s as element %llu of tensor %llu%s to %s, call %llu of %s", rank, world_->host(rank), what, static_cast<unsigned long long>(element), static_cast<unsigned long long>(tensor),
             name, kind_name(kind_), static_cast<unsigned long long>(number_), name_);
}

void Lane::name_sum(char *words, size_t size, const char *what, uint64_t tensor, uint64_t element) const {
    snprintf(words, size, "the sum of element %llu of tensor %llu is %s though no rank passed NaN or infinity: %s, call %llu of %s", static_cast<unsigned long long>(element), static_cast<unsigned long long>(tensor), what,
             kind_name(kind_), static_cast<unsigned long long>(number_), name_);
}

// The tensor that `at` is in, and the index there; a part of a call in another lane has the addresses of the whole
// call.
void Lane::find(const char *at, Form form, uint64_t *tensor, uint64_t *element) const {
    for (*tensor = 0; *tensor < all_of_.count; ++*tensor) {
        const fairlead_tensor &t = all_of_.at[*tensor];
        const char *begin = static_cast<const char *>(t.in);
        *element = uint64_t(at - begin) / width(form);
        if (Form(t.dtype) == form && at >= begin && *element < t.count) return;
    }
}

void Lane::say_odd(const char *words) {
    looks_ = false;
    store(&segment_.mine().reported_odd, uint32_t(1));  // each lane has its own: others in other lanes may look once more
    if (__atomic_exchange_n(&world_->watch->reported_odd, 1, __ATOMIC_RELAXED)) return;
    char line[700];
    const int length = snprintf(line, sizeof line, "fairlead.comm: %s; reported once per rank (FAIRLEAD_COMM_NONFINITE)\n", words);
    if (length > 0 && write(2, line, least(size_t(length), sizeof line - 1)) < 0) return;
}

void Lane::look(const char *in, Form form, uint64_t n) {
    const char *what = "";
    uint64_t tensor = 0, element = 0;
    const size_t i = looks_ ? first_odd(in, form, n, &what) : n;
    if (i == n) return;
    find(in + i * width(form), form, &tensor, &element);
    auto &mine = segment_.mine().odd[number_ & 1];
    name_odd(mine.words, sizeof mine.words, world_->rank, what, tensor, element);
    store(&mine.passed, number_);
    if (settings_->nonfinite == WARN) say_odd(mine.words);
    looks_ = false;  // once per call
}

// This rank's share of the sums has NaN or infinity. `kept`: this rank's input is still there; otherwise the sum
// has overwritten it, and this rank is the culprit if no other rank finds that it is.
void Lane::doubt(const char *in, const char *sums, Form form, Form summed, uint64_t n, bool kept) {
    auto &mine = segment_.mine().odd[number_ & 1];
    if (load(&mine.doubted) != number_) {
        const char *what = "infinity";  // of a sum that was rounded to a half
        uint64_t tensor = 0, element = 0;
        const size_t i = first_odd(sums, summed, n, &what);
        find(in + (i == n ? 0 : i) * width(form), form, &tensor, &element);
        if (kept) name_sum(mine.words, sizeof mine.words, what, tensor, element);
        else name_odd(mine.words, sizeof mine.words, world_->rank, strcmp(what, "NaN") ? "infinity, or too large a value," : what, tensor, element);
    }
    if (kept) look(in, form, n);
    store(&mine.doubted, number_);
}

// In place, the rank that sums sees all inputs before it writes, and names the first rank whose input is odd. `in`:
// where this rank has the elements.
void Lane::doubt_shared(const void *const *sources, Form form, uint64_t n, const char *in) {
    auto &mine = segment_.mine().odd[number_ & 1];
    if (load(&mine.doubted) == number_) return;
    const char *what = "infinity";
    uint64_t tensor = 0, element = 0;
    size_t i = n;
    int place = -1;
    while (i == n && place + 1 < locals_) i = first_odd(static_cast<const char *>(sources[++place]), form, n, &what);
    find(in + (i == n ? 0 : i) * width(form), form, &tensor, &element);
    if (i < n) name_odd(mine.words, sizeof mine.words, segment_.seat(place).rank, what, tensor, element);
    else name_sum(mine.words, sizeof mine.words, "infinite", tensor, element);
    store(&mine.doubted, number_);
}

// Small tensors are summed by every rank: each sees all inputs, and comes to the same words.
void Lane::look_flat(const fairlead_tensor &t, size_t at) {
    auto &mine = segment_.mine().odd[number_ & 1];
    const Form form = Form(t.dtype);
    const char *what = "", *ours = "";
    size_t i = t.count;
    int place = -1;
    auto given = [&](int of) { return small(of) + at; };
    while (i == t.count && place + 1 < locals_) i = first_odd(given(++place), form, t.count, &what);
    uint64_t tensor = 0, element = 0;
    if (load(&mine.doubted) != number_) {
        find(static_cast<const char *>(t.in) + (i == t.count ? 0 : i) * width(form), form, &tensor, &element);
        if (i < t.count) name_odd(mine.words, sizeof mine.words, segment_.seat(place).rank, what, tensor, element);
        else name_sum(mine.words, sizeof mine.words, "infinite", tensor, element);
        store(&mine.doubted, number_);
    }
    if (settings_->nonfinite == STOP) return;
    const size_t own = first_odd(given(local_), form, t.count, &ours);
    if (own == t.count && (i < t.count || local_)) return;
    find(static_cast<const char *>(t.in) + (own == t.count ? 0 : own) * width(form), form, &tensor, &element);
    char words[sizeof mine.words];
    if (own < t.count) name_odd(words, sizeof words, world_->rank, ours, tensor, element);
    else memcpy(words, mine.words, sizeof words);
    say_odd(words);
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

}  // namespace fairlead
