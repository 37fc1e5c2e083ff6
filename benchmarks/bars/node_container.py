"""One container a node, which its ranks join, against a container for each: where an engine makes user namespaces.

Start of a no-op and an import; messages between two ranks of a node, which the kernel then lets read each other's memory.
Root's Apptainer is asked for the user namespaces that an ordinary user's makes; ranks share this machine's cores.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from functools import partial

from benchmarks.bars.job_start import NOOP
from benchmarks.result import (
    FAIRLEAD,
    Benchmark,
    Compared,
    Result,
    absolute,
    alternate,
    compare,
    seconds_of,
)

RANKS = (2, 16, 64)
MOST = 256  # with a container for each, MPICH's own connections time out on two cores
IMPORTERS = (2, 8)
ROUNDS = 5
SIZES = (1 << 16, 1 << 20, 1 << 23, 1 << 26)
SIDES = {"joined": (), "apart": ("--container-per-rank",)}
_IMPORT = ("python3", "-c", "from mpi4py import MPI; import tensorflow")
# Half the fastest of twelve rounds of four exchanges, s: what a message takes.
_PINGPONG = f"""
import time
import numpy
from mpi4py import MPI
world = MPI.COMM_WORLD
other = 1 - world.rank
for size in {SIZES}:
    here, there = numpy.ones(size, numpy.uint8), numpy.empty(size, numpy.uint8)
    best = 1e9
    for _ in range(12):
        world.Barrier()
        begun = time.perf_counter()
        for _ in range(4):
            if world.rank == 0:
                world.Send(here, other)
                world.Recv(there, other)
            else:
                world.Recv(there, other)
                world.Send(here, other)
        best = min(best, (time.perf_counter() - begun) / 8)
    if world.rank == 0:
        print(best, flush=True)
"""


def measure(
    ranks: Sequence[int] = RANKS,
    importers: Sequence[int] = IMPORTERS,
    rounds: int = ROUNDS,
    most: int = MOST,
) -> Result:
    """Starts, then messages, the two sides in turns."""
    rows = []
    for number in ranks:
        rows += _starts(f"a no-op on {number} ranks", number, "mpi-base", NOOP, rounds)
    if most:
        argv = _argv(most, "mpi-base", NOOP, ("--hosts", "localhost", "--watchdog", "600"))
        rows.append(absolute(f"a no-op on {most} ranks, joined", [seconds_of(argv)], None))
    for number in importers:
        rows += _starts(
            f"import tensorflow on {number} ranks", number, "tensorflow", _IMPORT, rounds
        )
    rows += _messages(rounds)
    what = "ranks of a node in one container, where each container has a user namespace"
    return Result("node-container", what, "a container for each rank", tuple(rows))


def _argv(ranks: int, image: str, command: Sequence[str], options: Sequence[str]) -> list[str]:
    words = ["run", "-q", "-n", str(ranks), "--engine-arg=--userns", *options, image]
    return [*FAIRLEAD, *words, "--", *command]


def _starts(
    name: str, ranks: int, image: str, command: Sequence[str], rounds: int
) -> list[Compared]:
    sides: dict[str, Callable[[], float]] = {
        side: partial(seconds_of, _argv(ranks, image, command, options))
        for side, options in SIDES.items()
    }
    if ranks == 2:
        for run in sides.values():
            run()  # what is staged and compiled once
    times = alternate(rounds, sides)
    return [
        compare(name, times["joined"], times["apart"], None),
        absolute(f"{name}, joined", times["joined"], None),
    ]


def _messages(rounds: int) -> list[Compared]:
    command = ("python3", "-c", _PINGPONG)
    sides = {
        side: partial(_latencies, _argv(2, "mpi-base", command, options))
        for side, options in SIDES.items()
    }
    times = alternate(rounds, sides)
    return [
        compare(
            f"a message of {size >> 10} kB, MPICH",
            [each[number] for each in times["joined"]],
            [each[number] for each in times["apart"]],
            None,
        )
        for number, size in enumerate(SIZES)
    ]


def _latencies(argv: Sequence[str]) -> list[float]:
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    return [float(line) for line in done.stdout.split()]


BENCHMARKS = (Benchmark("node-container", 8, measure),)
