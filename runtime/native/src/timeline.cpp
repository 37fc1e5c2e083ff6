#include "timeline.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

namespace fairlead {
namespace {

// The clock that this process reads: by the boot of the machine and the time namespace.
void clock_name(char *to, size_t size) {
    char boot[64] = "?", space[48] = "?";
    const int file = ::open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    if (file >= 0) {
        const ssize_t n = read(file, boot, sizeof boot - 1);
        boot[n > 0 ? n : 0] = 0;
        boot[strcspn(boot, "\n")] = 0;
        ::close(file);
    }
    const ssize_t n = readlink("/proc/self/ns/time", space, sizeof space - 1);
    if (n > 0) space[n] = 0;
    snprintf(to, size, "%s %s", boot, space);
}

}  // namespace

// `folder` is in a place where others may be able to write, such as /tmp: it has to be a folder of ours and no link,
// and the file in it is a new one.
int Timeline::map(const char *folder, const char *name, size_t size) {
    mkdir(folder, 0700);  // another rank may have made it
    const int parts = ::open(folder, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (parts < 0) return errno;
    struct stat found = {};
    const int file = syscall(SYS_fstat, parts, &found) ? -1 : found.st_uid != geteuid() ? (errno = EPERM, -1) : (unlinkat(parts, name, 0), openat(parts, name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
    if (file < 0) {
        const int bad = errno;
        ::close(parts);
        return bad;
    }
    // Its pages are allocated now: a write to one that cannot be allocated later would end the process (SIGBUS).
    int bad = posix_fallocate(file, 0, off_t(size));
    void *at = bad ? MAP_FAILED : mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (!bad && at == MAP_FAILED) bad = errno;
    ::close(file);
    if (bad) unlinkat(parts, name, 0);
    ::close(parts);
    if (bad) return bad;
    size_ = size;
    head_ = static_cast<Head *>(at);  // until the process ends
    return 0;
}

void Timeline::open(int rank, int size, const char *host, uint64_t run, double mb, bool chunks) {
    const char *file = getenv("FAIRLEAD_COMM_TIMELINE");
    if (!file || !*file) return;
    chunks_ = chunks;
    char folder[1200], name[32];
    snprintf(folder, sizeof folder, "%s.parts", file);
    snprintf(name, sizeof name, "rank-%06d.ring", rank);
    const uint64_t capacity = most(uint64_t(mb * 1048576) / sizeof(Event), uint64_t(64));
    if (int bad = map(folder, name, sizeof(Head) + capacity * sizeof(Event))) {
        char line[1600];
        const int n = snprintf(line, sizeof line, "fairlead.comm: rank %d (%s) records no timeline: %s/%s: %s\n", rank, host, folder, name, bad == EPERM ? "the folder belongs to another user" : strerror(bad));
        if (n > 0 && write(2, line, least(size_t(n), sizeof line - 1)) < 0) return;
        return;
    }
    Head &head = *head_;
    events_ = reinterpret_cast<Event *>(reinterpret_cast<char *>(head_) + sizeof(Head));
    head.head_bytes = sizeof(Head), head.event_bytes = sizeof(Event);
    head.rank = rank, head.size = size, head.run = run, head.capacity = capacity, head.process = int32_t(getpid());
    timespec wall;
    clock_gettime(CLOCK_REALTIME, &wall);
    head.wall_ns = int64_t(wall.tv_sec) * 1000000000 + wall.tv_nsec - int64_t(now_ns());
    snprintf(head.host, sizeof head.host, "%s", host);
    clock_name(head.clock, sizeof head.clock);
    snprintf(head.names[LANES - 1], sizeof head.names[0], "other teams");
    memcpy(head.magic, "FLTRACE1", 8);
}

void Timeline::name(int lane, const char *name, int part) {
    if (!head_ || lane < 0 || lane >= LANES - 1) return;
    if (part) snprintf(head_->names[lane], sizeof head_->names[0], "%s, thread %d", name, part);
    else snprintf(head_->names[lane], sizeof head_->names[0], "%s", name);
}

void Timeline::add(const Event &event) {
    const uint64_t number = __atomic_fetch_add(&head_->written, 1, __ATOMIC_RELAXED);
    Event &to = events_[number % head_->capacity];
    store(&to.number, uint64_t(0));
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    memcpy(&to.begin, &event.begin, sizeof event - sizeof event.number);
    store(&to.number, number + 1);
}

void Timeline::flush() {
    if (head_) msync(head_, size_, MS_SYNC);
}

void Laps::took(Stage stage, uint64_t chunk, uint64_t begun, uint64_t ended) {
    ns_[stage] += ended - begun;
    if (timeline_->chunks()) timeline_->add({0, begun, 0, ended, call_, 0, Event::STAGE | stage, lane_, uint32_t(chunk), 0, {}});
}

void Laps::post(uint64_t chunk, uint64_t now) {
    if (!under_way_++) since_ = now;
    posted_[chunk % MOST] = now;
}

void Laps::arrive(uint64_t chunk, uint64_t now) {
    if (!--under_way_) ns_[NETWORK] += now - since_;
    if (timeline_->chunks()) timeline_->add({0, posted_[chunk % MOST], 0, now, call_, 0, Event::STAGE | NETWORK, lane_, uint32_t(chunk), 0, {}});
}

}  // namespace fairlead
