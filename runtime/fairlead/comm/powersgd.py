"""PowerSGD: gradients sent as two thin matrices, and what that leaves out made up for in the next step.

    compressed = PowerSGD(comm.init(), rank=2)
    means = compressed.aggregate(gradients)          # in place of comm.aggregate(gradients)

Source: T. Vogels, S. P. Karimireddy, M. Jaggi, *PowerSGD: Practical Low-Rank Gradient Compression for
Distributed Optimization*, NeurIPS 2019, algorithms 1 and 2.

A gradient of rank at most ``rank`` is exact to rounding from its second step on. For others, what was
handed out up to any step differs from what ``comm.aggregate`` would have by the mean of the ranks' own
errors of that step alone: they are added to the next gradients (error feedback).

The thin matrices are equal on all ranks bit for bit; what each makes of them is so where the ranks have
the same processor and the same NumPy. ``comm.check_buffers_match`` on the weights verifies that.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fairlead.base.errors import fail
from fairlead.comm.core import Array, Comm, narrowed, widened


@dataclass
class _Kept:
    """Of one array: the right factor of the last step, and what its approximation left out."""

    right: Array
    error: Array


class PowerSGD:
    """:meth:`Comm.aggregate`, with less on the way.

    Attributes:
        sent, whole: elements that a rank handed over, and that it would have without compression.
    """

    def __init__(self, ranks: Comm, *, rank: int = 2, least_saving: float = 2.0, seed: int = 0):
        """
        Args:
            rank: columns of the thin matrices.
            least_saving: an array that would not shrink by this factor goes as it is.
            seed: of the first right factors; the same on every rank.
        Raises:
            FairleadError: ``rank`` is below 1.
        """
        if rank < 1:
            raise fail("comm-powersgd-rank", rank=rank)
        self._ranks, self._rank, self._least, self._seed = ranks, rank, least_saving, seed
        self._kept: dict[int, _Kept] = {}
        self.sent = self.whole = 0

    def aggregate(self, arrays: Sequence[Array]) -> list[Array]:
        """Approximate means of ``arrays`` over all ranks; new arrays. Collective.

        Args:
            arrays: as for :meth:`Comm.aggregate`, the same shapes in each call. Those with two dimensions or
                more become matrices, parted where rows and columns together are fewest.
        Raises:
            FairleadError: as :meth:`Comm.aggregate`; an array has another shape than before.
        """
        given = list(arrays)
        thin = [i for i, array in enumerate(given) if self._shrinks(array)]
        # What is left out of a half would be lost in it: factors and errors are float32.
        matrices = {i: self._with_error(i, widened(given[i])) for i in thin}
        rest = [np.asarray(a) for i, a in enumerate(given) if i not in matrices]
        # What is not compressed travels with the left factors.
        sent = [*(matrices[i] @ self._kept[i].right for i in thin), *rest]
        means = self._ranks.aggregate(sent)
        lefts = {i: _orthonormal(left) for i, left in zip(thin, means, strict=False)}
        rights = self._ranks.aggregate([matrices[i].T @ lefts[i] for i in thin]) if thin else []
        result: list[Array] = []
        plain = iter(means[len(thin) :])
        for i, array in enumerate(given):
            if i not in matrices:
                result.append(next(plain))
                continue
            kept, right = self._kept[i], rights[thin.index(i)]
            whole = lefts[i] @ right.T
            # A column of zeros would stay one; the next gradient may have what it is to find.
            fresh = self._right(i, right.shape[0], right.dtype)
            kept.error = matrices[i] - whole
            kept.right = np.where(right.any(axis=0), right, fresh)
            result.append(narrowed(whole.reshape(array.shape), array.dtype))
        self.sent += sum(a.size for a in sent) + sum(right.size for right in rights)
        self.whole += sum(np.asarray(a).size for a in given)
        return result

    def _right(self, index: int, columns: int, dtype: np.dtype[Any]) -> Array:
        """A right factor to begin with, the same on every rank."""
        random = np.random.default_rng((self._seed, index))
        return random.standard_normal((columns, self._rank)).astype(dtype)

    def _shrinks(self, array: Array) -> bool:
        if array.ndim < 2 or not array.size:
            return False
        return bool(array.size >= self._least * self._rank * sum(_parted(array.shape)))

    def _with_error(self, index: int, array: Array) -> Array:
        """``array`` as a matrix, and what the last step left out of it."""
        matrix = np.asarray(array).reshape(_parted(array.shape))
        known = self._kept.get(index)
        if known is None:
            right = self._right(index, matrix.shape[1], matrix.dtype)
            known = self._kept[index] = _Kept(right, np.zeros_like(matrix))
        elif known.error.shape != matrix.shape or known.error.dtype != matrix.dtype:
            raise fail(
                "comm-powersgd-shape",
                index=index,
                dtype=known.error.dtype,
                shape=known.error.shape,
                array_dtype=array.dtype,
                array_shape=array.shape,
            )
        return matrix + known.error


def _parted(shape: Sequence[int]) -> tuple[int, int]:
    """Rows and columns: PyTorch's kernels have their output channels first, TensorFlow's last.

    >>> _parted((128, 64, 3, 3)), _parted((3, 3, 64, 128))
    ((128, 576), (576, 128))
    """
    ways = ((math.prod(shape[:at]), math.prod(shape[at:])) for at in range(1, len(shape)))
    return min(ways, key=sum)


def _orthonormal(left: Array) -> Array:
    """Gram-Schmidt, column by column, twice: once is not enough for nearly parallel ones.

    A column that the others span is zero; the approximation has less rank then, and no NaN.
    """
    done = np.array(left, np.float64)
    for column in range(done.shape[1]):
        vector = done[:, column].copy()
        before = math.sqrt(float(np.dot(vector, vector)))
        for _ in range(2):
            for other in range(column):
                vector -= np.dot(done[:, other], vector) * done[:, other]
        length = math.sqrt(float(np.dot(vector, vector)))
        done[:, column] = vector / length if length > 1e-7 * before > 0 else 0
    return done.astype(left.dtype)
