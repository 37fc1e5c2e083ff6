/* Two threads with teams of their own, blocking and started calls in flight, for so many steps:
 * comm_threads STEPS. Prints by how much memory and open files have grown since the first tenth. */
#include "fairlead_comm.h"
#include <dirent.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#define DO(call) do { int code_ = (call); if (code_) { fprintf(stderr, "%s: %d %s\n", #call, code_, fairlead_comm_error()); _exit(3); } } while (0)
enum { LISTS = 3 };
static int rank, size, steps;
static const uint64_t COUNTS[LISTS] = {7, 5000, 40000};

static void *work(void *of) {
    fairlead_team *team = of;
    float *values[LISTS];
    for (int i = 0; i < LISTS; i++) values[i] = malloc(COUNTS[i] * sizeof(float));
    for (int step = 0; step < steps; step++) {
        uint64_t tickets[LISTS];
        for (int i = 0; i < LISTS; i++) {
            for (uint64_t j = 0; j < COUNTS[i]; j += 97) values[i][j] = (float)(rank + 1) * (float)(step % 100 + i);
            fairlead_tensor t = {values[i], values[i], COUNTS[i], FAIRLEAD_FLOAT32, 0, 0};
            if (i == step % LISTS) {
                DO(fairlead_comm_aggregate(team, &t, 1, FAIRLEAD_SUM));
                tickets[i] = UINT64_MAX;
            } else DO(fairlead_comm_start(team, &t, 1, FAIRLEAD_SUM, &tickets[i]));
        }
        fairlead_stats stats;
        DO(fairlead_comm_stats(team, &stats));
        for (int i = LISTS - 1; i >= 0; i--) {
            if (tickets[i] != UINT64_MAX) {
                fairlead_comm_done(team, tickets[i]);
                DO(fairlead_comm_wait(team, tickets[i]));
            }
            const float want = (float)(size * (size + 1) / 2) * (float)(step % 100 + i);
            for (uint64_t j = 0; j < COUNTS[i]; j += 97)
                if (values[i][j] != want) {
                    fprintf(stderr, "step %d, list %d, element %d: %g is not %g\n", step, i, (int)j, values[i][j], want);
                    _exit(4);
                }
        }
    }
    for (int i = 0; i < LISTS; i++) free(values[i]);
    return NULL;
}

static long resident_kb(void) {
    long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (!file || fscanf(file, "%*d %ld", &pages) != 1) _exit(5);
    fclose(file);
    return pages * (sysconf(_SC_PAGESIZE) / 1024);
}

static int open_files(void) {
    int count = 0;
    DIR *all = opendir("/proc/self/fd");
    while (readdir(all)) count++;
    closedir(all);
    return count;
}

static void both(fairlead_team **teams, int of) {
    pthread_t threads[2];
    steps = of;
    for (int i = 0; i < 2; i++) pthread_create(&threads[i], NULL, work, teams[i]);
    for (int i = 0; i < of; i += 10) {
        double value = rank;
        DO(fairlead_comm_average(&value, 1));
        if (value != (size - 1) / 2.0) _exit(6);
    }
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
}

int main(int argc, char **argv) {
    const int all = argc > 1 ? atoi(argv[1]) : 100;
    fairlead_team *teams[2];
    DO(fairlead_comm_init());
    rank = fairlead_comm_rank(), size = fairlead_comm_size();
    for (int i = 0; i < 2; i++) DO(fairlead_comm_team(i + 1, &teams[i]));
    both(teams, all / 10);
    const long kb = resident_kb();
    const int files = open_files();
    both(teams, all - all / 10);
    char line[100];
    const int n = snprintf(line, sizeof line, "ok: %ld kB and %d files more\n", resident_kb() - kb, open_files() - files);
    DO(fairlead_comm_finalize());
    return write(1, line, (size_t)n) == n ? 0 : 7;
}
