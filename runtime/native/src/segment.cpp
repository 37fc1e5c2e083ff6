#include "segment.h"

#include "fairlead_comm.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>

namespace fairlead {
namespace {

constexpr size_t NAME = 512;

struct Announcement {  // from the first rank of a node
    char name[NAME];
    uint64_t token;
};

const char *folder_of() {
    const char *folder = getenv("FAIRLEAD_COMM_SHM");
    return folder && *folder ? folder : "/dev/shm";
}

// What all ranks use, in front, in whole pages; then what each rank hands to the others, `DEPTH * chunk` bytes.
size_t common_of(int ranks, size_t chunk) {
    const size_t bytes = sizeof(Seat) * size_t(ranks) + size_t(ranks) * 2 * FLAT + DEPTH * 2 * chunk;
    return (bytes + 4095) / 4096 * 4096;
}

size_t size_of(int ranks, size_t chunk) { return common_of(ranks, chunk) + size_t(ranks) * DEPTH * chunk; }

// Pages are allocated before they are used: a write to one that cannot be allocated later would end the process
// (SIGBUS). They come from the NUMA node of the rank that asks for them. Returns an errno; a signal is no reason.
int allocate(int file, size_t from, size_t size) {
    int bad = 0;
    do bad = posix_fallocate(file, off_t(from), off_t(size));
    while (bad == EINTR);
    return bad;
}

// One byte of the file is locked for each seat. The lock disappears when the process ends for whatever reason. It
// belongs to the process, not to the open file: a child that outlives its rank (a data loader's worker) does not
// hold it.
struct flock seat_lock(int place, int seats) {
    struct flock lock = {};
    lock.l_type = F_WRLCK, lock.l_whence = SEEK_SET, lock.l_start = place, lock.l_len = seats;
    return lock;
}

// Removes the files of killed runs: ours, with no seat taken. A file of size 0 may be in creation, on file systems
// without O_TMPFILE.
void sweep(const char *folder) {
    DIR *all = opendir(folder);
    if (!all) return;
    while (const dirent *entry = readdir(all)) {
        char name[NAME];
        if (strncmp(entry->d_name, "fairlead-comm-", 14)) continue;
        if (snprintf(name, sizeof name, "%s/%s", folder, entry->d_name) >= int(sizeof name)) continue;
        const int file = open(name, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
        if (file < 0) continue;
        struct flock lock = seat_lock(0, 0);  // any
        if (lseek(file, 0, SEEK_END) > 0 && fcntl(file, F_GETLK, &lock) == 0 && lock.l_type == F_UNLCK) unlink(name);
        close(file);
    }
    closedir(all);
}

}  // namespace

void Segment::lay(char *base) {
    base_ = base;
    seats_ = reinterpret_cast<Seat *>(base);
    flats_ = base + sizeof(Seat) * size_t(ranks_);
    results_ = flats_ + size_t(ranks_) * 2 * FLAT;
    givens_ = base + common_of(ranks_, chunk_);
}

int Segment::make(const char *folder, char *name, size_t size, char *why, size_t why_size) {
    uint64_t random = 0;
    if (syscall(SYS_getrandom, &random, sizeof random, 0) != sizeof random) random = uint64_t(now_s() * 1e9);
    snprintf(name, NAME, "%s/fairlead-comm-%d-%016llx", folder, int(getpid()), static_cast<unsigned long long>(random));
    // The file has no name until a seat is taken: so a file with a name and no taken seat belongs to no run. (Needs
    // /proc and a file system with O_TMPFILE.) Each rank allocates the pages that it writes most.
    int bad = 0;
    for (const bool named : {false, true}) {
        const int file = named ? ::open(name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600) : ::open(folder, O_RDWR | O_TMPFILE | O_CLOEXEC, 0600);
        struct flock lock = seat_lock(0, 1);
        bad = file < 0 || fcntl(file, F_SETLK, &lock) || ftruncate(file, off_t(size)) ? errno : allocate(file, 0, common_of(ranks_, chunk_) + DEPTH * chunk_);
        if (!bad && !named) {
            char unnamed[64];
            snprintf(unnamed, sizeof unnamed, "/proc/self/fd/%d", file);
            if (linkat(AT_FDCWD, unnamed, AT_FDCWD, name, AT_SYMLINK_FOLLOW)) bad = errno;
        }
        if (!bad) return file;
        if (file >= 0 && named) unlink(name);
        if (file >= 0) close(file);
    }
    snprintf(why, why_size, "%zu bytes of shared memory cannot be had in %s: %s", size, folder, strerror(bad));
    name[0] = 0;
    return -1;
}

int Segment::open(const Mpi &mpi, Mpi::Handle node, int rank, size_t chunk, char *why, size_t why_size, Error *error) {
    why[0] = 0;
    chunk_ = chunk;
    if (int bad = mpi.check(mpi.Comm_rank(node, &place_), "MPI_Comm_rank", error)) return bad;
    if (int bad = mpi.check(mpi.Comm_size(node, &ranks_), "MPI_Comm_size", error)) return bad;
    int64_t good = 1;
    Announcement announced = {};
    if (ranks_ > 1) {
        size_ = size_of(ranks_, chunk_);
        if (place_ == 0) {
            const char *folder = folder_of();
            sweep(folder);
            file_ = make(folder, announced.name, size_, why, why_size);
            announced.token = mixed(uint64_t(getpid()), uint64_t(now_s() * 1e9));
        }
        if (int bad = mpi.check(mpi.Bcast(&announced, int(sizeof announced), mpi.byte, 0, node), "MPI_Bcast", error)) return bad;
        if (place_ != 0 && announced.name[0]) file_ = ::open(announced.name, O_RDWR | O_CLOEXEC);
        void *at = file_ < 0 ? MAP_FAILED : mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_SHARED, file_, 0);
        if (at != MAP_FAILED) {
            lay(static_cast<char *>(at));
            struct flock lock = seat_lock(place_, 1);
            good = fcntl(file_, F_SETLK, &lock) == 0;
            if (!good) snprintf(why, why_size, "%.400s cannot be locked: %s", announced.name, strerror(errno));
            const int full = place_ ? allocate(file_, size_t(given(place_, 0) - base_), DEPTH * chunk_) : 0;
            if (full) good = 0, snprintf(why, why_size, "%zu bytes of shared memory cannot be had in %.400s: %s", size_, folder_of(), strerror(full));
            mine().rank = rank;
            store(&mine().token, announced.token + uint64_t(place_));
        } else {
            good = 0;
            if (!why[0]) snprintf(why, why_size, "%.400s of a rank on this host cannot be opened: %s", announced.name, strerror(errno));
        }
        int64_t all = 0;
        if (int bad = mpi.check(mpi.Allreduce(&good, &all, 1, mpi.i64, mpi.min, node), "MPI_Allreduce", error)) return bad;
        if (place_ == 0 && announced.name[0]) unlink(announced.name);  // all ranks of the node have it open
        for (int i = 0; all && i < ranks_; i++)
            if (load(&seats_[i].token) != announced.token + uint64_t(i)) good = 0;  // a file of the same name on another host
        if (int bad = mpi.check(mpi.Allreduce(&good, &all, 1, mpi.i64, mpi.min, node), "MPI_Allreduce", error)) return bad;
        if (all) return 0;
        if (at != MAP_FAILED) munmap(at, size_);
        if (file_ >= 0) close(file_);
        file_ = -1;
        // The reason of the first rank that has one, on all ranks.
        int64_t first = why[0] ? place_ : ranks_, from = 0;
        if (int bad = mpi.check(mpi.Allreduce(&first, &from, 1, mpi.i64, mpi.min, node), "MPI_Allreduce", error)) return bad;
        char reason[NAME];
        snprintf(reason, sizeof reason, "%s", why[0] ? why : "the ranks of this host do not see the same shared memory");
        if (int bad = mpi.check(mpi.Bcast(reason, int(sizeof reason), mpi.byte, from < ranks_ ? int(from) : 0, node), "MPI_Bcast", error)) return bad;
        snprintf(why, why_size, "%s", reason);
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

bool Segment::alive(int place) {
    if (file_ < 0 || place == place_) return true;
    struct flock lock = seat_lock(place, 1);
    return fcntl(file_, F_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

}  // namespace fairlead
