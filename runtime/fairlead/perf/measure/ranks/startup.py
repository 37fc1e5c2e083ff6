"""How long a start takes, by phase: ``python3 -m fairlead.perf.measure.ranks.startup --out FILE --begun SECONDS`` on every rank.

Each phase ends when its last rank is through. The launcher's and the engine's is what lies between the moment that the
launch began, ``--begun`` in seconds since 1970, and the start of the slowest rank's process as the kernel has it
(``/proc/self/stat``, in hundredths of a second, see proc(5)), by the clock of rank 0's host. By how much each other
host's clock differs from that is measured, told and taken off: from the quickest of a few exchanges (Cristian,
*Probabilistic clock synchronization*, Distributed Computing 3, 1989).
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import time
from pathlib import Path
from typing import Any

from fairlead.base.paths import atomic_write

LAUNCH, INTERPRETER, INIT = "launcher and engine", "interpreter", "MPI_Init"
_EXCHANGES = 8


def main() -> None:
    """The command line of one rank."""
    reached = time.time()
    parser = argparse.ArgumentParser(
        prog="python3 -m fairlead.perf.measure.ranks.startup", description=__doc__
    )
    parser.add_argument("--out", type=Path, required=True, help="JSON file that rank 0 writes")
    parser.add_argument("--begun", type=float, required=True, help="when the launch began")
    parser.add_argument("--framework", help="a module to import as the last phase")
    given = parser.parse_args()
    marks = {LAUNCH: started() - given.begun, INTERPRETER: reached - started()}
    begun = time.monotonic()
    from mpi4py import MPI

    marks[INIT] = time.monotonic() - begun
    if given.framework:
        begun = time.monotonic()
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
        importlib.import_module(given.framework)
        marks[f"import {given.framework}"] = time.monotonic() - begun
    from fairlead.comm.backend import connect  # and NumPy with it: no phase is to have that

    connect()  # an exception of one rank ends all
    world = MPI.COMM_WORLD
    every = world.gather((marks, MPI.Get_processor_name()))
    if every is None:
        answer_clock(world)
        return
    told_clocks = clocks(world, [host for _, host in every])
    for of_rank, host in every:
        of_rank[LAUNCH] -= told_clocks.get(host, (0.0, 0.0))[0]
    version = " ".join(MPI.Get_library_version().splitlines()[0].strip("\0").split())
    told = {
        "phases": {name: max(m[name] for m, _ in every) for name in marks},
        "hosts": [host for _, host in every],
        "mpi": version,
        "clocks": told_clocks,
    }
    with atomic_write(given.out, "w") as stream:
        json.dump(told, stream)


def clocks(world: Any, hosts: list[str]) -> dict[str, tuple[float, float]]:
    """By how many seconds each other host's clock is ahead of rank 0's, and how sure that is, seconds; on rank 0.

    All other ranks answer by :func:`answer_clock`.
    """
    found: dict[str, tuple[float, float]] = {}
    for rank in range(1, world.size):
        rounds = 0 if hosts[rank] in found or hosts[rank] == hosts[0] else _EXCHANGES
        best = (0.0, float("inf"))
        for _ in range(rounds):
            before = time.time()
            world.send(True, dest=rank)
            theirs = world.recv(source=rank)
            after = time.time()
            best = min(
                best, (theirs - (before + after) / 2, (after - before) / 2), key=lambda b: b[1]
            )
        world.send(False, dest=rank)
        if rounds:
            found[hosts[rank]] = best
    return found


def answer_clock(world: Any) -> None:
    """Tells rank 0 this host's time, as often as it asks."""
    while world.recv(source=0):
        world.send(time.time(), dest=0)


def started() -> float:
    """When this process was started, seconds since 1970."""
    ticks = os.sysconf("SC_CLK_TCK")
    # The name in parentheses may have spaces.
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    since_boot = float(Path("/proc/uptime").read_text().split()[0])
    return time.time() - since_boot + int(fields[19]) / ticks


if __name__ == "__main__":
    main()
