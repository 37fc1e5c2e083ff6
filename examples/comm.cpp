// The same in C++: statuses are exceptions, and what is started is waited for. From the checkout:
//
//     $ python3 -m fairlead.native build && c++ -std=c++17 -I build -o build/comm_cpp examples/comm.cpp -L build -lfairlead_comm -ldl -lpthread -Wl,-rpath,'$ORIGIN' && fairlead run -n 2 mpi-base -- build/comm_cpp
#include "fairlead_comm.h"

#include <cstdio>
#include <stdexcept>
#include <utility>
#include <vector>

namespace {

struct Failure : std::runtime_error {
    explicit Failure(int code) : std::runtime_error(fairlead_comm_error()), status(code) {}
    int status;
};

void check(int status) {
    if (status != FAIRLEAD_OK) throw Failure(status);
}

// The ranks, from here to the end of the scope. `finish` reports errors; a scope left by an exception
// does not wait for the other ranks, which learn that this one has ended.
class Ranks {
  public:
    Ranks() { check(fairlead_comm_init()); }
    Ranks(const Ranks &) = delete;
    Ranks &operator=(const Ranks &) = delete;
    int rank() const { return fairlead_comm_rank(); }
    int size() const { return fairlead_comm_size(); }
    void finish() { check(fairlead_comm_finalize()); }
};

fairlead_tensor tensor(std::vector<float> &values, const char *name) {
    return {values.data(), values.data(), values.size(), FAIRLEAD_FLOAT32, 0, name};
}

// A mean that is under way: the values must stay where they are until it is waited for.
class Pending {
  public:
    Pending(fairlead_team *team, const std::vector<fairlead_tensor> &tensors) : team_(team) {
        check(fairlead_comm_start(team, tensors.data(), tensors.size(), FAIRLEAD_MEAN, &ticket_));
    }
    Pending(Pending &&other) noexcept : team_(std::exchange(other.team_, nullptr)), ticket_(other.ticket_) {}
    ~Pending() {
        if (team_) fairlead_comm_wait(team_, ticket_);  // the values may go only then
    }
    void wait() { check(fairlead_comm_wait(std::exchange(team_, nullptr), ticket_)); }

  private:
    fairlead_team *team_;
    uint64_t ticket_ = 0;
};

// The core owns teams, and frees them in finalize.
class Team {
  public:
    explicit Team(int threads = 1) { check(fairlead_comm_team(threads, &team_)); }
    Pending mean(const std::vector<fairlead_tensor> &tensors) { return Pending(team_, tensors); }

  private:
    fairlead_team *team_ = nullptr;
};

void train(Ranks &ranks) {
    // Two networks, each with a team of its own: their gradients travel at the same time.
    Team generator, discriminator(2);
    std::vector<float> first(1000, float(ranks.rank())), second(300'000, 1.0f);
    for (int step = 0; step < 10; step++) {
        Pending one = generator.mean({tensor(first, "first")});
        Pending two = discriminator.mean({tensor(second, "second")});
        one.wait();
        two.wait();
    }
    if (ranks.rank() == 0) std::printf("%d ranks: %.1f and %.1f\n", ranks.size(), first[0], second[0]);
}

}  // namespace

int main() try {
    Ranks ranks;
    train(ranks);
    ranks.finish();
} catch (const Failure &failure) {
    std::fprintf(stderr, "error %d: %s\n", failure.status, failure.what());
    return 1;
}
