"""The ranks of a process set: what they say to each other, and the moves that the core does not have, by MPI."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fairlead.comm.core import Array, Comm, narrowed, widened
from fairlead.comm.mpi import Alone, Mpi4py

MIN, MAX, PRODUCT, SUM = "Min", "Max", "Product", "Sum"
_BLOCK = 1024  # bytes that every rank always sends in an exchange
_HEAD = 8

# What every rank has sent, or None as long as it has not arrived.
Exchange = Callable[[], "list[bytes] | None"]


class Single:
    """One rank: every move already has its result.

    Attributes:
        ranks: sums and means of these ranks.
        members: their ranks among all, in order.
    """

    size, rank = 1, 0

    def __init__(self, member: int = 0, ranks: Comm | None = None):
        self.members: tuple[int, ...] = (member,)
        self.ranks = ranks or Comm(Alone())

    def exchange(self, mine: bytes) -> Exchange:
        """Starts to send bytes to all ranks. Collective, and returns at once."""
        return lambda: [mine]

    def reduced(self, array: Array, op: str) -> Array:
        """The minimum, maximum or product over ranks, element by element."""
        return array.copy()

    def scattered(self, array: Array, rows: Sequence[int]) -> Array:
        """This rank's rows of the sum over ranks.

        Args:
            array: of a dtype that MPI adds up.
            rows: of each rank.
        """
        return array.copy()

    def gathered(self, array: Array, rows: Sequence[int]) -> Array:
        """The arrays of all ranks, joined along their first dimension; ``rows`` are their lengths."""
        return array.copy()

    def exchanged(self, array: Array, to: Sequence[int], by: Sequence[int]) -> Array:
        """The rows of all ranks that are for this one. ``to`` and ``by`` are how many each rank gets, and gives."""
        return array[: to[0]].copy()

    def swapped(self, array: Array, other: int) -> Array:
        """The array of rank ``other``, which gets this one."""
        return array.copy()

    def broadcast(self, arrays: Sequence[Array], root: int) -> list[Array]:
        return [array.copy() for array in arrays]

    def split(self, members: Sequence[int]) -> Single | None:
        """Of these ranks, as numbered here, in an order of their own; None on the others. Collective."""
        return Single(self.members[0], self.ranks) if members else None

    def free(self) -> None:
        """Collective."""


class Group(Single):
    """Ranks by mpi4py."""

    def __init__(self, world: Any, members: Sequence[int], ranks: Comm | None = None):
        from mpi4py import MPI

        self._mpi, self._world = MPI, world
        self.size, self.rank, self.members = world.size, world.rank, tuple(members)
        self.ranks = ranks or Comm(Mpi4py(MPI, world))
        self._ops = {MIN: MPI.MIN, MAX: MPI.MAX, PRODUCT: MPI.PROD}

    def exchange(self, mine: bytes) -> Exchange:
        sent = np.zeros(_BLOCK, np.uint8)
        sent[:_HEAD] = np.frombuffer(len(mine).to_bytes(_HEAD, "little"), np.uint8)
        first = mine[: _BLOCK - _HEAD]
        sent[_HEAD : _HEAD + len(first)] = np.frombuffer(first, np.uint8)
        every = np.empty((self.size, _BLOCK), np.uint8)
        request = self._world.Iallgather(sent, every)

        def arrived() -> list[bytes] | None:
            if not request.Test():
                return None
            heads = [row.tobytes() for row in every]
            lengths = [int.from_bytes(head[:_HEAD], "little") for head in heads]
            whole = [head[_HEAD : _HEAD + n] for head, n in zip(heads, lengths, strict=True)]
            more = [max(n - _BLOCK + _HEAD, 0) for n in lengths]
            if any(more):
                rest = np.frombuffer(mine[_BLOCK - _HEAD :], np.uint8)
                data = self.gathered(rest, more).tobytes()
                ends = np.cumsum(more)
                whole = [
                    start + data[end - n : end]
                    for start, n, end in zip(whole, more, ends, strict=True)
                ]
            return whole

        return arrived

    def reduced(self, array: Array, op: str) -> Array:
        wide = np.ascontiguousarray(widened(array)).reshape(array.shape)
        result = np.empty_like(wide)
        self._world.Allreduce(wide, result, op=self._ops[op])
        return narrowed(result, array.dtype)

    def scattered(self, array: Array, rows: Sequence[int]) -> Array:
        rest = array.shape[1:]
        result = np.empty((rows[self.rank], *rest), array.dtype)
        each = int(np.prod(rest, dtype=np.int64))
        self._world.Reduce_scatter(
            np.ascontiguousarray(array), result, [count * each for count in rows], op=self._mpi.SUM
        )
        return result

    def gathered(self, array: Array, rows: Sequence[int]) -> Array:
        result = np.empty((sum(rows), *array.shape[1:]), array.dtype)
        with _Rows(self._mpi, array) as row:
            self._world.Allgatherv(
                [_bytes(array), len(array), row], [_bytes(result), list(rows), _starts(rows), row]
            )
        return result

    def exchanged(self, array: Array, to: Sequence[int], by: Sequence[int]) -> Array:
        result = np.empty((sum(by), *array.shape[1:]), array.dtype)
        with _Rows(self._mpi, array) as row:
            self._world.Alltoallv(
                [_bytes(array), list(to), _starts(to), row],
                [_bytes(result), list(by), _starts(by), row],
            )
        return result

    def swapped(self, array: Array, other: int) -> Array:
        result = np.empty_like(array, order="C")
        self._world.Sendrecv(np.ascontiguousarray(array), other, recvbuf=result, source=other)
        return result

    def broadcast(self, arrays: Sequence[Array], root: int) -> list[Array]:
        flat = [
            array.view(f"u{array.dtype.itemsize}") if array.dtype.kind == "V" else array
            for array in arrays
        ]
        values = self.ranks.broadcast(flat, root)
        return [value.view(array.dtype) for value, array in zip(values, arrays, strict=True)]

    def split(self, members: Sequence[int]) -> Single | None:
        here = self.rank in members
        world = self._world.Split(0 if here else self._mpi.UNDEFINED, self.rank)
        if not here:
            return None
        return Group(world, [self.members[member] for member in members])

    def free(self) -> None:
        if not self._mpi.Is_finalized():
            self._world.Free()


class _Rows:
    """The MPI datatype of a row of an array, while it is used: counts are of rows, which a C int holds for longer."""

    def __init__(self, mpi: Any, array: Array):
        row = int(np.prod(array.shape[1:], dtype=np.int64)) * array.itemsize
        self._type = mpi.BYTE.Create_contiguous(row)

    def __enter__(self) -> Any:
        return self._type.Commit()

    def __exit__(self, *exc: object) -> None:
        self._type.Free()


def _bytes(array: Array) -> Any:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _starts(rows: Sequence[int]) -> list[int]:
    return [int(sum(rows[:i])) for i in range(len(rows))]


def of_all(ranks: Comm) -> Single:
    """All ranks, whose sums and means are those of ``ranks``. Collective."""
    if ranks.size == 1:
        return Single(0, ranks)
    from mpi4py import MPI

    return Group(MPI.COMM_WORLD.Dup(), range(ranks.size), ranks)
