// The sums of network.h between threads of this process, or between as many nodes as asked stepped in random order by
// one thread, compared with a plain sum. Compiled with network.cpp and kernels.cpp, without MPI.
//
//   network_check threads SEED ROUNDS    1 to 17 nodes, a thread each
//   network_check steps SEED ROUNDS      the same, in one thread
//   network_check many NODES COUNT       float32 by each algorithm
#include "network.h"

#include <random>
#include <thread>
#include <vector>

using namespace fairlead;

namespace {

struct Mailbox {
    struct Message {
        int from, tag;
        std::vector<char> bytes;
    };
    pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    std::vector<Message> messages;
};

// Messages are copied when they are sent, and taken in the order in which they came. They are seen late at random.
class Loopback final : public Transport {
  public:
    Loopback(std::vector<Mailbox> &boxes, int own, unsigned seed) : boxes_(boxes), random_(seed) { rank = own, size = int(boxes.size()); }
    int send(const void *from, size_t bytes, int to, int tag, long *request, Error *) override {
        const char *at = static_cast<const char *>(from);
        Lock lock(boxes_[size_t(to)].mutex);
        boxes_[size_t(to)].messages.push_back({rank, tag, std::vector<char>(at, at + bytes)});
        *request = -1;
        sent++;
        return 0;
    }
    int receive(void *to, size_t bytes, int from, int tag, long *request, Error *) override {
        *request = long(wanted_.size());
        wanted_.push_back({static_cast<char *>(to), bytes, from, tag});
        return 0;
    }
    int test(long *request, bool *done, Error *error) override {
        *done = false;
        if (random_() % 4 == 0) return 0;
        if (*request < 0) return *done = true, 0;
        const Wanted &wanted = wanted_[size_t(*request)];
        Mailbox &box = boxes_[size_t(rank)];
        Lock lock(box.mutex);
        for (auto message = box.messages.begin(); message != box.messages.end(); ++message) {
            if (message->from != wanted.from || message->tag != wanted.tag) continue;
            const size_t bytes = message->bytes.size();
            if (smaller ? bytes > wanted.bytes : bytes != wanted.bytes) return error->set(1, "%zu bytes came for %zu", bytes, wanted.bytes);
            memcpy(wanted.to, message->bytes.data(), bytes);
            box.messages.erase(message);
            return *done = true, 0;
        }
        return 0;
    }
    uint64_t sent = 0;
    bool smaller = false;  // messages may be smaller than the receiver expects

