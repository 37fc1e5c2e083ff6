/* Preloaded: whoever removes a file of the core's stays there, as if it had been stopped just before. */
#define _GNU_SOURCE
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

int unlink(const char *path) {
    if (strstr(path, "/fairlead-comm-"))
        for (;;) pause();
    return (int)syscall(SYS_unlink, path);
}
