"""The messages of a sweep, and whether what came back is right.

Every value depends on rank, repeat, call and position, and is a small whole number: sums of them are exact in float32,
whatever the order, and what is old, partial, shifted or never came differs from what is expected. A row of ``_period``
values is repeated along a message, so that filling and checking run at the speed of memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

_NEVER = -1.0  # what a buffer holds before; no value is negative
_RANKS = 31  # ranks whose values differ: were all shifts in use alike, a sum would be the same everywhere
_ROUNDING = 4e-6  # of a mean in float32, times the ranks: parts of the sum


@dataclass(frozen=True)
class Wrong:
    """One wrong answer.

    Attributes:
        rank: in the world of a collective, in the pair of a ping-pong.
        repeat, call: which; repeats below 0 are for warming up.
        position: of the first wrong value.
        count: of wrong values in this answer.
    """

    operation: str
    through: str
    bytes: int
    rank: int
    host: str
    repeat: int
    call: int
    position: int
    count: int
    got: float
    expected: float


class Buffers:
    """What one rank gives and takes in the calls of a sample.

    Attributes:
        give, take: float32, shape (calls, bytes / 4); made by :meth:`fill`.
    """

    def __init__(self, operation: str, through: str, size: int, rank: int, ranks: int, host: str):
        self._operation, self._through = operation, through
        self._rank, self._ranks = rank, ranks
        self._period = period(ranks)
        self._wrong = partial(Wrong, operation, through, size, rank, host)
        self.give = self.take = np.empty((0, size // 4), np.float32)

    def fill(self, repeat: int, calls: int) -> None:
        """Makes everything ready for a sample."""
        if len(self.take) != calls:
            self.give = np.empty((calls, self.take.shape[1]), np.float32)
            self.take = np.empty_like(self.give)
        for call in range(calls):
            own = values(self._rank, repeat, call, self._period)
            if self._operation == "broadcast" and self._rank == 0:
                _laid(self.take[call], own)
            else:
                self.take[call].fill(_NEVER)
                _laid(self.give[call], own)

    def check(self, repeat: int, calls: int) -> list[Wrong]:
        """The wrong answers of a sample."""
        wrong = []
        for call in range(calls):
            if odd := _first_odd(self.take[call], *self._expected(repeat, call)):
                wrong.append(self._wrong(repeat, call, *odd))
        return wrong

    def _expected(self, repeat: int, call: int) -> tuple[Any, float]:
        """A period of the right answer, and by which part of it a value may be off."""
        if self._operation == "allreduce":
            total = summed(self._ranks, repeat, call, self._period)
            # fairlead.comm gives means, which are rounded.
            return (total / self._ranks, _ROUNDING) if self._through == "comm" else (total, 0.0)
        sender = 0 if self._operation == "broadcast" else 1 - self._rank
        return values(sender, repeat, call, self._period), 0.0


def period(ranks: int) -> int:
    """A prime; smaller where sums over more ranks would not be exact in float32.

    >>> period(4), 1009 * 16000 < 2**24, 61 * 270000 < 2**24
    (1009, True, True)
    """
    return 1009 if ranks <= 16000 else 61


def values(rank: int, repeat: int, call: int, size: int) -> Any:
    """A period of a rank's values: whole numbers from 1 to ``size``, float64, shape (size,)."""
    shift = 13 * (rank % _RANKS) + 31 * repeat + 17 * call
    return (np.arange(size) + shift) % size + 1.0


def summed(ranks: int, repeat: int, call: int, size: int) -> Any:
    """The sum of :func:`values` over all ranks, float64, shape (size,)."""
    whole, rest = divmod(ranks, _RANKS)
    total = np.zeros(size)
    for rank in range(min(ranks, _RANKS)):
        total += values(rank, repeat, call, size) * (whole + (rank < rest))
    return total


def _laid(buffer: Any, row: Any) -> None:
    whole = len(buffer) // len(row) * len(row)
    buffer[:whole].reshape(-1, len(row))[:] = row
    buffer[whole:] = row[: len(buffer) - whole]


def _first_odd(buffer: Any, row: Any, within: float) -> tuple[int, int, float, float] | None:
    """Position, number, value and right value of what is wrong; None: all is right."""
    right = np.resize(row.astype(np.float32), len(buffer))
    # Written so that NaN is wrong.
    good = buffer == right if within == 0 else np.abs(buffer - right) <= within * right
    if good.all():
        return None
    odd = np.flatnonzero(~good)
    at = int(odd[0])
    return at, len(odd), float(buffer[at]), float(right[at])
