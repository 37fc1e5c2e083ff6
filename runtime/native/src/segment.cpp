#include "segment.h"

#include "fairlead_comm.h"

#include <fcntl.h>
#include <sys/mman.h>

namespace fairlead {
namespace {

constexpr size_t NAME = 512;

struct Told {  // by the first rank of a node
    char name[NAME];
    uint64_t token;
};

size_t size_of(int ranks, size_t chunk) {
    return sizeof(Seat) * size_t(ranks) + size_t(ranks) * 2 * FLAT + size_t(ranks) * DEPTH * chunk + DEPTH * 2 * chunk;
}

}  // namespace

void Segment::lay(char *base) {
    base_ = base;
    seats_ = reinterpret_cast<Seat *>(base);
    flats_ = base + sizeof(Seat) * size_t(ranks_);
    givens_ = flats_ + size_t(ranks_) * 2 * FLAT;
    results_ = givens_ + size_t(ranks_) * DEPTH * chunk_;
}

int Segment::make(char *name, size_t size, char *why, size_t why_size) {
    const char *folder = getenv("FAIRLEAD_COMM_SHM");
    if (!folder || !*folder) folder = "/dev/shm";
    uint64_t random = 0;
    if (syscall(SYS_getrandom, &random, sizeof random, 0) != sizeof random) random = uint64_t(now_s() * 1e9);
    snprintf(name, NAME, "%s/fairlead-comm-%d-%016llx", folder, int(getpid()), static_cast<unsigned long long>(random));
    int file = ::open(name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    // Taken now: a page that is not there when it is written to would end the process (SIGBUS).
    int bad = file < 0 ? errno : posix_fallocate(file, 0, off_t(size));
    if (bad) {
        snprintf(why, why_size, "%zu bytes of shared memory cannot be had in %s: %s", size, folder, strerror(bad));
        if (file >= 0) close(file), unlink(name);
        name[0] = 0;
        return -1;
    }
    return file;
}

int Segment::open(const Mpi &mpi, Mpi::Handle node, int rank, size_t chunk, char *why, size_t why_size, Error *error) {
    why[0] = 0;
    chunk_ = chunk;
    if (int bad = mpi.check(mpi.Comm_rank(node, &place_), "MPI_Comm_rank", error)) return bad;
    if (int bad = mpi.check(mpi.Comm_size(node, &ranks_), "MPI_Comm_size", error)) return bad;
    int64_t good = 1;
    Told told = {};
    if (ranks_ > 1) {
        size_ = size_of(ranks_, chunk_);
        if (place_ == 0) {
            file_ = make(told.name, size_, why, why_size);
            told.token = mixed(uint64_t(getpid()), uint64_t(now_s() * 1e9));
        }
        if (int bad = mpi.check(mpi.Bcast(&told, int(sizeof told), mpi.byte, 0, node), "MPI_Bcast", error)) return bad;
        if (place_ != 0 && told.name[0]) file_ = ::open(told.name, O_RDWR | O_CLOEXEC);
        void *at = file_ < 0 ? MAP_FAILED : mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_SHARED, file_, 0);
        if (at != MAP_FAILED) {
            lay(static_cast<char *>(at));
            // It tells, with the process's end by whatever cause, that this seat is empty.
            struct flock lock = {};
            lock.l_type = F_WRLCK, lock.l_whence = SEEK_SET, lock.l_start = place_, lock.l_len = 1;
            good = fcntl(file_, F_OFD_SETLK, &lock) == 0;
            mine().rank = rank;
            store(&mine().token, told.token + uint64_t(place_));
        } else {
            good = 0;
            if (!why[0]) snprintf(why, why_size, "%.400s of a rank on this host cannot be opened: %s", told.name, strerror(errno));
        }
        int64_t all = 0;
        if (int bad = mpi.check(mpi.Allreduce(&good, &all, 1, mpi.i64, mpi.min, node), "MPI_Allreduce", error)) return bad;
        for (int i = 0; all && i < ranks_; i++)
            if (load(&seats_[i].token) != told.token + uint64_t(i)) good = 0;  // a file of the same name elsewhere
        if (int bad = mpi.check(mpi.Allreduce(&good, &all, 1, mpi.i64, mpi.min, node), "MPI_Allreduce", error)) return bad;
        if (place_ == 0 && told.name[0]) unlink(told.name);
        if (all) {
            memset(given(place_, 0), 0, DEPTH * chunk_);  // its pages come from this rank's memory
            return 0;
        }
        if (at != MAP_FAILED) munmap(at, size_);
        if (file_ >= 0) close(file_);
        file_ = -1;
        // The first rank's reason, where it has one, for all.
        char said[NAME];
        snprintf(said, sizeof said, "%s", why[0] ? why : "the ranks of this host do not see the same shared memory");
        if (int bad = mpi.check(mpi.Bcast(said, int(sizeof said), mpi.byte, 0, node), "MPI_Bcast", error)) return bad;
        snprintf(why, why_size, "%s", said);
    }
    place_ = 0, ranks_ = 1;
    size_ = size_of(1, chunk_);
    void *at = mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) return error->set(FAIRLEAD_NO_MEMORY, "%zu bytes of memory cannot be had: %s", size_, strerror(errno));
    lay(static_cast<char *>(at));
    mine().rank = rank;
    return 0;
}

Segment::~Segment() {
    if (base_) munmap(base_, size_);
    if (file_ >= 0) close(file_);
}

void Segment::ring() {
    if (ranks_ == 1) return;
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    for (int i = 0; i < ranks_; i++)
        if (i != place_ && __atomic_load_n(&seats_[i].waiting, __ATOMIC_RELAXED)) {
            __atomic_fetch_add(&seats_[i].bell, 1, __ATOMIC_RELEASE);
            futex_wake(&seats_[i].bell);
        }
}

bool Segment::alive(int place) {
    if (file_ < 0 || place == place_) return true;
    struct flock lock = {};
    lock.l_type = F_WRLCK, lock.l_whence = SEEK_SET, lock.l_start = place, lock.l_len = 1;
    return fcntl(file_, F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

}  // namespace fairlead
