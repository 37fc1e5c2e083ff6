#include "shared_file.h"

#include <dirent.h>
#include <fcntl.h>

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

// Returns an errno; a signal is no reason.
int allocate(int file, size_t from, size_t size) {
    int bad = 0;
    do bad = posix_fallocate(file, off_t(from), off_t(size));
    while (bad == EINTR);
    return bad;
}

// One byte of the file is locked for each rank. The lock disappears when the process ends for whatever reason. It
// belongs to the process, not to the open file: a child that outlives its rank (a data loader's worker) does not
// hold it.
struct flock lock_of(int place, int ranks) {
    struct flock lock = {};
    lock.l_type = F_WRLCK, lock.l_whence = SEEK_SET, lock.l_start = place, lock.l_len = ranks;
    return lock;
}

// Removes the files of killed runs: ours, with no lock taken. A file of size 0 may be in creation, on file systems
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
        struct flock lock = lock_of(0, 0);  // any
        if (lseek(file, 0, SEEK_END) > 0 && fcntl(file, F_GETLK, &lock) == 0 && lock.l_type == F_UNLCK) unlink(name);
        close(file);
    }
    closedir(all);
}

int make(const char *folder, char *name, size_t size, size_t common, char *why, size_t why_size) {
    uint64_t random = 0;
    if (syscall(SYS_getrandom, &random, sizeof random, 0) != sizeof random) random = uint64_t(now_s() * 1e9);
    snprintf(name, NAME, "%s/fairlead-comm-%d-%016llx", folder, int(getpid()), static_cast<unsigned long long>(random));
    // The file has no name until it is locked: so a file with a name and no lock belongs to no run. (Needs /proc and
    // a file system with O_TMPFILE.)
    int bad = 0;
    for (const bool named : {false, true}) {
        const int file = named ? ::open(name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600) : ::open(folder, O_RDWR | O_TMPFILE | O_CLOEXEC, 0600);
        struct flock lock = lock_of(0, 1);
        bad = file < 0 || fcntl(file, F_SETLK, &lock) || ftruncate(file, off_t(size)) ? errno : common ? allocate(file, 0, common) : 0;
        if (!bad && !named) {
            char unnamed[64];
            snprintf(unnamed, sizeof unnamed, "/proc/self/fd/%d", file);
            if (linkat(AT_FDCWD, unnamed, AT_FDCWD, name, AT_SYMLINK_FOLLOW)) bad = errno;
        }
        if (!bad) return file;
        if (file >= 0 && named) unlink(name);
        if (file >= 0) close(file);
    }
    snprintf(why, why_size, "%zu bytes of shared memory cannot be had in %.400s: %s", size, folder, strerror(bad));
    name[0] = 0;
    return -1;
}

}  // namespace

int SharedFile::open(const Mpi &mpi, Mpi::Handle node, size_t bytes, size_t common, Part own, Words words, char *why, size_t why_size, Error *error) {
    why[0] = 0;
    size = bytes;
    int64_t good = 1, all = 0;
    Announcement announced = {};
    if (place == 0) {
        const char *folder = folder_of();
        sweep(folder);
        file = make(folder, announced.name, size, common, why, why_size);
        announced.token = mixed(uint64_t(getpid()), uint64_t(now_s() * 1e9));
    }
    if (int bad = mpi.check(mpi.Bcast(&announced, int(sizeof announced), mpi.byte, 0, node), "MPI_Bcast", error)) return bad;
    if (place != 0 && announced.name[0]) file = ::open(announced.name, O_RDWR | O_CLOEXEC);
    void *mapped = file < 0 ? MAP_FAILED : mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    auto word = [&](int of) { return reinterpret_cast<uint64_t *>(static_cast<char *>(mapped) + words.first + size_t(of) * words.stride); };
    if (mapped != MAP_FAILED) {
        struct flock lock = lock_of(place, 1);
        good = fcntl(file, F_SETLK, &lock) == 0;
        if (!good) snprintf(why, why_size, "%.400s cannot be locked: %s", announced.name, strerror(errno));
        const int full = allocate(file, own.from, own.bytes);
        if (full) good = 0, snprintf(why, why_size, "%zu bytes of shared memory cannot be had in %.400s: %s", size, folder_of(), strerror(full));
        else store(word(place), announced.token + uint64_t(place));
    } else {
        good = 0;
        if (!why[0]) snprintf(why, why_size, "%.400s of a rank on this host cannot be opened: %s", announced.name, strerror(errno));
    }
    if (int bad = mpi.check(mpi.Allreduce(&good, &all, 1, mpi.i64, mpi.min, node), "MPI_Allreduce", error)) return bad;
    if (place == 0 && announced.name[0]) unlink(announced.name);  // all ranks of the node have it open
    for (int i = 0; all && i < ranks; i++)
        if (load(word(i)) != announced.token + uint64_t(i)) good = 0;  // a file of the same name on another host
    if (int bad = mpi.check(mpi.Allreduce(&good, &all, 1, mpi.i64, mpi.min, node), "MPI_Allreduce", error)) return bad;
    if (mapped != MAP_FAILED) at = static_cast<char *>(mapped);
    if (all) return 0;
    close();
    // The reason of the first rank that has one, on all ranks.
    int64_t first = why[0] ? place : ranks, from = 0;
    if (int bad = mpi.check(mpi.Allreduce(&first, &from, 1, mpi.i64, mpi.min, node), "MPI_Allreduce", error)) return bad;
    char reason[NAME];
    snprintf(reason, sizeof reason, "%s", why[0] ? why : "the ranks of this host do not see the same shared memory");
    if (int bad = mpi.check(mpi.Bcast(reason, int(sizeof reason), mpi.byte, from < ranks ? int(from) : 0, node), "MPI_Bcast", error)) return bad;
    snprintf(why, why_size, "%s", reason);
    return 0;
}

void SharedFile::close() {
    if (at) munmap(at, size);
    if (file >= 0) ::close(file);
    at = nullptr, file = -1;
}

bool SharedFile::held(int of_place) const {
    if (file < 0 || of_place == place) return true;
    struct flock lock = lock_of(of_place, 1);
    return fcntl(file, F_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

}  // namespace fairlead
