"""Ranks that are threads of one process: their collectives go through a table that all of them see."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import fairlead.comm
from fairlead.comm.core import Array, Comm
from fairlead.comm.dropin.engine import Engine, Handle
from fairlead.comm.dropin.groups import Exchange, Single
from fairlead.comm.dropin.moves import Done
from fairlead.comm.mpi import Alone


class World:
    """What the threads of one set of ranks share."""

    def __init__(self, size: int):
        self.table: list[Any] = [None] * size
        self.meet = threading.Barrier(size, timeout=20)
        self.turns: dict[int, dict[int, bytes]] = {}
        self.below: dict[tuple[int, ...], World] = {}
        self.lock = threading.Lock()

    def of(self, members: Sequence[int]) -> World:
        with self.lock:
            return self.below.setdefault(tuple(members), World(len(members)))


class Threads(Alone):
    """One rank, as :class:`fairlead.comm.core.Comm` needs it."""

    def __init__(self, rank: int, world: World):
        self.rank, self.size, self._world = rank, len(world.table), world

    def allgather(self, value: Any) -> list[Any]:
        self._world.table[self.rank] = value
        self._world.meet.wait()
        every = list(self._world.table)
        self._world.meet.wait()
        return every

    def _reduced(self, buffer: Array, reduce: Callable[[Array], Array]) -> None:
        buffer[...] = reduce(np.stack(self.allgather(buffer.copy())))

    def sum(self, buffer: Array) -> None:
        self._reduced(buffer, lambda rows: rows.sum(0, dtype=rows.dtype))

    def mean(self, buffer: Array) -> None:
        self._reduced(buffer, lambda rows: rows.mean(0))

    def largest(self, buffer: Array) -> None:
        self._reduced(buffer, lambda rows: rows.max(0))

    def broadcast(self, buffer: Array, root: int) -> None:
        buffer[...] = self.allgather(buffer.copy())[root]


class ThreadGroup(Single):
    """One rank, as an engine needs it."""

    def __init__(self, rank: int, world: World, members: Sequence[int] | None = None):
        self._backend, self._world, self._turn = Threads(rank, world), world, 0
        self.rank, self.size = rank, self._backend.size
        self.members = tuple(members or range(self.size))
        self.ranks = Comm(self._backend)

    def exchange(self, mine: bytes) -> Exchange:
        with self._world.lock:
            turn = self._world.turns.setdefault(self._turn, {})
            turn[self.rank] = mine
        self._turn += 1
        return lambda: [turn[r] for r in range(self.size)] if len(turn) == self.size else None

    def reduced(self, array: Array, op: str) -> Array:
        how = {"Min": np.min, "Max": np.max, "Product": np.prod}[op]
        return how(np.stack(self._backend.allgather(array.copy())), axis=0).astype(array.dtype)

    def scattered(self, array: Array, rows: Sequence[int]) -> Array:
        whole = np.sum(self._backend.allgather(array.copy()), axis=0, dtype=array.dtype)
        return whole[sum(rows[: self.rank]) : sum(rows[: self.rank + 1])]

    def gathered(self, array: Array, rows: Sequence[int]) -> Array:
        every = self._backend.allgather(array.copy())
        assert [len(each) for each in every] == list(rows)
        return np.concatenate(every)

    def exchanged(self, array: Array, to: Sequence[int], by: Sequence[int]) -> Array:
        ends = np.cumsum(to)
        mine = [array[end - n : end].copy() for n, end in zip(to, ends, strict=True)]
        got = [pieces[self.rank] for pieces in self._backend.allgather(mine)]
        assert [len(piece) for piece in got] == list(by)
        return np.concatenate(got)

    def swapped(self, array: Array, other: int) -> Array:
        return self._backend.allgather(array.copy())[other]

    def broadcast(self, arrays: Sequence[Array], root: int) -> list[Array]:
        return self._backend.allgather([array.copy() for array in arrays])[root]

    def split(self, members: Sequence[int]) -> Single | None:
        self._backend.allgather(None)
        if self.rank not in members:
            return None
        return ThreadGroup(members.index(self.rank), self._world.of(members), members)


class Rank:
    """What a test calls on one rank: a process set of all."""

    def __init__(self, rank: int, world: World):
        hosts = [f"n{r}" for r in range(len(world.table))]
        self.engine = Engine(ThreadGroup(rank, world), hosts)
        self.comm = self.engine.all.group.ranks

    def size(self) -> int:
        return self.comm.size

    def rank(self) -> int:
        return self.comm.rank

    def ask(self, kind: str, arrays: Sequence[Array] = (), **more: Any) -> Handle:
        return self.engine.ask(self.engine.all, kind, arrays, **more)

    def run(self, kind: str, arrays: Sequence[Array] = (), **more: Any) -> Done:
        return self.engine.run(self.engine.all, kind, arrays, **more)


_here = threading.local()


def here() -> Rank:
    """The rank that the calling thread is."""
    rank: Rank = _here.rank
    return rank


def on_each(
    size: int, function: Callable[[int], Any], monkeypatch: pytest.MonkeyPatch
) -> list[Any]:
    """What ``function`` returns on each rank."""
    world = World(size)
    monkeypatch.setattr(fairlead.comm, "init", lambda: _here.rank.comm)

    def run(rank: int) -> Any:
        _here.rank = Rank(rank, world)
        return function(rank)

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(run, range(size)))
