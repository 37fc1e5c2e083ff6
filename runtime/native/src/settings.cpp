#include "chunks.h"

namespace fairlead {

double number_of(const char *name, double other, const char **bad) {
    const char *text = getenv(name);
    if (!text || !*text) return other;
    char *end = nullptr;
    double value = strtod(text, &end);
    if (*end || !(value >= 0 && value <= 1e9)) *bad = name;  // in the range of an int
    return value;
}

int Settings::read(Error *error) {
    const char *bad = nullptr;
    stall_s = number_of("FAIRLEAD_COMM_STALL_S", 20, &bad);
    timeout_s = number_of("FAIRLEAD_COMM_TIMEOUT_S", 0, &bad);
    spin_us = long(number_of("FAIRLEAD_COMM_SPIN_US", 100, &bad));
    poll_us = long(number_of("FAIRLEAD_COMM_POLL_US", 100, &bad));
    chunk = size_t(number_of("FAIRLEAD_COMM_CHUNK_KB", 768, &bad) * 1024);
    const char *kilobytes = getenv("FAIRLEAD_COMM_CHUNK_KB"), *stores = getenv("FAIRLEAD_COMM_NONTEMPORAL");
    chunk_fixed = kilobytes && *kilobytes;
    past = stores && *stores && strcmp(stores, "auto") ? number_of("FAIRLEAD_COMM_NONTEMPORAL", 0, &bad) != 0 : -1;
    node_ranks = int(number_of("FAIRLEAD_COMM_NODE_RANKS", 0, &bad));
    shared_memory = number_of("FAIRLEAD_COMM_SHARED_MEMORY", 1, &bad) != 0;
    const char *asked = getenv("FAIRLEAD_COMM_NONFINITE");
    nonfinite = !asked || !*asked || !strcmp(asked, "warn") ? WARN : !strcmp(asked, "stop") ? STOP : IGNORE;
    if (nonfinite == IGNORE && strcmp(asked, "ignore")) return error->set(FAIRLEAD_BAD_CALL, "FAIRLEAD_COMM_NONFINITE=%.100s is not warn, stop or ignore", asked);
    lifeline = number_of("FAIRLEAD_COMM_LIFELINE", 1, &bad) != 0;
    timeline_mb = number_of("FAIRLEAD_COMM_TIMELINE_MB", 8, &bad);
    timeline_chunks = number_of("FAIRLEAD_COMM_TIMELINE_CHUNKS", 0, &bad) != 0;
    deterministic = number_of("FAIRLEAD_COMM_DETERMINISTIC", 0, &bad) != 0;
    const char *named = getenv("FAIRLEAD_COMM_ALGORITHM");
    const int known = !named || !*named ? AUTO : algorithm_of(named);
    if (known < 0) return error->set(FAIRLEAD_BAD_CALL, "FAIRLEAD_COMM_ALGORITHM=%.100s is not auto, mpi, doubling, halving, ring or groups", named);
    algorithm = Algorithm(known);
    if (bad) return error->set(FAIRLEAD_BAD_CALL, "%s=%s is not a number from 0 to 1000000000", bad, getenv(bad));
    if (chunk < 4096 || chunk > (size_t(1) << 28))
        return error->set(FAIRLEAD_BAD_CALL, "FAIRLEAD_COMM_CHUNK_KB=%s is not between 4 and 262144", getenv("FAIRLEAD_COMM_CHUNK_KB"));
    chunk = rounded_up(chunk, 4096);
    return 0;
}

}  // namespace fairlead
