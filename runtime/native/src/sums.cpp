// The pipelines that move data: sums, copied through the segment or in place, and broadcasts.
#include "chunks.h"
#include "wait.h"

namespace fairlead {
namespace {

constexpr uint64_t CHUNK_TAGS = 4096;  // of what moves between nodes, of which few are under way at once

// Bytes that cross the network at a time; a rank's share of a chunk does so by itself from LEAST_SHARE on.
constexpr uint64_t PIECE = 1 << 20, LEAST_PIECE = 128 << 10, LEAST_SHARE = 64 << 10;

}  // namespace

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
    // Between nodes each rank sends its share of a chunk, whose sums are in its caches, if nodes have as many ranks and
    // shares are worth a message. Otherwise sums wait in a ring, where consecutive chunks make a piece, which one of the
    // node's first ranks sends.
    const bool joins = network && (fullest_ != fewest_ || least(stream.elements() * wide, uint64_t(way.chunk_kb) << 10) / uint64_t(fullest_) < LEAST_SHARE);
    const uint64_t aimed = least(PIECE, most(LEAST_PIECE, stream.elements() * wide / uint64_t(2 * senders_)));
    const size_t chunk_room = joins ? least(size_t(way.chunk_kb) << 10, size_t(aimed)) / wide : (size_t(way.chunk_kb) << 10) / given;
    const Cut cut(stream.elements(), chunk_room, !network);
    const uint64_t base = chunks_, K = cut.count, chunk_bytes = most(cut.each * wide, uint64_t(1));
    const uint64_t joined = joins ? most(aimed / chunk_bytes, uint64_t(1)) : 1, pieces = (K + joined - 1) / joined;
    const uint64_t ring = joins ? segment_.ring_bytes() / chunk_bytes / joined * joined : DEPTH;
    const uint64_t senders = joins ? uint64_t(senders_) : 1;
    const bool posts = network && (!joins || local_ < senders_);
    // A share's sums overwrite the next rank's packed input, which the owner has just read: the cache lines are
    // already here. Not if sums are wider than inputs, or are joined.
    const bool in_place = wide == given && !joins && locals_ <= MANY;
    const bool past = way.past;
    Seat &mine = segment_.mine();
    uint64_t packed = 0, summed = 0, taken = 0;
    uint64_t posted = !posts ? pieces : joins ? uint64_t(local_) : 0, landed = posted;  // the next piece of this rank
    auto chunk = [&](uint64_t k) { return cut.chunk(k, stream.elements(), locals_); };
    auto sums_of = [&](uint64_t k, int place) {
        return joins ? segment_.ring_of_sums() + k % ring * chunk_bytes : in_place ? segment_.given((place + 1) % locals_, base + k) : segment_.result(base + k);
    };
    auto end_of = [&](uint64_t piece) { return least((piece + 1) * joined, K); };
    auto slot_of = [&](uint64_t piece) { return piece / senders % DEPTH; };
    auto sender_of = [&](uint64_t k) { return int(k / joined % senders); };
    // What this rank sends.
    auto part = [&](uint64_t piece, size_t *count) {
        const Chunk first = chunk(piece * joined);
        const uint64_t from = joins ? first.from : first.begin(local_), to = joins ? chunk(end_of(piece) - 1).to : first.end(local_);
        *count = to - from;
        return sums_of(piece * joined, local_) + (from - first.from) * wide;
    };

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

    // What is handed over stays until all have added it, or taken the sums that replace it; sums in the ring stay until
    // all have taken them.
    auto may_pack = [&] { return all(joins ? &Seat::summed : &Seat::taken, base + packed + 1 < DEPTH ? 0 : base + packed + 1 - DEPTH); };
    auto may_sum = [&] { return all(&Seat::packed, base + summed + 1) && (!joins || summed < ring || all(&Seat::taken, base + summed + 1 - ring)); };
    auto may_post = [&] { return joins ? all(&Seat::summed, base + end_of(posted)) : posted < summed; };
    auto may_take = [&] { return joins ? load(&segment_.seat(sender_of(taken)).reduced) > base + taken : all(&Seat::reduced, base + taken + 1); };
    size_t count = 0;

    while (taken < K) {
        wait.network = landed < posted;
        if (wait.network) {
            bool done = false;
            if (int bad = advance(slot_of(landed), &done, wait, error)) return bad;
            if (done) {
                laps_.arrived(landed);
                store(&mine.reduced, base + end_of(landed));
                landed += senders;
                segment_.ring();
                wait.moved();
            }
        }
        if (summed < packed && may_sum()) {
            sum(summed);
            store(&mine.summed, base + ++summed);
            if (!network) store(&mine.reduced, base + summed);
            segment_.ring();
            wait.moved();
        } else if (posted < pieces && (posted - landed) / senders < DEPTH && may_post()) {
            char *at = part(posted, &count);
            if (int bad = post(at, count, sums, slot_of(posted), error)) return bad;
            laps_.posted(posted);
            posted += senders;
            wait.moved();
        } else if (packed < K && may_pack()) {
            pack(packed);
            store(&mine.packed, base + ++packed);
            segment_.ring();
            wait.moved();
        } else if (may_take()) {
            take(taken);
            store(&mine.taken, base + ++taken);
            segment_.ring();
            wait.moved();
        } else {
            // Named as missing: those that have not packed; those that have not summed what is to be sent; the sender.
            const uint64_t end = base + (joins ? end_of(taken / joined) : 0);
            wait.whose = -1;
            if (summed < packed) wait.counter = &Seat::packed, wait.wanted = base + summed + 1;
            else if (joins && !all(&Seat::summed, end)) wait.counter = &Seat::summed, wait.wanted = end;
            else wait.counter = &Seat::reduced, wait.wanted = base + taken + 1, wait.whose = joins ? sender_of(taken) : -1;
            if (int bad = wait.idle(error)) return bad;
        }
    }
    wait.whose = -1;
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
void Lane::flat(const fairlead_tensor *tensors, uint64_t count, Kind kind, int operation, int root) {
    const Kernels &kernel = kernels();
    const double scale = operation & 1 ? 1.0 / world_->size : 1;
    size_t at = 0;
    for (uint64_t i = 0; i < count; i++) {
        const Form form = Form(tensors[i].dtype);
        const size_t bytes = tensors[i].count * width(form);
        if (kind == BROADCAST || kind == MATCH) {
            if (tensors[i].out) memmove(tensors[i].out, small(place_of_[size_t(root)]) + at, bytes);
        } else {
            const void *sources[FLAT_RANKS];
            Form forms[FLAT_RANKS];
            for (int j = 0; j < locals_; j++) sources[j] = small(j) + at, forms[j] = form;
            const bool odd = kernel.sum(tensors[i].out, form, nullptr, form, sources, forms, locals_, tensors[i].count, scale, false);
            if (odd && looks_) look_flat(tensors[i], at);
        }
        at += rounded_up(bytes, 8);
    }
}

}  // namespace fairlead
