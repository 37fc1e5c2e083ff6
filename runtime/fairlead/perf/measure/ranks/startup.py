"""How long a start takes, by phase: ``python3 -m fairlead.perf.measure.ranks.startup --config FILE`` on every rank.

A phase ends when its last rank is through. The first one, launcher and engine, lasts from ``begun`` until the slowest
rank's process starts, as the kernel has it (``/proc/self/stat``, hundredths of a second, proc(5)), by the clock of rank
0's host. The offset of each other host's clock is measured, reported and subtracted: it comes from the quickest of a
few exchanges (Cristian, *Probabilistic clock synchronization*, Distributed Computing 3, 1989).
"""

from __future__ import annotations

import importlib
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairlead.base import proc_stat
from fairlead.perf.measure.program import read_settings, write_document

LAUNCH, INTERPRETER, INIT = "launcher and engine", "interpreter", "MPI_Init"
_EXCHANGES = 8


@dataclass(frozen=True)
class Settings:
    """What is measured.

    Attributes:
        begun: when the launch began, seconds since 1970.
        framework: a module to import as the last phase; "" for none.
    """

    out: Path
    begun: float
    framework: str = ""


def main(words: Sequence[str]) -> None:
    reached = time.time()
    settings = read_settings(Settings, words)
    marks = {LAUNCH: started() - settings.begun, INTERPRETER: reached - started()}
    begun = time.monotonic()
    from mpi4py import MPI

    marks[INIT] = time.monotonic() - begun
    if settings.framework:
        begun = time.monotonic()
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
        importlib.import_module(settings.framework)
        marks[f"import {settings.framework}"] = time.monotonic() - begun
    from fairlead.comm.mpi import connect  # imports NumPy, which belongs to no phase

    connect()  # an exception of one rank ends all
    world = MPI.COMM_WORLD
    every = world.gather((marks, MPI.Get_processor_name()))
    if every is None:
        answer_clock(world)
        return
    offsets = clock_offsets(world, [host for _, host in every])
    for of_rank, host in every:
        of_rank[LAUNCH] -= offsets.get(host, (0.0, 0.0))[0]
    version = " ".join(MPI.Get_library_version().splitlines()[0].strip("\0").split())
    document = {
        "phases": {name: max(m[name] for m, _ in every) for name in marks},
        "hosts": [host for _, host in every],
        "mpi": version,
        "clocks": offsets,
    }
    write_document(settings.out, document)


def clock_offsets(world: Any, hosts: list[str]) -> dict[str, tuple[float, float]]:
    """On rank 0: how far each other host's clock is ahead, and the uncertainty, both in seconds.

    All other ranks call :func:`answer_clock`.
    """
    offsets: dict[str, tuple[float, float]] = {}
    for rank in range(1, world.size):
        rounds = 0 if hosts[rank] in offsets or hosts[rank] == hosts[0] else _EXCHANGES
        exchanges = []
        for _ in range(rounds):
            before = time.time()
            world.send(True, dest=rank)
            theirs = world.recv(source=rank)
            after = time.time()
            exchanges.append((theirs - (before + after) / 2, (after - before) / 2))
        world.send(False, dest=rank)
        if exchanges:
            offsets[hosts[rank]] = min(exchanges, key=lambda exchange: exchange[1])
    return offsets


def answer_clock(world: Any) -> None:
    """Sends rank 0 this host's time, as often as it asks."""
    while world.recv(source=0):
        world.send(time.time(), dest=0)


def started() -> float:
    """When this process started, seconds since 1970."""
    ticks = os.sysconf("SC_CLK_TCK")
    since_boot = float(Path("/proc/uptime").read_text("utf-8").split()[0])
    return time.time() - since_boot + int(proc_stat.fields()[proc_stat.BEGAN]) / ticks


if __name__ == "__main__":
    main(sys.argv[1:])
