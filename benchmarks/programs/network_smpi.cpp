// The core's sums over nodes on a simulated machine, one rank a node: compiled by smpicxx with the core's network.cpp,
// choice.cpp and kernels.cpp.
//
//   network_smpi SCALE OVERHEAD_S JOB...    JOB is ALGORITHM:GROUP:BYTES:PIECES[:STEPS:COMPUTE_S:DEVIATION:DELAYED:RANKS]
//
// A job sums BYTES in so many pieces, four at most in flight as in the core, and rank 0 prints a line of JSON with the
// simulated seconds. With STEPS, those of training steps: each of a node's RANKS computes for a lognormal time, and the
// slowest counts; then the node sums, or sums what the step before has computed. The platform's links are SCALE times slower than those of the machine, and BYTES
// SCALE times fewer: times are the same, and the sums of all ranks fit this machine's memory. OVERHEAD_S: what a message
// costs the sender, and the receiver, in their processors.
#include "choice.h"

#include <cmath>
#include <mpi.h>
#include <random>
#include <smpi/smpi.h>
#include <string>
#include <vector>

using namespace fairlead;

namespace {

constexpr int DEPTH = 4;
constexpr double ADD_S = 1 / 8e9;  // seconds a byte: a core that reads two numbers and writes one

double scale = 1, overhead_s = 0;  // of all ranks: they share this program's variables

class Smpi final : public Transport {
  public:
    Smpi() {
        MPI_Comm_rank(MPI_COMM_WORLD, &rank);
        MPI_Comm_size(MPI_COMM_WORLD, &size);
    }
    int send(const void *from, size_t bytes, int to, int tag, long *request, Error *) override {
        smpi_execute(overhead_s);
        MPI_Isend(from, int(bytes), MPI_BYTE, to, tag, MPI_COMM_WORLD, place(request, false));
        messages++;
        return 0;
    }
    int receive(void *to, size_t bytes, int from, int tag, long *request, Error *) override {
        MPI_Irecv(to, int(bytes), MPI_BYTE, from, tag, MPI_COMM_WORLD, place(request, true));
        return 0;
    }
    // Without a call: a simulated MPI_Test costs simulated time. `idle` waits.
    int test(long *request, bool *done, Error *) override {
        *done = requests_[size_t(*request)] == MPI_REQUEST_NULL;
        if (!*done) return 0;
        if (held_[size_t(*request)] == RECEIVED) smpi_execute(overhead_s);
        held_[size_t(*request)] = FREE;
        return 0;
    }
    void idle() override {
        int index = 0;
        MPI_Waitany(int(requests_.size()), requests_.data(), &index, MPI_STATUS_IGNORE);
    }
    uint64_t messages = 0;