  private:
    struct Wanted {
        char *to;
        size_t bytes;
        int from, tag;
    };
    std::vector<Mailbox> &boxes_;
    std::vector<Wanted> wanted_;
    std::mt19937 random_;
};

using Bytes = std::vector<char>;

// Small whole numbers, whose sums are exact in every form; or any float32: ORDERED gives the plain sum's bits, and the
// others the same bits on every node.
Bytes filled(Form form, uint64_t count, unsigned seed, bool any) {
    std::mt19937 random(seed);
    Bytes bytes(count * width(form));
    for (uint64_t i = 0; i < count; i++) {
        const int64_t number = int64_t(random() % 17) - 8;
        const double real = double(number);
        float single = any ? float(random()) * 1e-3f : float(number);
        char *at = bytes.data() + i * width(form);
        if (form == I32) { const int32_t value = int32_t(number); memcpy(at, &value, 4); }
        else if (form == I64) memcpy(at, &number, 8);
        else if (form == F64) memcpy(at, &real, 8);
        else kernels().convert(at, form, &single, F32, 1);
    }
    return bytes;
}

Bytes plain_sum(const std::vector<Bytes> &each, Form form, uint64_t count) {
    Bytes sum = each[0];
    std::vector<const void *> sources;
    std::vector<Form> forms(each.size(), form);
    for (const Bytes &one : each) sources.push_back(one.data());
    kernels().sum(sum.data(), form, nullptr, form, sources.data(), forms.data(), int(each.size()), count, 1, false);
    return sum;
}

int fail(const char *what, Shape shape, int nodes, Form form, uint64_t count) {
    printf("%s: %s, group %d, %d nodes, form %d, %llu elements\n", what, algorithm_name(shape.algorithm), shape.group, nodes, form, static_cast<unsigned long long>(count));
    return 1;
}

// Several reductions in flight at once, as the chunks of a call are.
int check(Shape shape, int nodes, Form form, uint64_t count, unsigned seed, bool any, bool threads, uint64_t *messages) {
    constexpr int FLIGHT = 3;
    std::vector<Mailbox> boxes(static_cast<size_t>(nodes));
    std::vector<std::vector<Bytes>> data(FLIGHT);
    std::vector<Bytes> wanted;
    for (int f = 0; f < FLIGHT; f++) {
        for (int i = 0; i < nodes; i++) data[size_t(f)].push_back(filled(form, count + unsigned(f), seed + unsigned(i * FLIGHT + f), any));
        wanted.push_back(plain_sum(data[size_t(f)], form, count + unsigned(f)));
    }
    std::vector<Loopback> transports;
    for (int i = 0; i < nodes; i++) transports.emplace_back(boxes, i, seed + unsigned(i));
    std::vector<Reduction> reductions(size_t(nodes * FLIGHT));
    std::vector<Error> errors(static_cast<size_t>(nodes));
    // Returns whether all of a node's are done.
    auto advance = [&](int node, std::mt19937 &random) {
        bool all = true;
        for (int k = 0; k < FLIGHT; k++) {
            bool done = false;
            Reduction &one = reductions[size_t(node * FLIGHT + int(random() % FLIGHT))];
            if (one.step(&done, &errors[size_t(node)])) return true;
        }
        for (int f = 0; f < FLIGHT; f++) all = all && !reductions[size_t(node * FLIGHT + f)].active();
        return all;
    };
    auto begin = [&](int node) {
        errors[size_t(node)].clear();
        for (int f = 0; f < FLIGHT; f++)
            reductions[size_t(node * FLIGHT + f)].begin(transports[size_t(node)], shape, data[size_t(f)][size_t(node)].data(), count + unsigned(f), form, f, &errors[size_t(node)]);
    };
    if (threads) {
        std::vector<std::thread> each;
        for (int i = 0; i < nodes; i++)
            each.emplace_back([&, i] {
                std::mt19937 random(seed * 31 + unsigned(i));
                begin(i);
                while (!advance(i, random)) sched_yield();
            });
        for (std::thread &one : each) one.join();
    } else {
        std::mt19937 random(seed);
        std::vector<int> left;
        for (int i = 0; i < nodes; i++) begin(i), left.push_back(i);
        while (!left.empty()) {
            const size_t drawn = random() % left.size();
            if (advance(left[drawn], random)) left.erase(left.begin() + long(drawn));
        }
    }
    for (const Loopback &one : transports) *messages = most(*messages, one.sent / FLIGHT);
    for (int i = 0; i < nodes; i++) {
        if (errors[size_t(i)].status) return fail(errors[size_t(i)].text, shape, nodes, form, count);
        if (!boxes[size_t(i)].messages.empty()) return fail("a message was not taken", shape, nodes, form, count);
        for (int f = 0; f < FLIGHT; f++)
            if (data[size_t(f)][size_t(i)] != (any && shape.algorithm != ORDERED ? data[size_t(f)][0] : wanted[size_t(f)])) return fail("a wrong sum", shape, nodes, form, count);
    }
    return 0;
}

// A message of any node: what its call is, and numbers; other calls have others.
struct Words {
    uint64_t call, count;
    uint64_t numbers[64];
};

void merge_words(const void *, void *to, const void *lower, const void *higher) {
    const Words a = *static_cast<const Words *>(lower), b = *static_cast<const Words *>(higher);
    Words &own = *static_cast<Words *>(to);
    own.call = a.call == b.call ? a.call : 0;
    for (uint64_t i = 0; own.call && i < a.count; i++) own.numbers[i] = a.numbers[i] + b.numbers[i];
}

// All nodes come to the sums where all have called the same, and to 0 where one has not, whatever it has sent.
int check_merged(int nodes, unsigned seed) {
    std::mt19937 random(seed);
    std::vector<Mailbox> boxes(static_cast<size_t>(nodes));
    const uint64_t count = random() % 65;
    const int odd = random() % 2 ? int(random() % unsigned(nodes)) : -1;
    std::vector<Words> words(static_cast<size_t>(nodes));
    std::vector<uint64_t> sums(65);
    std::vector<Loopback> transports;
    std::vector<Reduction> reductions(static_cast<size_t>(nodes));
    std::vector<Error> errors(static_cast<size_t>(nodes));
    for (int i = 0; i < nodes; i++) {
        const size_t at = size_t(i);
        transports.emplace_back(boxes, i, seed + unsigned(i));
        words[at] = {i == odd ? 8u : 7u, i == odd ? random() % 65 : count, {}};
        for (uint64_t j = 0; j < words[at].count; j++) sums[j] += words[at].numbers[j] = random();
    }
    for (int i = 0; i < nodes; i++) {
        const size_t at = size_t(i);
        transports[at].smaller = true, errors[at].clear();
        reductions[at].begin(transports[at], {merge_words, nullptr}, &words[at], offsetof(Words, numbers) + words[at].count * 8, sizeof(Words), 1, &errors[at]);
    }
    for (int left = nodes; left;) {
        const size_t at = random() % unsigned(nodes);
        bool done = false;
        const bool before = reductions[at].active();
        if (reductions[at].step(&done, &errors[at])) return fail(errors[at].text, {DOUBLING}, nodes, RAW, count);
        left -= before && done;
        if (before && !done && nodes == 1) return fail("one node is not done", {DOUBLING}, nodes, RAW, count);
    }
    for (const Words &each : words) {
        if (each.call != (odd >= 0 && nodes > 1 ? 0u : odd == 0 ? 8u : 7u)) return fail("nodes that differ are taken for alike", {DOUBLING}, nodes, RAW, count);
        for (uint64_t j = 0; each.call && j < each.count; j++)
            if (each.numbers[j] != sums[j]) return fail("a wrong sum with a message", {DOUBLING}, nodes, RAW, count);
    }
    return 0;
}

std::vector<Shape> shapes(int nodes) {
    std::vector<Shape> all = {{DOUBLING}, {HALVING}, {RING}, {ORDERED}, {GROUPS}};
    for (int group = 2; group < nodes; group++)
        if (nodes % group == 0) all.push_back({GROUPS, group});
    return all;
}

}  // namespace

