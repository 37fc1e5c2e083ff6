#include "shared.h"

#include "fairlead_comm.h"
#include "shared_file.h"

namespace fairlead {
namespace {

constexpr size_t PAGE = 4096;

// Parts at a distance of a power of two fall into the same sets of the caches: measured on an AMD EPYC, sums of 1 MB then
// take 4.6 times as long, of 102 MB 2.3 times.
constexpr size_t APART = 17 * PAGE;

size_t whole_pages(size_t bytes) { return (bytes + PAGE - 1) / PAGE * PAGE; }

}  // namespace

int Areas::open(const Mpi &mpi, Mpi::Handle from, Mpi::Handle node, size_t bytes, void **at, char *why, size_t why_size, Error *error) {
    Lock lock(mutex_);
    int slot = 0;
    while (slot < MOST && all_[slot]) slot++;
    Area *area = static_cast<Area *>(malloc(sizeof(Area)));
    const size_t pages = whole_pages(bytes), stride = pages + APART;
    SharedFile shared;
    why[0] = 0;
    int64_t good = slot < MOST && area, all = 0;
    if (int bad = mpi.check(mpi.Allreduce(&good, &all, 1, mpi.i64, mpi.min, from), "MPI_Allreduce", error)) return bad;
    if (!all) {
        free(area);
        return error->set(FAIRLEAD_NO_MEMORY, "a rank has %d shared allocations, or no memory for one more", MOST);
    }
    if (int bad = mpi.check(mpi.Comm_rank(node, &shared.place), "MPI_Comm_rank", error)) return bad;
    if (int bad = mpi.check(mpi.Comm_size(node, &shared.ranks), "MPI_Comm_size", error)) return bad;
    if (shared.ranks > 1)
        if (int bad = shared.open(mpi, node, stride * size_t(shared.ranks), 0, {stride * size_t(shared.place), stride}, {0, stride}, why, why_size, error)) return bad;
    // Whether ranks sum in place must be the same on all nodes.
    good = !why[0];
    if (int bad = mpi.check(mpi.Allreduce(&good, &all, 1, mpi.i64, mpi.min, from), "MPI_Allreduce", error)) return bad;
    if (!all && !why[0]) snprintf(why, why_size, "the ranks of another node cannot share memory");
    void *own = *at;
    const bool given = own != nullptr;
    if (all && shared.at) {
        char *part = shared.at + stride * size_t(shared.place);
        // In pages of 2 MB, if the system has them for shared memory (shmem_enabled: advise).
        madvise(shared.at, shared.size, MADV_HUGEPAGE);
        memset(part, 0, sizeof(uint64_t));
        if (given) {
            memcpy(part, own, bytes);
            if (mmap(own, pages, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, shared.file, off_t(stride * size_t(shared.place))) == MAP_FAILED) {
                free(area);
                return error->set(FAIRLEAD_NO_MEMORY, "%zu bytes of memory cannot be mapped: %s", bytes, strerror(errno));
            }
        } else own = part;
    } else if (!given) {
        own = mmap(nullptr, stride, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (own == MAP_FAILED) {
            free(area);
            return error->set(FAIRLEAD_NO_MEMORY, "%zu bytes of memory cannot be had: %s", bytes, strerror(errno));
        }
    }
    *area = {static_cast<char *>(own), bytes, all ? shared.at : nullptr, stride, ++made_, shared.place, shared.ranks};
    shared.at = all ? nullptr : shared.at;  // stays mapped
    shared.close();
    given_[slot] = given;
    store(&all_[slot], const_cast<const Area *>(area));
    if (slot >= count_) store(&count_, slot + 1);
    *at = own;
    return 0;
}

bool Areas::close(void *at) {
    Lock lock(mutex_);
    for (int slot = 0; slot < count_; slot++) {
        const Area *area = all_[slot];
        if (!area || area->at != at) continue;
        store(&all_[slot], static_cast<const Area *>(nullptr));
        if (area->parts) munmap(area->parts, area->stride * size_t(area->ranks));
        else if (!given_[slot]) munmap(area->at, area->stride);
        return true;
    }
    return false;
}

const Area *Areas::of(const void *at, size_t bytes) const {
    const char *from = static_cast<const char *>(at);
    for (int slot = 0; slot < load(&count_); slot++) {
        const Area *area = load(&all_[slot]);
        if (area && area->parts && from >= area->at && from + bytes <= area->at + area->bytes) return area;
    }
    return nullptr;
}

}  // namespace fairlead
