"""Products with a matrix in block rows, each in one pass over the rows.

The rows are taken in panels that stay in a core's cache, so ``A'(A X)`` costs one read of ``A``, not two. Integers
become float64, panel by panel; float32 stays. Sparse matrices stay sparse, and a mean is subtracted without forming
the centred matrix.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import numpy as np

from fairlead.bridge.collectives import Collectives
from fairlead.bridge.library import Block

PANEL_BYTES = 1 << 20  # half of a usual second-level cache
_LEAST_ROWS = 128  # below, a product spends its time in packing the other factor


def real(dtype: Any) -> np.dtype[Any]:
    """The type that a matrix is computed in: float32 for float32, float64 for everything else."""
    return np.dtype(np.float32 if np.dtype(dtype) == np.float32 else np.float64)


def whole(comm: Collectives, array: Any) -> Any:
    """The sum over all ranks, in place, of an array in C or Fortran order."""
    comm.sum(array if array.flags.c_contiguous else array.T)
    return array


def total(comm: Collectives, *values: float) -> list[float]:
    """The sums of numbers over all ranks."""
    return [float(n) for n in comm.sum(np.array(values, np.float64))]


def agreed(comm: Collectives, verdict: bool) -> bool:
    """What rank 0 has decided, so that no rank goes another way because its processor rounds otherwise."""
    return bool(comm.broadcast(np.array([verdict], np.int64), 0)[0])


@functools.cache
def _gemm(dtype: np.dtype[Any]) -> Any:
    from scipy.linalg.blas import get_blas_funcs

    return get_blas_funcs("gemm", dtype=dtype)


def add_product(into: Any, left: Any, right: Any) -> None:
    """``into += left.T @ right`` for C-contiguous ``left`` and ``right`` and ``into`` in Fortran order."""
    if not (min(into.shape) and left.shape[0]):
        return
    if (
        into.shape[1] == 1
    ):  # a matrix times a vector is limited by memory, and has kernels of its own
        into[:, 0] += right[:, 0] @ left
    else:
        _gemm(into.dtype)(1.0, left.T, right.T, 1.0, into, 0, 1, 1)


def by_column(columns: Any, values: Any, count: int) -> Any:
    """The sum of the values of each column; NumPy's is of integers where there are no values."""
    return np.bincount(columns, values, minlength=count).astype(np.float64, copy=False)


class Matrix:
    """A matrix, or the matrix minus a row that is subtracted from each of its rows.

    Attributes:
        dtype: of its values and products.
        rows: how many this rank has.
        mean: what is subtracted, (columns,); None for nothing.
    """

    def __init__(self, block: Block, mean: Any = None):
        self.block, self.comm, self.shape = block, block.comm, block.shape
        self.sparse, self.rows = block.sparse, block.local.shape[0]
        self.dtype = real(block.local.dtype)
        self.mean = mean
        self._squares: float | None = None  # of this rank's values, once a pass has seen them
        self._local = block.local.astype(self.dtype, copy=False) if self.sparse else block.local

    def panels(self) -> Iterator[tuple[int, Any]]:
        """First row and rows of each panel, as ``dtype``."""
        held = (
            self._local.data.nbytes
            if self.sparse
            else self.rows * self.shape[1] * self.dtype.itemsize
        )
        step = max(PANEL_BYTES * self.rows // max(held, 1), _LEAST_ROWS)
        for begin in range(0, self.rows, step):
            self.comm.check()
            panel = self._local[begin : begin + step]
            if not self.sparse:
                panel = np.ascontiguousarray(panel, self.dtype)
            yield begin, panel

    @property
    def local(self) -> Any:
        """All rows of this rank, as ``dtype``; a copy of an integer matrix."""
        return self._local if self.sparse else np.ascontiguousarray(self._local, self.dtype)

    def apply(self, x: Any) -> Any:
        """``A x``: this rank's rows of it.

        Args:
            x: (columns, any), the same on every rank.
        """
        x = np.ascontiguousarray(x, self.dtype)
        if self.sparse:
            y = np.ascontiguousarray(self._local @ x)
        else:
            y = np.empty((self.rows, x.shape[1]), self.dtype)
            for begin, panel in self.panels():
                np.matmul(panel, x, out=y[begin : begin + len(panel)])
        return y if self.mean is None else np.subtract(y, self.mean @ x, out=y)

    def adjoint(self, y: Any) -> Any:
        """``A' y`` on every rank.

        Args:
            y: (this rank's rows, any).
        """
        y = np.ascontiguousarray(y, self.dtype)
        if self.sparse:
            z = np.asfortranarray(self._local.T @ y)
        else:
            z = np.zeros((self.shape[1], y.shape[1]), self.dtype, order="F")
            for begin, panel in self.panels():
                add_product(z, panel, y[begin : begin + len(panel)])
        return self._summed(z, y.sum(0, dtype=np.float64))

    def normal(self, x: Any, keep: bool = False) -> tuple[Any, Any]:
        """``A x``, if it is to be kept, and ``A'(A x)``, in one pass over the rows."""
        x = np.ascontiguousarray(x, self.dtype)
        if self.sparse:
            y = self.apply(x)
            return y, self.adjoint(y)
        shift = None if self.mean is None else self.mean @ x
        z = np.zeros((self.shape[1], x.shape[1]), self.dtype, order="F")
        y = np.empty((self.rows if keep else 0, x.shape[1]), self.dtype)
        sums, squares, buffer = np.zeros(x.shape[1]), 0.0, None
        for begin, panel in self.panels():
            if buffer is None and not keep:
                buffer = np.empty((len(panel), x.shape[1]), self.dtype)
            part = y[begin : begin + len(panel)] if buffer is None else buffer[: len(panel)]
            np.matmul(panel, x, out=part)
            if shift is not None:
                part -= shift
                sums += part.sum(0, dtype=np.float64)
            add_product(z, panel, part)
            if self._squares is None:
                squares += float(np.vdot(panel, panel))
        self._squares = squares if self._squares is None else self._squares
        return y, self._summed(z, sums)

    def _summed(self, z: Any, sums: Any) -> Any:
        if self.mean is not None:
            z -= np.outer(self.mean, sums.astype(z.dtype))
        return whole(self.comm, z)

    def norm(self) -> float:
        """The Frobenius norm."""
        if self._squares is None:
            values = [self._local.data] if self.sparse else (panel for _, panel in self.panels())
            self._squares = sum(float(np.vdot(part, part)) for part in values)
        (squares,) = total(self.comm, self._squares)
        if self.mean is None:
            return float(np.sqrt(squares))
        mean = self.mean.astype(np.float64)
        centred = squares - self.shape[0] * float(mean @ mean)
        if not self.sparse and agreed(
            self.comm, centred < 1e-4 * squares
        ):  # the digits that matter have cancelled
            mine = (panel - self.mean for _, panel in self.panels())
            (centred,) = total(self.comm, sum(float(np.vdot(part, part)) for part in mine))
        return float(np.sqrt(max(centred, 0.0)))

    def column_means(self) -> Any:
        """The mean of each column, (columns,), on every rank; remembers the squares that it passes."""
        sums, squares = np.zeros(self.shape[1]), 0.0
        if self.sparse:
            sums += by_column(self._local.indices, self._local.data, self.shape[1])
        else:
            for _, panel in self.panels():
                sums += np.ones(len(panel), self.dtype) @ panel
                squares += float(np.vdot(panel, panel))
            self._squares = squares
        return self.comm.sum(sums) / max(self.shape[0], 1)
