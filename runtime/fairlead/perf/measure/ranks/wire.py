"""NCCL's plugin between two ranks: ``python3 -m fairlead.perf.measure.ranks.wire --config FILE`` on every rank.

Rank 0 and the first rank on another host, else rank 1, start what drives the plugin (:mod:`fairlead.native.wire`), in the
environment in which NCCL would open it. Rank 0 writes what is left of both processes.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairlead.native.wire import Drive
from fairlead.native.wire import Settings as Traffic
from fairlead.perf.measure.program import read_settings, write_document

_IDLE_S = 0.05  # between two looks whether the two are through: they need the cores
_WORDS = 2000  # characters


@dataclass(frozen=True)
class Settings:
    """What is moved through which plugin.

    Attributes:
        library: ``wire.so``, where the ranks see it; ``plugin``: as the container sees it.
    """

    out: Path
    library: str
    plugin: str
    traffic: Traffic
    seed: int


def main(words: Sequence[str]) -> None:
    settings = read_settings(Settings, words)
    from fairlead.comm.mpi import connect

    connect()  # an exception of one rank ends all
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    hosts = world.allgather(MPI.Get_processor_name())
    pair = (0, next((rank for rank, host in enumerate(hosts) if host != hosts[0]), 1))
    made = tempfile.mkdtemp(prefix="wire-", dir=settings.out.parent) if world.rank == 0 else ""
    folder = world.bcast(made)
    mine = None
    if world.rank in pair:
        number = pair.index(world.rank)
        drive = Drive(settings.library, settings.plugin, settings.traffic, folder, number, settings.seed)  # fmt: skip
        mine = ended(drive)
    waiting = world.Ibarrier()
    while not waiting.Test():
        time.sleep(_IDLE_S)
    every = world.gather(mine)
    if every is not None:
        write_document(settings.out, {"sides": [every[rank] for rank in pair], "pair": pair})


def ended(drive: Drive) -> dict[str, Any]:
    """Runs one of the two processes; what is left of it."""
    log = Path(drive.folder, f"said.{drive.rank}")
    killed = False
    with log.open("wb") as stream:
        process = subprocess.Popen(
            drive.words, stdin=subprocess.DEVNULL, stdout=stream, stderr=stream
        )
        try:
            process.wait(drive.settings.limit_s)
        except subprocess.TimeoutExpired:
            killed = True
            process.kill()
            process.wait()
    events = ""
    with contextlib.suppress(OSError):
        events = Path(drive.events).read_text("utf-8", "replace")
    words = log.read_text("utf-8", "replace")[:_WORDS]
    return {"events": events, "words": words, "code": process.returncode, "killed": killed}


if __name__ == "__main__":
    main(sys.argv[1:])