int main(int argc, char **argv) {
    if (argc != 4) return 2;
    uint64_t messages = 0, checked = 0;
    if (!strcmp(argv[1], "many")) {
        const int nodes = atoi(argv[2]);
        for (const Shape shape : shapes(nodes)) {
            if (shape.algorithm == ORDERED || shape.group > 64 || (shape.algorithm == RING && nodes > 1024)) continue;
            messages = 0;
            if (check(shape, nodes, F32, uint64_t(atoll(argv[3])), 1, false, false, &messages)) return 1;
            printf("%s %d: %llu messages\n", algorithm_name(shape.algorithm), shape.group, static_cast<unsigned long long>(messages));
        }
        return 0;
    }
    std::mt19937 random(unsigned(atoi(argv[2])));
    for (int round = 0; round < atoi(argv[3]); round++)
        for (int nodes = 1; nodes <= 17; nodes++) {
            for (int i = 0; i < 20; i++, checked++)
                if (check_merged(nodes, unsigned(random()))) return 1;
            for (const Shape shape : shapes(nodes)) {
                const Form form = Form(random() % 6);
                const uint64_t count = random() % 3 ? random() % 2000 : random() % 20;
                if (check(shape, nodes, form, count, random(), form == F32 && random() % 2, argv[1][0] == 't', &messages)) return 1;
                checked++;
            }
        }
    printf("%llu sums are right\n", static_cast<unsigned long long>(checked));
    return 0;
}
