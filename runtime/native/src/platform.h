// What the core needs of Linux and libc, and small containers.
//
// The library names no shared library and no symbol version: it is linked without libc and libstdc++, which the
// loading process has. So one binary runs on every glibc. That rules out exceptions, iostreams, std::thread, and
// functions whose oldest version in glibc differs in layout from the newest (pthread_cond_*, sched_getaffinity):
// waiting uses futexes.
#pragma once

#include <cerrno>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <initializer_list>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace fairlead {

inline double now_s() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return double(t.tv_sec) + 1e-9 * double(t.tv_nsec);
}

inline uint64_t now_ns() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return uint64_t(t.tv_sec) * 1000000000 + uint64_t(t.tv_nsec);
}

// A counter of the processor that advances evenly, for what is counted in every call: reading the clock takes as
// long as the transfer of a cache line. `Ticks` knows its period.
inline uint64_t ticks() {
#if defined(__x86_64__)
    return __builtin_ia32_rdtsc();
#elif defined(__aarch64__)
    uint64_t now;
    asm volatile("mrs %0, cntvct_el0" : "=r"(now));
    return now;
#else
    return now_ns();
#endif
}

// On old machines the counters of two cores differ, and a thread may have moved.
inline uint64_t between(uint64_t begun, uint64_t ended) { return ended > begun ? ended - begun : 0; }

class Ticks {
  public:
    void begin() { ticks_ = ticks(), ns_ = now_ns(); }
    // Seconds of so many ticks. The longer ago `begin` was, the more precise.
    double seconds(uint64_t count) const {
        const uint64_t passed = ticks() - ticks_;
        return passed ? 1e-9 * double(count) * double(now_ns() - ns_) / double(passed) : 0;
    }

  private:
    uint64_t ticks_ = 0, ns_ = 0;
};

inline void relax() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("isb" ::: "memory");
#endif
}

// Announces a write to this cache line: other cores give it up early. Harmless on processors that do not know it.
inline void claim(void *line) {
#if defined(__x86_64__)
    asm volatile("prefetchw %0" : : "m"(*static_cast<char *>(line)));
#elif defined(__aarch64__)
    asm volatile("prfm pstl1keep, %0" : : "Q"(*static_cast<char *>(line)));
#else
    (void)line;
#endif
}

// After non-temporal stores: a thread that sees a later store sees these.
inline void written_past() {
#if defined(__x86_64__)
    __builtin_ia32_sfence();
#endif
}

inline void sleep_us(long us) {
    timespec t{us / 1000000, us % 1000000 * 1000};
    nanosleep(&t, nullptr);
}

// Not private: the words lie in memory shared between processes.
inline void futex_wait(uint32_t *word, uint32_t seen, long us) {
    timespec t{us / 1000000, us % 1000000 * 1000};
    syscall(SYS_futex, word, FUTEX_WAIT, seen, &t, nullptr, 0);
}
inline void futex_wake(uint32_t *word) { syscall(SYS_futex, word, FUTEX_WAKE, 1 << 30, nullptr, nullptr, 0); }

// The processors that this thread may use.
struct Cpus {
    uint64_t words[128];  // 8192 CPUs
    void read() {
        memset(this, 0, sizeof *this);
        syscall(SYS_sched_getaffinity, 0, sizeof words, words);
    }
    int count() const {
        int all = 0;
        for (const uint64_t word : words) all += __builtin_popcountl(word);
        return all;
    }
    bool within(const Cpus &other) const {
        for (int i = 0; i < 128; i++)
            if (words[i] & ~other.words[i]) return false;
        return true;
    }
    void add(const Cpus &other) {
        for (int i = 0; i < 128; i++) words[i] |= other.words[i];
    }
};

// Whether the owner of `mine` shares processors with more ranks than there are processors: among all of `each`, or
// among those whose processors lie within those of one of them. (A launcher that binds gives disjoint or equal sets.)
inline bool outnumbered(const Cpus &mine, const Cpus *each, int ranks) {
    Cpus all = {};
    for (int i = 0; i < ranks; i++) all.add(each[i]);
    if (ranks > all.count()) return true;
    for (int i = 0; i < ranks; i++) {
        if (!mine.within(each[i])) continue;
        int within = 0;
        for (int j = 0; j < ranks; j++) within += each[j].within(each[i]);
        if (within > each[i].count()) return true;
    }
    return false;
}

// Distinguishes a process from its forks without a system call: the kernel clears a page in the forks.
class Here {
  public:
    void mark() {
        process_ = getpid();
        void *page = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (page == MAP_FAILED) return;
        if (madvise(page, 4096, MADV_WIPEONFORK)) munmap(page, 4096);  // before Linux 4.14
        else *(marked_ = static_cast<volatile int *>(page)) = 1;
    }
    pid_t process() const { return process_; }  // that was marked
    bool forked() const { return marked_ ? !*marked_ : getpid() != process_; }

