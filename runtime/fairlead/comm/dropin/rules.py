"""Horovod's collectives on arrays, each with the rule by which a gradient goes back through it.

The rules are Horovod's, as its fronts for torch and TensorFlow have them: the gradient of an allreduce is the same
allreduce of the gradient; of an allgather, this rank's rows of the mean of the gradients over ranks; of a broadcast,
the mean on the root and zeros elsewhere. Each gradient is itself such an operation, so that gradients of gradients
exist as well.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from fairlead import comm
from fairlead.comm.core import Array, Comm, Signature, name_of
from fairlead.comm.frameworks import common

AVERAGE, SUM = "Average", "Sum"


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
    """An allreduce.

    Attributes:
        op: :data:`AVERAGE` or :data:`SUM`.
        compression: how float32 travels, as for :meth:`fairlead.comm.Comm.aggregate`.
        before, after: factors of what is sent, and of the result. Those of integers are cut, as Horovod does.
    """

    op: str = AVERAGE
    compression: str = "none"
    before: float = 1.0
    after: float = 1.0

    def operation(self, ranks: Callable[[], Comm], *, compared: bool = True) -> Operation:
        """
        Args:
            ranks: those that take part.
            compared: dtypes, shapes and this reduction are compared over ranks before anything is widened. Without
                it, floats that are averaged are compared as they are sent.
        """

        def move(arrays: list[Array], rows: Sequence[int]) -> list[Array]:
            if compared:
                ranks().agree(f"allreduce({self})", _signature(arrays))
            return [_scaled(r, self.after) for r in self._reduced(ranks(), arrays)]

        made = Operation(move, lambda: made)
        return made

    def _reduced(self, ranks: Comm, arrays: list[Array]) -> list[Array]:
        """Floats through one buffer, and integers through another."""
        scaled = [_scaled(array, self.before) for array in arrays]
        whole = [array.dtype.kind in "iub" for array in scaled]
        floats = [array for array, of in zip(scaled, whole, strict=True) if not of]
        counts = [array for array, of in zip(scaled, whole, strict=True) if of]
        mean = self.op == AVERAGE
        reduced: list[Array] = []
        if floats and not mean and self.compression == "none":
            reduced = ranks.sum(floats)
        elif floats:
            reduced = ranks.aggregate(floats, compression=self.compression)
            reduced = reduced if mean else [_scaled(m, ranks.size) for m in reduced]
        sums = _integers(ranks, counts, mean=mean) if counts else []
        left = {False: iter(reduced), True: iter(sums)}
        return [next(left[of]) for of in whole]


def after(before: Callable[[], None], operation: Operation) -> Operation:
    """``operation``, whenever it moves arrays after ``before``."""

    def move(arrays: list[Array], rows: Sequence[int]) -> list[Array]:
        before()
        return operation.move(arrays, rows)

    return Operation(move, operation.gradient, operation.same_shape)


def broadcast(root: int) -> Operation:
    """Each rank gets the arrays of rank ``root``."""

    def move(arrays: list[Array], rows: Sequence[int]) -> list[Array]:
        return common.broadcast(comm.init(), arrays, (), root)

    def kept(arrays: list[Array]) -> list[Array]:
        here = comm.rank() == root
        return [array if here else np.zeros_like(array) for array in arrays]

    back = Operation(lambda arrays, rows: kept(_means(arrays)), lambda: again)
    again = Operation(lambda arrays, rows: _means(kept(arrays)), lambda: back)
    return Operation(move, lambda: back)


def allgather() -> Operation:
    """Each rank gets the arrays of all, joined along their first dimension, which may differ."""

    def move(arrays: list[Array], rows: Sequence[int]) -> list[Array]:
        ranks = comm.init()
        pieces = [np.atleast_1d(array) for array in arrays]
        rest = tuple((dtype, shape[1:]) for dtype, shape in _signature(pieces))
        ranks.agree("allgather, but for the first dimension", rest)
        return [_joined(ranks, p, common.of_each_rank(ranks, len(p))) for p in pieces]

    def mine(rows: int) -> tuple[slice, int]:
        """Where this rank's rows are among all, and how many there are."""
        each = common.of_each_rank(comm.init(), rows)
        ends = list(accumulate(each))
        return slice(ends[comm.rank()] - rows, ends[comm.rank()]), ends[-1]

    def cut(arrays: list[Array], rows: Sequence[int]) -> list[Array]:
        return [m[mine(n)[0]] for m, n in zip(_means(arrays), rows, strict=True)]

    def spread(arrays: list[Array], rows: Sequence[int]) -> list[Array]:
        whole = []
        for array, count in zip(arrays, rows, strict=True):
            place, every = mine(count)
            wide: Array = np.zeros((every, *array.shape[1:]), array.dtype)
            wide[place] = array
            whole.append(wide)
        return _means(whole)

    back = Operation(cut, lambda: again, same_shape=False)
    again = Operation(spread, lambda: back, same_shape=False)
    return Operation(move, lambda: back, same_shape=False)


def _joined(ranks: Comm, piece: Array, rows: Sequence[int]) -> Array:
    parts = [
        piece if rank == ranks.rank else np.empty((count, *piece.shape[1:]), piece.dtype)
        for rank, count in enumerate(rows)
    ]
    return np.concatenate(
        [common.broadcast(ranks, [part], (), root)[0] for root, part in enumerate(parts)]
    )


def _means(arrays: list[Array]) -> list[Array]:
    return comm.init().aggregate([np.asarray(array, order="C") for array in arrays])


def _signature(arrays: Sequence[Array]) -> Signature:
    return tuple((name_of(array.dtype), array.shape) for array in arrays)


def _scaled(array: Array, factor: float) -> Array:
    if factor == 1:
        return array
    form = array.dtype
    if form.kind in "iub":
        form = np.dtype(np.float64)
    elif name_of(form) in ("float16", "bfloat16"):
        form = np.dtype(np.float32)
    return np.asarray(array.astype(form) * factor).astype(array.dtype)


def _integers(ranks: Comm, arrays: list[Array], *, mean: bool) -> list[Array]:
    """Exact sums, which wrap around at the ends of their type; means are cut towards zero, and never wrap."""
    wide = [
        array.astype(np.int64) if mean or array.dtype.itemsize > 4 else array.astype(np.int32)
        for array in arrays
    ]
    sums = ranks.sum(wide)
    if mean:
        # Of a type without a sign the sum's bits stand for a number without one.
        sums = [
            s.view(array.dtype) if array.dtype == np.uint64 else s
            for s, array in zip(sums, arrays, strict=True)
        ]
        sums = [s // ranks.size + ((s % ranks.size != 0) & (s < 0)) for s in sums]
    return [np.asarray(s).astype(array.dtype) for s, array in zip(sums, arrays, strict=True)]
