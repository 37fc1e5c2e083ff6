"""Horovod's collectives on arrays, each with the rule by which a gradient goes back through it.

The rules are Horovod's, as its fronts for torch and TensorFlow have them: the gradient of an allreduce is the same
allreduce of the gradient; of an allgather, this rank's rows of the mean of the gradients over ranks; of a broadcast,
the mean on the root and zeros elsewhere; of an alltoall, the gradients sent back; of a reducescatter, the gradients of
all ranks joined. Each gradient is itself such an operation, so that gradients of gradients exist as well.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from fairlead.base.errors import fail
from fairlead.comm.core import Array, Comm, name_of, narrowed, widened
from fairlead.comm.dropin import requests

if TYPE_CHECKING:
    from fairlead.comm.dropin.groups import Single
    from fairlead.comm.dropin.moves import Done

AVERAGE, SUM, MIN, MAX, PRODUCT = "Average", "Sum", "Min", "Max", "Product"
ADASUM = "Adasum"
OPERATIONS = (AVERAGE, SUM, MIN, MAX, PRODUCT, ADASUM)


class Members(Protocol):
    """The ranks that take part: a process set."""

    def size(self) -> int: ...
    def rank(self) -> int: ...
    def run(self, kind: str, arrays: Sequence[Array], **more: Any) -> Done: ...


@dataclass(frozen=True, eq=False)
class Operation:
    """A collective of arrays, which is collective backwards as well.

    Attributes:
        move: what it does to arrays. Its second argument are the rows, the lengths of the first dimension, of the
            arrays that entered forwards, on this rank; a scalar has 1.
        gradient: of the arrays that entered, by those of the results.
        same_shape: results have the shapes of the arrays; otherwise their rows may be others.
    """

    move: Callable[[list[Array], Sequence[int]], list[Array]]
    gradient: Callable[[], Operation]
    same_shape: bool = True


@dataclass(frozen=True)
class Reduction:
    """An allreduce, or what a reducescatter does.

    Attributes:
        op: one of :data:`OPERATIONS`.
        compression: how float32 travels, as for :meth:`fairlead.comm.Comm.aggregate`.
        before, after: factors of what is sent, and of the result. Those of integers are cut, as Horovod does.
    """

    op: str = AVERAGE
    compression: str = "none"
    before: float = 1.0
    after: float = 1.0

    def __str__(self) -> str:
        more = [self.compression] * (self.compression != "none")
        more += [
            f"{n}={v:g}" for n, v in (("before", self.before), ("after", self.after)) if v != 1
        ]
        return ", ".join([self.op, *more])

    def operation(self, members: Callable[[], Members], name: str | None = None) -> Operation:
        """Of the ranks of a process set; ``name`` is that of its first use."""
        again = Operation(lambda arrays, rows: self._run(members(), arrays, None), lambda: again)
        return Operation(lambda arrays, rows: self._run(members(), arrays, name), lambda: again)

    def _run(self, members: Members, arrays: list[Array], name: str | None) -> list[Array]:
        return members.run(
            requests.ALLREDUCE, arrays, how=self, name=name, zeros=self.with_zeros
        ).arrays

    @property
    def with_zeros(self) -> bool:
        """Whether a rank that has joined may take part with zeros."""
        return self.op in (AVERAGE, SUM)

    def at_once(self, ranks: Callable[[], Comm]) -> Operation:
        """Of all ranks, which call it in one order, for gradients: floats are compared as they are sent."""
        made = Operation(
            lambda arrays, rows: [scaled(r, self.after) for r in self._reduced(ranks(), arrays)],
            lambda: made,
        )
        return made

    def of(self, group: Single, arrays: Sequence[Array]) -> list[Array]:
        """What becomes of arrays that all ranks have."""
        if self.with_zeros:
            reduced = self._reduced(group.ranks, arrays)
        elif self.op == ADASUM:
            reduced = [adasum(group, scaled(array, self.before)) for array in arrays]
        else:
            reduced = [group.reduced(scaled(array, self.before), self.op) for array in arrays]
        return [scaled(array, self.after) for array in reduced]

    def _reduced(self, ranks: Comm, arrays: Sequence[Array]) -> list[Array]:
        """Floats through one buffer, and integers through another."""
        before = [scaled(array, self.before) for array in arrays]
        whole = [array.dtype.kind in "iub" for array in before]
        floats = [array for array, of in zip(before, whole, strict=True) if not of]
        counts = [array for array, of in zip(before, whole, strict=True) if of]
        mean = self.op == AVERAGE
        reduced: list[Array] = []
        if floats and not mean and self.compression == "none":
            reduced = ranks.sum(floats)
        elif floats:
            reduced = ranks.aggregate(floats, compression=self.compression)
            reduced = reduced if mean else [scaled(m, ranks.size) for m in reduced]
        wide = [countable(array, mean=mean) for array in counts]
        sums = [
            counted(s, array.dtype, ranks.size if mean else 1)
            for s, array in zip(ranks.sum(wide) if wide else [], counts, strict=True)
        ]
        left = {False: iter(reduced), True: iter(sums)}
        return [next(left[of]) for of in whole]


def after(before: Callable[[], None], operation: Operation) -> Operation:
    """``operation``, whenever it moves arrays after ``before``."""

    def move(arrays: list[Array], rows: Sequence[int]) -> list[Array]:
        before()
        return operation.move(arrays, rows)

    return Operation(move, operation.gradient, operation.same_shape)


def broadcast(members: Callable[[], Members], root: int, name: str | None = None) -> Operation:
    """Each rank gets the arrays of rank ``root`` of them."""

    def move(arrays: list[Array], rows: Sequence[int]) -> list[Array]:
        return members().run(requests.BROADCAST, arrays, how=root, name=name).arrays

    def kept(arrays: list[Array]) -> list[Array]:
        here = members().rank() == root
        return [array if here else np.zeros_like(array) for array in arrays]

    back = Operation(lambda arrays, rows: kept(_means(members(), arrays)), lambda: again)
    again = Operation(lambda arrays, rows: _means(members(), kept(arrays)), lambda: back)
    return Operation(move, lambda: back)


def allgather(members: Callable[[], Members], name: str | None = None) -> Operation:
    """Each rank gets the arrays of all, joined along their first dimension, which may differ."""

    def move(arrays: list[Array], rows: Sequence[int]) -> list[Array]:
        return members().run(requests.ALLGATHER, arrays, name=name).arrays

    def places(rows: Sequence[int]) -> list[tuple[slice, int]]:
        """Where this rank's rows of each array are among all, and how many there are."""
        (table,) = members().run(requests.ALLGATHER, [np.array([rows], np.int64)]).arrays
        me, places_of_rank = members().rank(), []
        for each in table.T.tolist():
            ends = list(accumulate(each))
            places_of_rank.append((slice(ends[me] - each[me], ends[me]), ends[-1]))
        return places_of_rank

    def cut(arrays: list[Array], rows: Sequence[int]) -> list[Array]:
        means = _means(members(), arrays)
        return [mean[place] for mean, (place, _) in zip(means, places(rows), strict=True)]

    def spread(arrays: list[Array], rows: Sequence[int]) -> list[Array]:
        whole = []
        for array, (place, every) in zip(arrays, places(rows), strict=True):
            wide: Array = np.zeros((every, *array.shape[1:]), array.dtype)
            wide[place] = array
            whole.append(wide)
        return _means(members(), whole)

    back = Operation(cut, lambda: again, same_shape=False)
    again = Operation(spread, lambda: back, same_shape=False)
    return Operation(move, lambda: back, same_shape=False)


