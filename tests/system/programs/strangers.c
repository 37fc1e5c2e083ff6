/* Preloaded: where the core listens, as many strangers as $STRANGERS connect first, say nothing and stay; or, if it is
 * "refused", listening fails. The address goes to the file $SAID.listens. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

int listen(int file, int waiting) {
    Dl_info caller;
    const char *strangers = getenv("STRANGERS");
    const int core = dladdr(__builtin_return_address(0), &caller) && strstr(caller.dli_fname, "fairlead_comm");
    if (!core) return (int)syscall(SYS_listen, file, waiting);
    if (!strcmp(strangers, "refused")) {
        errno = EACCES;
        return -1;
    }
    struct sockaddr_in at;
    socklen_t size = sizeof at;
    char line[600];
    if (syscall(SYS_listen, file, waiting) || getsockname(file, (struct sockaddr *)&at, &size)) return -1;
    snprintf(line, sizeof line, "%s.listens", getenv("SAID"));
    const int out = open(line, O_WRONLY | O_CREAT | O_APPEND, 0600);
    const int n = snprintf(line, sizeof line, "%s\n", inet_ntoa(at.sin_addr));
    if (write(out, line, (size_t)n) != n) abort();
    close(out);
    if (at.sin_addr.s_addr == INADDR_ANY) at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    for (int i = 0; i < atoi(strangers); i++) {
        const int stranger = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
        if (connect(stranger, (struct sockaddr *)&at, sizeof at) && errno != EINPROGRESS) abort();
    }
    return 0;
}
