"""Where the rows and blocks of a matrix lie, and how they move: block rows, and ScaLAPACK's 2-D block-cyclic layout.

Any count of ranks will do, also where some have nothing. Moves go in strips, so that a rank holds its old part, its new
one and a strip.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from fairlead.bridge.collectives import Collectives

STRIP_BYTES = 64 << 20  # what a rank sends at once


@dataclass(frozen=True)
class BlockRows:
    """Consecutive rows for each rank.

    Attributes:
        counts: how many rows each rank has.
    """

    counts: tuple[int, ...]

    @classmethod
    def even(cls, rows: int, size: int) -> BlockRows:
        """As evenly as it goes, the larger parts first."""
        return cls(tuple(rows // size + (rank < rows % size) for rank in range(size)))

    @property
    def rows(self) -> int:
        return sum(self.counts)

    def offset(self, rank: int) -> int:
        """The number of a rank's first row."""
        return sum(self.counts[:rank])

    def range(self, rank: int) -> tuple[int, int]:
        """The rows of a rank: first, and one after the last."""
        begin = self.offset(rank)
        return begin, begin + self.counts[rank]


@dataclass(frozen=True)
class Cyclic:
    """One dimension dealt in blocks: block i is on process ``i mod processes``."""

    length: int
    block: int
    processes: int

    def count(self, process: int) -> int:
        """How many indices a process has; ScaLAPACK's numroc."""
        whole, rest = divmod(self.length, self.block)
        turns, extra = divmod(whole, self.processes)
        last = rest if process == extra else 0
        return turns * self.block + (self.block if process < extra else last)

    def owner(self, index: Any) -> Any:
        return index // self.block % self.processes

    def local(self, index: Any) -> Any:
        """Where its owner has an index."""
        return index // (self.block * self.processes) * self.block + index % self.block

    def indices(self, process: int, begin: int = 0, end: int | None = None) -> Any:
        """The indices of a process from ``begin`` up to ``end``, in order."""
        every = np.arange(begin, self.length if end is None else end)
        return every[self.owner(every) == process]


@dataclass(frozen=True)
class BlockCyclic:
    """A matrix over a grid of processes: rank ``r`` is at ``divmod(r, grid_columns)``, those beyond it have nothing."""

    rows: int
    columns: int
    block: int
    grid_rows: int
    grid_columns: int

    @property
    def down(self) -> Cyclic:
        return Cyclic(self.rows, self.block, self.grid_rows)

    @property
    def across(self) -> Cyclic:
        return Cyclic(self.columns, self.block, self.grid_columns)

    def place(self, rank: int) -> tuple[int, int] | None:
        """Row and column of the grid; None beyond it."""
        inside = rank < self.grid_rows * self.grid_columns
        return divmod(rank, self.grid_columns) if inside else None

    def shape(self, rank: int) -> tuple[int, int]:
        """Of a rank's part."""
        place = self.place(rank)
        return (self.down.count(place[0]), self.across.count(place[1])) if place else (0, 0)


def grid(size: int) -> tuple[int, int]:
    """Rows and columns of a grid of all ranks that is as square as it can be."""
    rows = next(n for n in range(int(size**0.5), 0, -1) if size % n == 0)
    return rows, size // rows


def _timed(move: Callable[..., Any]) -> Callable[..., Any]:
    """A move whose seconds are counted by its communicator, its last argument."""

    @functools.wraps(move)
    def timed(*given: Any) -> Any:
        begun = time.perf_counter()
        try:
            return move(*given)
        finally:
            given[-1].redistribute_s += time.perf_counter() - begun

    return timed


def gathered_rows(local: Any, comm: Collectives) -> BlockRows:
    """The layout of a matrix of which each rank has some rows."""
    return BlockRows(tuple(comm.counts(local.shape[0])))


