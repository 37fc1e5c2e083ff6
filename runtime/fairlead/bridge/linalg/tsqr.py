"""QR of tall, narrow matrices in block rows: each rank factorises its rows, then pairs of ranks their triangles.

The triangles go up a binary tree, so a rank handles log2(ranks) of them however many ranks there are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fairlead.bridge.collectives import Collectives
from fairlead.bridge.layout import BlockRows
from fairlead.bridge.linalg.matrix import PANEL_BYTES, Matrix

_SPREAD = 1 << 20  # values from which the ranks share the work on what all of them have
_NARROW = 128  # columns up to which LAPACK's blocks do not help, and panels in the cache do


@dataclass(frozen=True)
class _Step:
    """Where a rank joined its triangle with another's: ``factor`` has this rank's rows, then the other's."""

    other: int
    split: int
    factor: Any


def tsqr(local: Any, comm: Collectives) -> tuple[Any, Any]:
    """The thin QR factorisation, with no negative number on the diagonal of R.

    Args:
        local: this rank's rows, any number of them; of one type and width on all ranks.
    Returns:
        This rank's rows of Q, and R on every rank; min(rows, columns) columns and rows.
    """
    q, r = panel_qr(local)
    heights, steps, r, above = _up(r, comm)
    final = heights[0]
    if comm.rank == 0:
        signs = np.where(np.diagonal(r) < 0, -1, 1).astype(r.dtype)
        r, mine = signs[:, None] * r, np.diag(signs)
    else:
        shape = (heights[comm.rank], final)
        mine = _received(comm, above, shape, r.dtype)
        r = np.empty((final, local.shape[1]), r.dtype)
    for step in reversed(steps):
        _sent(comm, step.other, step.factor[step.split :] @ mine)
        mine = step.factor[: step.split] @ mine
    return q @ mine, comm.broadcast(np.ascontiguousarray(r), 0)


def triangle(matrix: Matrix, right: Any, comm: Collectives) -> Any:
    """R of ``[A B]``, without Q and without a copy of A: (min(rows, columns), columns) on every rank.

    Args:
        matrix: A.
        right: this rank's rows of B.
    """
    width = matrix.shape[1] + right.shape[1]
    r: Any = np.zeros((0, width), matrix.dtype)
    local, step = matrix.local, max(4 * width, PANEL_BYTES // (width * matrix.dtype.itemsize))
    for begin in range(0, len(local), step):
        comm.check()
        rows = np.hstack([local[begin : begin + step], right[begin : begin + step]])
        r = _triangle_of(np.asfortranarray(np.vstack([r, rows])))
    heights, _, r, _ = _up(r, comm)
    r = r if comm.rank == 0 else np.empty((heights[0], width), r.dtype)
    return comm.broadcast(np.ascontiguousarray(r), 0)


def orthonormal(columns: Any, comm: Collectives) -> Any:
    """An orthonormal basis of columns that every rank has; one basis, whatever the ranks' processors round."""
    columns = np.ascontiguousarray(columns)
    if columns.size < _SPREAD:
        rows, count = columns.shape
        like = np.empty((rows, min(rows, count)), columns.dtype)
        return comm.on(0, lambda: panel_qr(columns)[0], like)
    begin, end = BlockRows.even(len(columns), comm.size).range(comm.rank)
    return comm.stacked(tsqr(columns[begin:end], comm)[0])


def panel_qr(local: Any) -> tuple[Any, Any]:
    """Thin QR of the rows of one rank, of a narrow matrix by panels that stay in the cache."""
    rows, columns = local.shape
    height = max(4 * columns, PANEL_BYTES // (4 * max(columns, 1) * local.dtype.itemsize))
    count = rows // height
    if columns == 0 or columns > _NARROW or count < 2:
        return _qr(local)
    head = count * height
    panels = local[:head].reshape(count, height, columns)
    qs, rs = np.linalg.qr(panels)
    tail_q, tail_r = np.linalg.qr(local[head:])
    joined, r = np.linalg.qr(np.vstack([rs.reshape(count * columns, columns), tail_r]))
    q = np.empty((rows, joined.shape[1]), local.dtype)
    blocks = joined[: count * columns].reshape(count, columns, -1)
    np.matmul(qs, blocks, out=q[:head].reshape(count, height, -1))
    np.matmul(tail_q, joined[count * columns :], out=q[head:])
    return q, r


def _qr(local: Any) -> tuple[Any, Any]:
    """Thin QR. SciPy gives LAPACK the work space for its blocks, NumPy does not."""
    from scipy.linalg import qr

    q, r = qr(local, mode="economic", check_finite=False) if local.size else np.linalg.qr(local)
    return q, r


def _triangle_of(rows: Any) -> Any:
    """R alone, in place of the rows; by the recursive kernel, which is faster than the one that can give Q."""
    from scipy.linalg import get_lapack_funcs

    count = min(rows.shape)
    if count == 0:
        return np.zeros((0, rows.shape[1]), rows.dtype)
    (geqrt,) = get_lapack_funcs(("geqrt",), (rows,))
    factored = geqrt(min(64, count), rows, overwrite_a=1)[0]
    return np.triu(factored[:count])


def _up(r: Any, comm: Collectives) -> tuple[list[int], list[_Step], Any, int]:
    """Joins the triangles towards rank 0.

    Returns:
        The height of each rank's last triangle, what this rank joined, its last triangle, and where it sent it.
    """
    heights = comm.counts(r.shape[0])
    steps: list[_Step] = []
    reach = 1
    while reach < comm.size:
        if comm.rank % (2 * reach):
            _sent(comm, comm.rank - reach, r)
            return _joined(heights, reach, r.shape[1], comm.size), steps, r, comm.rank - reach
        other = comm.rank + reach
        if other < comm.size:
            theirs = _received(comm, other, (heights[other], r.shape[1]), r.dtype)
            factor, joined = np.linalg.qr(np.vstack([r, theirs]))
            steps.append(_Step(other, r.shape[0], factor))
            r = joined
        heights = _joined(heights, reach, r.shape[1], comm.size, reach)
        reach *= 2
    return heights, steps, r, -1


def _joined(
    heights: list[int], reach: int, width: int, size: int, last: int | None = None
) -> list[int]:
    """The heights after joining at ``reach`` and, unless it is the ``last``, at all distances above."""
    heights = list(heights)
    while reach < size:
        for rank in range(0, size - reach, 2 * reach):
            heights[rank] = min(heights[rank] + heights[rank + reach], width)
        if reach == last:
            break
        reach *= 2
    return heights


def _sent(comm: Collectives, rank: int, array: Any) -> None:
    empty = np.empty(0, array.dtype)
    parts = [empty] * comm.size
    parts[rank] = np.ascontiguousarray(array).reshape(-1)
    comm.exchanged(parts, [0] * comm.size)


def _received(comm: Collectives, rank: int, shape: tuple[int, int], dtype: Any) -> Any:
    counts = [0] * comm.size
    counts[rank] = shape[0] * shape[1]
    return comm.exchanged([np.empty(0, dtype)] * comm.size, counts)[rank].reshape(shape)