class Alltoall:
    """Each rank gets rows of each rank.

    Attributes:
        operation: what does it, of one array.
        received: the rows of each rank, after a move.
    """

    def __init__(
        self,
        members: Callable[[], Members],
        splits: Sequence[int] | None = None,
        name: str | None = None,
    ):
        """
        Args:
            splits: rows for each rank; without them, as many for all.
        """
        self.received: tuple[int, ...] = ()

        def move(arrays: list[Array], rows: Sequence[int]) -> list[Array]:
            (array,) = arrays
            given = even(len(array), members().size()) if splits is None else tuple(splits)
            done = members().run(requests.ALLTOALL, [array], splits=given, name=name)
            self.received = done.received
            return done.arrays

        def back() -> Operation:
            def move_back(arrays: list[Array], rows: Sequence[int]) -> list[Array]:
                # In a graph, what was received is known when it runs.
                (array,) = Alltoall(members, self.received).operation.move(arrays, rows)
                missing = rows[0] - len(array)  # rows for nobody
                return [np.concatenate([array, np.zeros((missing, *array.shape[1:]), array.dtype)])]

            return Operation(move_back, lambda: self.operation, same_shape=False)

        self.operation = Operation(move, back, same_shape=False)


def alltoall_of(
    members: Callable[[], Members],
    checked: Callable[[Array, Array], tuple[int, ...]],
    name: str | None = None,
) -> Operation:
    """:class:`Alltoall` of an array and its splits; gives the rows, and how many there are of each rank.

    Args:
        checked: the splits, of which the second argument is an array, as they fit the first one.
    """
    moved: list[Alltoall] = []

    def move(arrays: list[Array], rows: Sequence[int]) -> list[Array]:
        array, splits = arrays
        moved[:] = [Alltoall(members, checked(array, splits), name)]
        moved_array = moved[0].operation.move([array], rows[:1])
        return [*moved_array, np.array(moved[0].received, splits.dtype)]

    def move_back(arrays: list[Array], rows: Sequence[int]) -> list[Array]:
        gradient = moved[0].operation.gradient().move(arrays[:1], rows[:1])
        return [*gradient, np.zeros(members().size(), arrays[1].dtype)]

    def move_again(arrays: list[Array], rows: Sequence[int]) -> list[Array]:
        moved_array = moved[0].operation.move(arrays[:1], rows[:1])
        return [*moved_array, np.zeros(members().size(), arrays[1].dtype)]

    back = Operation(move_back, lambda: again, same_shape=False)
    again = Operation(move_again, lambda: back, same_shape=False)
    return Operation(move, lambda: back, same_shape=False)


