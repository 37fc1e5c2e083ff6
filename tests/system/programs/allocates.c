/* Preloaded: notes in the file $SAID which process allocates which bytes of a file, is interrupted by a signal at the first
 * attempt, and finds no room for a rank's own part if $ROOM is "none". */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

int posix_fallocate(int file, off_t from, off_t size) {
    static int attempts;
    char line[100];
    Dl_info caller;
    if (!dladdr(__builtin_return_address(0), &caller) || !strstr(caller.dli_fname, "fairlead_comm"))
        return syscall(SYS_fallocate, file, 0, from, size) ? errno : 0;
    if (!attempts++) return EINTR;
    if (from && !strcmp(getenv("ROOM"), "none")) return ENOSPC;
    const int out = open(getenv("SAID"), O_WRONLY | O_CREAT | O_APPEND, 0600);
    const int n = snprintf(line, sizeof line, "%d %ld %ld\n", (int)getpid(), (long)from, (long)size);
    if (write(out, line, (size_t)n) != n) abort();
    close(out);
    return syscall(SYS_fallocate, file, 0, from, size) ? errno : 0;
}