  private:
    enum Held : char { FREE, SENT, RECEIVED };  // until its end was seen
    MPI_Request *place(long *request, bool receives) {
        for (size_t i = 0; i < requests_.size(); i++)
            if (held_[i] == FREE) return held_[i] = receives ? RECEIVED : SENT, *request = long(i), &requests_[i];
        return nullptr;
    }
    std::vector<MPI_Request> requests_ = std::vector<MPI_Request>(4 * DEPTH + 8, MPI_REQUEST_NULL);
    std::vector<Held> held_ = std::vector<Held>(4 * DEPTH + 8, FREE);
};

void charged_add(void *to, const void *lower, const void *higher, size_t count, Form form) {
    add(to, lower, higher, count, form);
    smpi_execute(double(count * width(form)) * ADD_S * scale);
}

// What rank r gives as element i: whole numbers, whose sums of up to 8192 ranks are exact in float32.
float given(int r, uint64_t i) { return float((uint64_t(r) * 7 + i) % 16); }

struct Job {
    Algorithm algorithm;
    int group;
    double bytes;
    int pieces, steps = 0;
    double compute_s = 0, deviation = 0;
    bool delayed = false;
    int ranks = 1;
};

// Sums in pieces, `DEPTH` in flight, in order.
int reduce(Smpi &net, const Choice &choice, const Job &job, std::vector<float> &data, std::vector<Reduction> &slots, Error *error) {
    const uint64_t n = data.size(), K = uint64_t(job.pieces);
    uint64_t posted = 0, reduced = 0;
    while (reduced < K) {
        bool moved = false;
        while (posted < K && posted < reduced + DEPTH) {
            const uint64_t at = n * posted / K, count = n * (posted + 1) / K - at;
            const Shape shape = job.algorithm == AUTO ? choice.shape(count * 4) : Shape{job.algorithm, job.group};
            if (int bad = slots[posted % DEPTH].begin(net, shape, data.data() + at, count, F32, int(posted % 1024), error, charged_add)) return bad;
            posted++;
        }
        for (uint64_t k = reduced; k < posted; k++) {
            bool done = false;
            if (int bad = slots[k % DEPTH].step(&done, error)) return bad;
            if (done && k == reduced) reduced++, moved = true;
        }
        if (!moved && reduced < K) net.idle();
    }
    return 0;
}

double now() { return MPI_Wtime(); }

int run(Smpi &net, const Choice &choice, const Job &job) {
    std::vector<float> data(size_t(job.bytes / scale / 4));
    std::vector<Reduction> slots(DEPTH);
    Error error;
    error.clear();
    std::vector<float> wanted(16, 0);
    for (uint64_t i = 0; i < 16; i++)
        for (int r = 0; r < net.size; r++) wanted[i] += given(r, i);
    auto fill = [&] {
        for (uint64_t i = 0; i < data.size(); i++) data[i] = given(net.rank, i);
    };
    int wrong = 0;
    auto check = [&] {
        for (uint64_t i = 0; i < data.size(); i++) wrong += data[i] != wanted[i % 16];
    };
    std::mt19937_64 random(uint64_t(net.rank) * 1000003 + 17);
    std::lognormal_distribution<double> draw(-job.deviation * job.deviation / 2, job.deviation);
    fill();
    MPI_Barrier(MPI_COMM_WORLD);
    const uint64_t messages = net.messages;
    const double begun = now();
    double computed = 0;
    for (int step = 0; step < most(job.steps, 1); step++) {
        double slowest = 0;
        for (int i = 0; i < job.ranks && job.steps; i++) slowest = most(slowest, job.compute_s * draw(random));
        const double until = now() + slowest;
        computed += slowest;
        // Another core computes while a delayed sum moves: a step takes the longer of both.
        if (!job.delayed) smpi_execute(most(until - now(), 0.0));
        if (int bad = reduce(net, choice, job, data, slots, &error)) return printf("%s\n", error.text), bad;
        if (job.delayed) smpi_execute(most(until - now(), 0.0));
        check();
        fill();
    }
    const double own = now() - begun;
    double slowest = 0, all_computed = 0;
    int all_wrong = 0;
    uint64_t sent = net.messages - messages, most_sent = 0;
    MPI_Reduce(&own, &slowest, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
    MPI_Reduce(&computed, &all_computed, 1, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
    MPI_Reduce(&wrong, &all_wrong, 1, MPI_INT, MPI_SUM, 0, MPI_COMM_WORLD);
    MPI_Reduce(&sent, &most_sent, 1, MPI_UINT64_T, MPI_MAX, 0, MPI_COMM_WORLD);
    if (net.rank == 0) {
        printf("{\"nodes\": %d, \"algorithm\": \"%s\", \"group\": %d, \"bytes\": %.0f, \"pieces\": %d, \"seconds\": %.9g, \"messages\": %llu, \"wrong\": %d", net.size, algorithm_name(job.algorithm), job.group, job.bytes,
               job.pieces, slowest / most(job.steps, 1), static_cast<unsigned long long>(most_sent), all_wrong);
        if (job.steps) printf(", \"steps\": %d, \"compute\": %.9g, \"deviation\": %g, \"delayed\": %s", job.steps, all_computed / net.size / job.steps, job.deviation, job.delayed ? "true" : "false");
        printf("}\n");
        fflush(stdout);
    }
    return 0;
}

}  // namespace

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    scale = atof(argv[1]), overhead_s = atof(argv[2]);
    {
        Smpi net;
        Choice choice;
        std::vector<Job> jobs;
        bool chooses = false;
        for (int i = 3; i < argc; i++) {
            std::vector<std::string> words;
            for (std::string rest = argv[i]; ; rest = rest.substr(rest.find(':') + 1)) {
                words.push_back(rest.substr(0, rest.find(':')));
                if (rest.find(':') == std::string::npos) break;
            }
            Job job = {Algorithm(algorithm_of(words[0].c_str())), atoi(words[1].c_str()), atof(words[2].c_str()), atoi(words[3].c_str())};
            if (words.size() > 4) job.steps = atoi(words[4].c_str()), job.compute_s = atof(words[5].c_str()), job.deviation = atof(words[6].c_str()), job.delayed = atoi(words[7].c_str()), job.ranks = atoi(words[8].c_str());
            jobs.push_back(job);
            chooses = chooses || job.algorithm == AUTO;
        }
        Error error;
        error.clear();
        int bad = 0;
        const double begun = now();
        if (chooses) bad = choice.measure(net, now, AUTO, &error, charged_add);
        if (chooses && net.rank == 0) {
            char words[800];
            choice.explain(words, sizeof words);
            printf("{\"chosen\": \"%s\", \"seconds\": %.6g}\n", words, now() - begun);
        }
        for (const Job &job : jobs)
            if (!bad) bad = run(net, choice, job);
    }
    MPI_Finalize();
    return 0;
}
