// A file that the ranks of a node map, each its own part of it and those of the others.
#pragma once

#include "mpi.h"

namespace fairlead {

struct SharedFile {
    int file = -1;
    char *at = nullptr;  // null: the ranks do not share it
    size_t size = 0;
    int place = 0, ranks = 1;

    // What this rank allocates, besides `common` bytes in front that the first rank does. Pages are allocated before
    // they are used: a write to one that cannot be allocated later would end the process (SIGBUS). They come from the
    // NUMA node of the rank that asks for them.
    struct Part {
        size_t from, bytes;
    };
    // Where each rank writes a word to show that all see one file: `first + place * stride`.
    struct Words {
        size_t first, stride;
    };
    // Collective over `node`, of which this is rank `place` of `ranks`, at least two. The file is locked at `place`
    // for as long as it is open. If the ranks cannot share it, `why` is set on all.
    int open(const Mpi &mpi, Mpi::Handle node, size_t size, size_t common, Part own, Words words, char *why, size_t why_size, Error *error);
    void close();
    // Whether the process of `of_place` still has it open.
    bool held(int of_place) const;
};

}  // namespace fairlead
