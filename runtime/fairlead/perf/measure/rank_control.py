"""Rank 0 sends commands to the other ranks, which answer; idle ranks sleep.

Ranks that wait in MPI's own collectives spin. Where ranks share cores, they take cores from the ranks being measured.
:class:`RankControl` polls and sleeps in between.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fairlead.comm.mpi import connect

_COMMAND, _ANSWER = 1, 2
_SLEEP_S = 0.0005  # of a rank that has a core: all idle ranks of a core together wake up as often


class RankControl:
    """One rank's end of the channel. Constructing it starts MPI and checks the number of ranks; collective.

    Attributes:
        world: a duplicate of mpi4py's world communicator.
        rank, size: in ``world``.
        facts: on rank 0, for each rank its ``host``, ``kernel`` (:func:`kernel_id`) and usable ``cores``; empty
            elsewhere.
    """

    def __init__(self) -> None:
        connect()  # refuses a launch whose ranks do not see each other; an exception ends them all
        from mpi4py import MPI

        self._mpi = MPI
        self.world = MPI.COMM_WORLD.Dup()
        self.rank, self.size = self.world.rank, self.world.size
        own = {
            "host": os.uname().nodename,
            "kernel": kernel_id(),
            "cores": sorted(os.sched_getaffinity(0)),
        }
        self.facts: list[dict[str, Any]] = self.world.gather(own, root=0) or []
        shares = [len(ranks) / cores for ranks, cores in machines(self.facts)]
        self._sleep_s = self.world.bcast(_SLEEP_S * math.ceil(max(shares, default=1)), root=0)

    def ask(self, commands: Mapping[int, Any], act: Callable[[Any], Any]) -> dict[int, Any]:
        """On rank 0: sends each rank its command (picklable, not None), and returns the answers by rank."""
        for rank, command in commands.items():
            if rank != 0:
                self.world.send(command, rank, _COMMAND)
        answers = {0: act(commands[0])} if 0 in commands else {}
        while len(answers) < len(commands):
            status = self._mpi.Status()
            message = self._probe(self._mpi.ANY_SOURCE, _ANSWER, status)
            answers[status.source] = message
        return answers

    def serve(self, act: Callable[[Any], Any]) -> None:
        """On the other ranks: answers commands until rank 0 calls :meth:`end`."""
        while (command := self._probe(0, _COMMAND, None)) is not None:
            self.world.send(act(command), 0, _ANSWER)

    def end(self) -> None:
        """On rank 0: lets the others return from :meth:`serve`."""
        for rank in range(1, self.size):
            self.world.send(None, rank, _COMMAND)

    def quiet_barrier(self) -> None:
        """A barrier in which waiting ranks sleep."""
        request = self.world.Ibarrier()
        while not request.Test():
            time.sleep(self._sleep_s)

    def meet(self, other: int, word: int = 0) -> int:
        """Returns on both ranks at about the same time; the first to arrive sleeps until the other does.

        Returns:
            The other rank's ``word``, 0 to 255.
        """
        theirs = bytearray(1)
        for pause in (lambda: time.sleep(_SLEEP_S), os.sched_yield):
            give = self.world.Isend(bytes([word]), other, 0)
            finish(self._mpi, [give, self.world.Irecv(theirs, other, 0)], pause)
        return theirs[0]

    def swap(self, give: Any, take: Any, other: int) -> None:
        """Sends the buffer ``give`` and receives ``take`` at the same time."""
        requests = [self.world.Irecv(take, other, 0), self.world.Isend(give, other, 0)]
        finish(self._mpi, requests, os.sched_yield)

    def close(self) -> None:
        self.world.Free()
        self._mpi.Finalize()

    def _probe(self, source: int, tag: int, status: Any) -> Any:
        while not self.world.iprobe(source, tag, status):
            time.sleep(self._sleep_s)
        return self.world.recv(source=source if status is None else status.source, tag=tag)


def finish(mpi: Any, requests: list[Any], pause: Callable[[], Any]) -> None:
    """Waits for all requests; unlike MPI_Wait it yields the core in between."""
    while not mpi.Request.Testall(requests):
        pause()


def machines(facts: list[dict[str, Any]]) -> list[tuple[list[int], int]]:
    """Ranks that share a running kernel, and how many cores they have together; in order of their first ranks."""
    ranks: dict[str, list[int]] = {}
    for rank, fact in enumerate(facts):
        ranks.setdefault(fact["kernel"], []).append(rank)
    return [
        (own, len({core for rank in own for core in facts[rank]["cores"]}))
        for own in ranks.values()
    ]


def kernel_id() -> str:
    """Identifies the running Linux kernel: containers and simulated hosts of one machine share it, and its cores."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text("utf-8").strip()
    except OSError:
        return os.uname().nodename
