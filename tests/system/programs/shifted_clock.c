/* A host whose clock is 100 s ahead: preloaded into a rank. */
#define _GNU_SOURCE
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int clock_gettime(clockid_t which, struct timespec *now)
{
    int failed = syscall(SYS_clock_gettime, which, now);
    if (!failed && which == CLOCK_REALTIME)
        now->tv_sec += 100;
    return failed;
}
