"""Sums of two ranks on two hosts, by the core: a line a size with the seconds of each round. With 0 rounds, the latency of
a message, which the core measures where no algorithm is pinned.

The slower rank counts. Started by an MPI's launcher with FAIRLEAD_COMM_LIBRARY; the core finds that MPI.
"""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "system" / "programs"))
import comm_core

# The cable's token bucket lets the first 256 kB pass at once: these are several times as large.
SIZES = (1048576, 4194304, 13107200)


def main(rounds: int) -> None:
    comm_core.call("init")
    comm_core.core.fairlead_comm_network.restype = comm_core.ctypes.c_char_p
    words = comm_core.core.fairlead_comm_network().decode()
    first = comm_core.raw("rank") == 0
    team = comm_core.team(1)
    found = re.search(r"a message: ([\d.]+) us", words)
    assert found or rounds, words
    lines = [] if rounds or not found else [f"{float(found[1]) * 1e-6:g}"]
    for size in SIZES if rounds else ():
        given, sums = np.ones(size // 4, np.float32), np.empty(size // 4, np.float32)
        samples = []
        for _ in range(rounds + 1):
            comm_core.call("barrier")
            begun = time.perf_counter()
            comm_core.aggregate(team, [(given, sums, comm_core.FLOAT32)])
            both = np.array([time.perf_counter() - begun, 0.0])
            samples.append(slower(both))
            assert (sums == 2).all()
        lines.append(" ".join([str(size), *(f"{s:.6g}" for s in samples[1:])]))
    if first:
        print("\n".join(lines), flush=True)
    comm_core.call("finalize")


def slower(seconds: np.ndarray) -> float:
    """Of both ranks."""
    every = np.zeros(2)
    mine = np.ascontiguousarray(seconds[:1])
    pointer = comm_core.ctypes.c_void_p
    comm_core.call(
        "gather", pointer(mine.ctypes.data), comm_core.ctypes.c_uint64(8), pointer(every.ctypes.data)
    )  # fmt: skip
    return float(every.max())


main(int(sys.argv[1]))