@_timed
def to_rows(local: Any, old: BlockRows, new: BlockRows, comm: Collectives) -> Any:
    """A dense matrix in other block rows, bit for bit.

    Args:
        local: this rank's rows, (rows, columns).
    """
    if old == new:
        return local
    columns = local.shape[1]
    begin, _ = old.range(comm.rank)
    first, last = new.range(comm.rank)
    into = np.empty((last - first, columns), local.dtype)
    for strips in _strips(old, columns * local.dtype.itemsize):
        own, end = strips[comm.rank]
        parts = [local[_cut(own, end, *new.range(rank), begin)] for rank in range(comm.size)]
        slots = [_cut(*strip, first, last, first) for strip in strips]
        counts = [(slot.stop - slot.start) * columns for slot in slots]
        arrived = comm.exchanged([part.reshape(-1) for part in parts], counts)
        for slot, part in zip(slots, arrived, strict=True):
            into[slot] = part.reshape(slot.stop - slot.start, columns)
    return into


@_timed
def to_cyclic(local: Any, rows: BlockRows, layout: BlockCyclic, comm: Collectives) -> Any:
    """Block rows as block-cyclic, bit for bit: this rank's part, in Fortran order as ScaLAPACK has it."""
    into = np.empty(layout.shape(comm.rank), local.dtype, order="F")
    begin = rows.offset(comm.rank)
    for strips in _strips(rows, layout.columns * local.dtype.itemsize, layout.block):
        own = strips[comm.rank]
        parts = []
        for rank in range(comm.size):
            down, across = _part(layout, rank, own)
            parts.append(local[np.ix_(down - begin, across)].reshape(-1))
        slots = [_part(layout, comm.rank, strip) for strip in strips]
        counts = [len(down) * len(across) for down, across in slots]
        arrived = comm.exchanged(parts, counts)
        for (down, across), part in zip(slots, arrived, strict=True):
            at = np.ix_(layout.down.local(down), layout.across.local(across))
            into[at] = part.reshape(len(down), len(across))
    return into


@_timed
def from_cyclic(local: Any, layout: BlockCyclic, rows: BlockRows, comm: Collectives) -> Any:
    """Block-cyclic as block rows, bit for bit: this rank's rows, in C order."""
    begin, end = rows.range(comm.rank)
    into = np.empty((end - begin, layout.columns), local.dtype)
    for strips in _strips(rows, layout.columns * local.dtype.itemsize, layout.block):
        parts = []
        for strip in strips:
            down, across = _part(layout, comm.rank, strip)
            at = np.ix_(layout.down.local(down), layout.across.local(across))
            parts.append(local[at].reshape(-1))
        slots = [_part(layout, rank, strips[comm.rank]) for rank in range(comm.size)]
        counts = [len(down) * len(across) for down, across in slots]
        arrived = comm.exchanged(parts, counts)
        for (down, across), part in zip(slots, arrived, strict=True):
            into[np.ix_(down - begin, across)] = part.reshape(len(down), len(across))
    return into


def _part(layout: BlockCyclic, rank: int, strip: tuple[int, int]) -> tuple[Any, Any]:
    """Rows and columns of a strip that belong to a rank."""
    place = layout.place(rank)
    if place is None:
        return np.arange(0), np.arange(0)
    return layout.down.indices(place[0], *strip), layout.across.indices(place[1])


def _strips(rows: BlockRows, row_bytes: int, least: int = 1) -> list[list[tuple[int, int]]]:
    """For each step, the rows that each rank sends: first, and one after the last."""
    height = max(STRIP_BYTES // max(row_bytes, 1), least)
    steps = -(-max(rows.counts, default=0) // height)
    ranges = [rows.range(rank) for rank in range(len(rows.counts))]
    return [
        [(min(b + s * height, e), min(b + (s + 1) * height, e)) for b, e in ranges]
        for s in range(steps)
    ]


def _cut(begin: int, end: int, first: int, last: int, origin: int) -> slice:
    """What two ranges share, relative to ``origin``; an empty slice inside the first range for nothing."""
    low, high = max(begin, first), min(end, last)
    return slice(low - origin, high - origin) if low < high else slice(0, 0)