def even(length: int, size: int) -> tuple[int, ...]:
    """As many rows for each rank.

    Raises:
        UsageError: that cannot be.
    """
    from fairlead.comm.dropin.failures import usage

    if length % size:
        raise usage(fail("comm-dropin-splits-even", length=length, size=size))
    return (length // size,) * size


def reducescatter(
    members: Callable[[], Members], reduction: Reduction, name: str | None = None
) -> Operation:
    """Each rank gets its rows of the reduced arrays."""
    again = allgather(members)

    def move(arrays: list[Array], rows: Sequence[int]) -> list[Array]:
        return members().run(requests.REDUCESCATTER, arrays, how=reduction, name=name).arrays

    def factor() -> float:
        sums = members().size() if reduction.op == SUM else 1
        return sums * reduction.before * reduction.after

    def joined(arrays: list[Array], rows: Sequence[int]) -> list[Array]:
        return again.move([scaled(array, factor()) for array in arrays], rows)

    def part(arrays: list[Array], rows: Sequence[int]) -> list[Array]:
        # Of what is joined, by the rule of an allgather: the rows of this rank's part.
        mine = members().rank()
        from fairlead.comm.dropin.moves import rows_of

        each = [rows_of(len(array), members().size()) for array in arrays]
        means = _means(members(), arrays)
        cut = [m[sum(n[:mine]) : sum(n[: mine + 1])] for m, n in zip(means, each, strict=True)]
        return [scaled(array, factor()) for array in cut]

    back = Operation(joined, lambda: again_part, same_shape=False)
    again_part = Operation(part, lambda: back, same_shape=False)
    return Operation(move, lambda: back, same_shape=False)


def _means(members: Members, arrays: list[Array]) -> list[Array]:
    given = [np.asarray(array, order="C") for array in arrays]
    return members.run(requests.ALLREDUCE, given, how=Reduction(AVERAGE), zeros=True).arrays


def adasum(group: Single, array: Array) -> Array:
    """Adasum of one float array over ranks, of which there are a power of two.

    Pairs of ranks, then pairs of pairs and so on, each add up two arrays: orthogonal ones to their sum, parallel ones
    to their mean. Source: https://arxiv.org/abs/2006.02924, section 3.
    """
    mine, distance = widened(array), 1
    while distance < group.size:
        theirs = group.swapped(mine, group.rank ^ distance)
        low, high = (mine, theirs) if not group.rank & distance else (theirs, mine)
        a, b = (np.ravel(each).astype(np.float64) for each in (low, high))
        shared, left, other = float(a @ b), float(a @ a), float(b @ b)
        summed = (1 - shared / (2 * left) if left else 1) * low
        summed = summed + (1 - shared / (2 * other) if other else 1) * high
        mine, distance = np.asarray(summed, mine.dtype), 2 * distance
    return narrowed(mine, array.dtype)


def scaled(array: Array, factor: float) -> Array:
    """In float64 for integers, in float32 for halves."""
    if factor == 1:
        return array
    form = array.dtype
    if form.kind in "iub":
        form = np.dtype(np.float64)
    elif name_of(form) in ("float16", "bfloat16"):
        form = np.dtype(np.float32)
    return np.asarray(array.astype(form) * factor).astype(array.dtype)


def countable(array: Array, *, mean: bool) -> Array:
    """Integers in a type whose sums wrap where those of their own do; for means, do not."""
    return array.astype(np.int64 if mean or array.dtype.itemsize > 4 else np.int32)


def counted(sums: Array, dtype: np.dtype[Any], size: int) -> Array:
    """Sums of :func:`countable` in their own type again, divided by ``size`` and cut towards zero."""
    if size > 1:
        # Of a type without a sign the sum's bits stand for a number without one.
        sums = sums.view(dtype) if dtype == np.uint64 else sums
        sums = sums // size + ((sums % size != 0) & (sums < 0))
    return np.asarray(sums).astype(dtype)
