"""Rank 0 tells the others what to do, and they answer; who has nothing to do sleeps.

In MPI's own collectives those who wait spin, and where ranks are more than cores they take the core from those who are
being measured. :class:`Orders` polls with sleeps between.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fairlead.comm.backend import connect

_ORDER, _ANSWER = 1, 2
_SLEEP_S = 0.0005


class Orders:
    """One rank's side of it. MPI is started, and the ranks' number checked, when it is made; collective.

    Attributes:
        world: mpi4py's communicator, of this program's own.
        rank, size: in it.
        facts: on rank 0 of each rank ``host``, ``kernel`` (one running Linux, however many hosts it plays) and
            ``cores`` (those it may use); elsewhere empty.
    """

    def __init__(self) -> None:
        connect()  # refuses a launch whose ranks do not see each other; an exception ends them all
        from mpi4py import MPI

        self._mpi = MPI
        self.world = MPI.COMM_WORLD.Dup()
        self.rank, self.size = self.world.rank, self.world.size
        own = {
            "host": os.uname().nodename,
            "kernel": _kernel(),
            "cores": sorted(os.sched_getaffinity(0)),
        }
        self.facts: list[dict[str, Any]] = self.world.gather(own, root=0) or []

    def ask(self, orders: Mapping[int, Any], act: Callable[[Any], Any]) -> dict[int, Any]:
        """On rank 0: gives each rank its order (picklable, not None), and returns the answers by rank."""
        for rank, order in orders.items():
            if rank != 0:
                self.world.send(order, rank, _ORDER)
        answers = {0: act(orders[0])} if 0 in orders else {}
        while len(answers) < len(orders):
            status = self._mpi.Status()
            message = self._probe(self._mpi.ANY_SOURCE, _ANSWER, status)
            answers[status.source] = message
        return answers

    def serve(self, act: Callable[[Any], Any]) -> None:
        """On the others: does what rank 0 says, until it ends."""
        while (order := self._probe(0, _ORDER, None)) is not None:
            self.world.send(act(order), 0, _ANSWER)

    def end(self) -> None:
        """On rank 0: lets the others return from :meth:`serve`."""
        for rank in range(1, self.size):
            self.world.send(None, rank, _ORDER)

    def quiet_barrier(self) -> None:
        """Returns when every rank has called it; who waits sleeps."""
        request = self.world.Ibarrier()
        while not request.Test():
            time.sleep(_SLEEP_S)

    def meet(self, other: int, word: int = 0) -> int:
        """Returns on both ranks at about the same time; the first to come sleeps until the other is there.

        Returns:
            The other's ``word``, 0 to 255.
        """
        theirs = bytearray(1)
        for pause in (lambda: time.sleep(_SLEEP_S), os.sched_yield):
            give = self.world.Isend(bytes([word]), other, 0)
            finish(self._mpi, [give, self.world.Irecv(theirs, other, 0)], pause)
        return theirs[0]

    def swap(self, give: Any, take: Any, other: int) -> None:
        """Sends the buffer ``give`` and receives ``take``, both ways at once."""
        requests = [self.world.Irecv(take, other, 0), self.world.Isend(give, other, 0)]
        finish(self._mpi, requests, os.sched_yield)

    def close(self) -> None:
        self.world.Free()
        self._mpi.Finalize()

    def _probe(self, source: int, tag: int, status: Any) -> Any:
        while not self.world.iprobe(source, tag, status):
            time.sleep(_SLEEP_S)
        return self.world.recv(source=source if status is None else status.source, tag=tag)


def finish(mpi: Any, requests: list[Any], pause: Callable[[], Any]) -> None:
    """Waits for all; unlike MPI_Wait it gives the core away to whom it is needed by."""
    while not mpi.Request.Testall(requests):
        pause()


def machines(facts: list[dict[str, Any]]) -> list[tuple[list[int], int]]:
    """Ranks that share a running Linux, and how many cores they have together; in order of first ranks."""
    ranks: dict[str, list[int]] = {}
    for rank, fact in enumerate(facts):
        ranks.setdefault(fact["kernel"], []).append(rank)
    return [
        (own, len({core for rank in own for core in facts[rank]["cores"]}))
        for own in ranks.values()
    ]


def told(words: list[str]) -> Path:
    """The file that ``--config FILE`` names.

    Raises:
        SystemExit: it is not called so; code 2.
    """
    if len(words) != 2 or words[0] != "--config":
        sys.stderr.write("usage: python3 -m fairlead.perf.measure.PROGRAM --config FILE\n")
        raise SystemExit(2)
    return Path(words[1])


def _kernel() -> str:
    """Containers and simulated hosts of one kernel share its boot's number, and its cores."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return os.uname().nodename
