#include "segment.h"

#include "fairlead_comm.h"

namespace fairlead {

// What all ranks use, in front, in whole pages; then what each rank hands to the others, `DEPTH * chunk` bytes.
size_t Segment::common() const {
    const size_t bytes = sizeof(Seat) * size_t(ranks_) + size_t(ranks_) * 2 * flat_room_ + results_bytes_;
    return (bytes + 4095) / 4096 * 4096;
}

void Segment::lay(char *base) {
    base_ = base;
    seats_ = reinterpret_cast<Seat *>(base);
    flats_ = base + sizeof(Seat) * size_t(ranks_);
    results_ = flats_ + size_t(ranks_) * 2 * flat_room_;
    givens_ = base + common();
}

int Segment::open(const Mpi &mpi, Mpi::Handle node, int rank, size_t chunk, bool far, char *why, size_t why_size, Error *error) {
    why[0] = 0;
    chunk_ = chunk, flat_room_ = far ? CARRIED : FLAT, results_bytes_ = most(DEPTH * 2 * chunk, far ? SUMS_BYTES : size_t(0));
    if (int bad = mpi.check(mpi.Comm_rank(node, &place_), "MPI_Comm_rank", error)) return bad;
    if (int bad = mpi.check(mpi.Comm_size(node, &ranks_), "MPI_Comm_size", error)) return bad;
    if (ranks_ > 1) {
        const size_t front = common(), own = DEPTH * chunk_;
        file_.place = place_, file_.ranks = ranks_;
        if (int bad = file_.open(mpi, node, size_of(), front, {front + size_t(place_) * own, own}, {offsetof(Seat, token), sizeof(Seat)}, why, why_size, error)) return bad;
        if (file_.at) {
            lay(file_.at);
            mine().rank = rank;
            // Every seat has its rank before another reads it.
            int64_t come = 1, all = 0;
            return mpi.check(mpi.Allreduce(&come, &all, 1, mpi.i64, mpi.min, node), "MPI_Allreduce", error);
        }
    }
    place_ = 0, ranks_ = 1;
    size_ = size_of();
    void *at = mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) return error->set(FAIRLEAD_NO_MEMORY, "%zu bytes of memory cannot be had: %s", size_, strerror(errno));
    lay(static_cast<char *>(at));
    mine().rank = rank;
    return 0;
}

Segment::~Segment() {
    if (size_) munmap(base_, size_);
    file_.close();
}

void Segment::ring(bool sure) {
    if (ranks_ == 1) return;
    // The fence lasts until the other cores have seen the stores: as long as a small call.
    if (sure) __atomic_thread_fence(__ATOMIC_SEQ_CST);
    for (int i = 0; i < ranks_; i++)
        if (i != place_ && __atomic_load_n(&seats_[i].waiting, __ATOMIC_RELAXED)) {
            __atomic_fetch_add(&seats_[i].bell, 1, __ATOMIC_RELEASE);
            futex_wake(&seats_[i].bell);
        }
}

}  // namespace fairlead
