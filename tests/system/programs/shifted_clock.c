/* A host whose clock is 100 s ahead, or with CLOCK_JUMPS set one that jumps an hour back or forth at every 50th look:
 * preloaded into a rank, or into the launching side. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static long looks;

int clock_gettime(clockid_t which, struct timespec *now)
{
    int failed = syscall(SYS_clock_gettime, which, now);
    if (failed || which != CLOCK_REALTIME)
        return failed;
    if (!getenv("CLOCK_JUMPS"))
        now->tv_sec += 100;
    else if (__atomic_add_fetch(&looks, 1, __ATOMIC_RELAXED) / 50 % 2)
        now->tv_sec += looks / 100 % 2 ? 3600 : -3600;
    return 0;
}

time_t time(time_t *to)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (to)
        *to = now.tv_sec;
    return now.tv_sec;
}