  private:
    volatile int *marked_ = nullptr;
    pid_t process_ = 0;
};

#ifdef FAIRLEAD_COMM_JITTER
// For tests: messages between ranks arrive late, and in another order each time.
inline void jitter(unsigned one_in) {
    static __thread uint64_t state;
    if (!state) state = uint64_t(now_s() * 1e9) ^ uint64_t(getpid()) << 32 ^ reinterpret_cast<uintptr_t>(&state);
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    const uint64_t drawn = state >> 20;
    if (drawn % one_in == 0) sleep_us(long(drawn / one_in % 200));
    else if (drawn % one_in == 1) sched_yield();
}
#else
inline void jitter(unsigned) {}
#endif

template <class T> T load(const T *at) {
    jitter(500);
    return __atomic_load_n(at, __ATOMIC_ACQUIRE);
}
template <class T> void store(T *at, T value) {
    jitter(20);
    __atomic_store_n(at, value, __ATOMIC_RELEASE);
    jitter(20);
}

// Sums are rounded to nearest and denormals kept, whatever the calling thread has set for itself (frameworks flush
// denormals to zero in some threads): all ranks get the same bits.
class Rounding {
  public:
#if defined(__x86_64__)
    Rounding() : before_(__builtin_ia32_stmxcsr()) { __builtin_ia32_ldmxcsr(0x1f80); }
    ~Rounding() { __builtin_ia32_ldmxcsr(before_); }
    Rounding(const Rounding &) = delete;

  private:
    unsigned before_;
#elif defined(__aarch64__)
    Rounding() {
        asm volatile("mrs %0, fpcr" : "=r"(before_));
        asm volatile("msr fpcr, %0" : : "r"(uint64_t(0)));
    }
    ~Rounding() { asm volatile("msr fpcr, %0" : : "r"(before_)); }
    Rounding(const Rounding &) = delete;

  private:
    uint64_t before_;
#endif
};

template <class T> T least(T a, T b) { return a < b ? a : b; }
template <class T> T most(T a, T b) { return a > b ? a : b; }

inline uint64_t mixed(uint64_t h, uint64_t value) {  // splitmix64's finaliser, chained
    h = (h ^ value) + 0x9e3779b97f4a7c15ull;
    h = (h ^ (h >> 30)) * 0xbf58476d1ce4e5b9ull;
    h = (h ^ (h >> 27)) * 0x94d049bb133111ebull;
    return h ^ (h >> 31);
}

// A number from the environment; `other` if it is not set. If it is not a number, `bad` is set to the name.
double number_of(const char *name, double other, const char **bad);

// An array that frees itself. It grows only by `room`, which drops its contents.
template <class T> class Room {
  public:
    Room() = default;
    Room(const Room &) = delete;
    Room &operator=(const Room &) = delete;
    ~Room() { free(at_); }
    bool room(size_t count) {
        if (count <= count_) return true;
        free(at_);
        void *found = nullptr;
        count_ = count > (~size_t(0) >> 1) / sizeof(T) || posix_memalign(&found, 64, count * sizeof(T)) ? 0 : count;
        at_ = count_ ? static_cast<T *>(found) : nullptr;
        return at_ != nullptr;
    }
    T *at() { return at_; }
    T &operator[](size_t i) { return at_[i]; }
    size_t count() const { return count_; }

  private:
    T *at_ = nullptr;
    size_t count_ = 0;
};

// Why a call failed. Clear it before its first use: filling it with zeros takes as long as a small call.
struct Error {
    int status;
    int culprit;  // the rank that this one fails for; -1: none, or it is not known
    char text[1400];
    void clear() { status = 0, culprit = -1, text[0] = 0; }
    __attribute__((format(printf, 3, 4))) int set(int code, const char *format, ...) {
        va_list values;
        va_start(values, format);
        vsnprintf(text, sizeof text, format, values);
        va_end(values);
        culprit = -1;
        return status = code;
    }
    __attribute__((format(printf, 4, 5))) int by(int rank, int code, const char *format, ...) {
        va_list values;
        va_start(values, format);
        vsnprintf(text, sizeof text, format, values);
        va_end(values);
        culprit = rank;
        return status = code;
    }
};

class Lock {
  public:
    explicit Lock(pthread_mutex_t &mutex) : mutex_(mutex) { pthread_mutex_lock(&mutex_); }
    ~Lock() { pthread_mutex_unlock(&mutex_); }
    Lock(const Lock &) = delete;

  private:
    pthread_mutex_t &mutex_;
};

}  // namespace fairlead
