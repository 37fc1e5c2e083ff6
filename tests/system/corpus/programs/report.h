/* What a rank has seen, as lines of its output: who it is, what it computed, and which files it has mapped. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static inline void report(int rank, int size, double sum, const char *version)
{
    char line[4096], text[8192];
    FILE *maps = fopen("/proc/self/maps", "r");
    snprintf(text, sizeof text, "corpus rank %d\ncorpus size %d\ncorpus sum %.1f\ncorpus version %.*s\n", rank, size,
             sum, (int)strcspn(version, "\r\n"), version);
    fputs(text, stdout);
    while (maps && fgets(line, sizeof line, maps)) {
        unsigned long inode = 0;
        int path = 0;
        if (sscanf(line, "%*s %*s %*s %*s %lu %n", &inode, &path) == 1 && path && line[path] == '/')
            printf("corpus map %lu %s", inode, line + path);
    }
    puts("corpus end");
    fflush(stdout);
}
