"""Products and transposes of matrices in block rows. What a rank holds of another's rows is bounded."""

from __future__ import annotations

from typing import Any

import numpy as np

from fairlead.bridge.collectives import Collectives
from fairlead.bridge.layout import STRIP_BYTES, BlockRows, gathered_rows, to_rows
from fairlead.bridge.linalg.matrix import Matrix, whole

_ROWS = 1024  # of a product at once


def multiplied(a: Matrix, b: Matrix) -> Any:
    """This rank's rows of ``A B``: panels of B come by broadcast, rank by rank. Sparse if both are."""
    comm, dtype = a.comm, np.result_type(a.dtype, b.dtype)
    left, right = a.local.astype(dtype, copy=False), b.local.astype(dtype, copy=False)
    layout, width = gathered_rows(right, comm), b.shape[1]
    height = max(STRIP_BYTES // max(width * dtype.itemsize, 1), 1)
    product: Any = np.zeros((a.rows, width), dtype)
    if a.sparse and b.sparse:
        from scipy.sparse import csr_array

        product = csr_array((a.rows, width), dtype=dtype)
    by_column = left.tocsc() if a.sparse else left
    for root, count in enumerate(layout.counts):
        for begin in range(0, count, height):
            comm.check()
            rows = min(height, count - begin)
            mine = right[begin : begin + rows] if comm.rank == root else None
            panel = _panel(mine, (rows, width), dtype, b.sparse, comm, root)
            first = layout.offset(root) + begin
            part = by_column[:, first : first + rows]
            product = _added(product, part, panel, a.sparse or b.sparse)
    return product if a.sparse and b.sparse else np.ascontiguousarray(product)


def _added(product: Any, part: Any, panel: Any, sparse: bool) -> Any:
    if sparse:
        more = part @ panel
        return product + (more.toarray() if _dense(product) and not _dense(more) else more)
    for begin in range(0, len(part), _ROWS):
        product[begin : begin + _ROWS] += part[begin : begin + _ROWS] @ panel
    return product


def _dense(array: Any) -> bool:
    return isinstance(array, np.ndarray)


def _panel(
    rows: Any, shape: tuple[int, int], dtype: Any, sparse: bool, comm: Collectives, root: int
) -> Any:
    """One rank's rows on every rank."""
    if not sparse:
        panel = np.empty(shape, dtype) if rows is None else np.ascontiguousarray(rows)
        return comm.broadcast(panel, root)
    from scipy.sparse import csr_array

    size = np.array([0 if rows is None else rows.nnz], np.int64)
    count = int(comm.broadcast(size, root)[0])
    if rows is None:
        parts = [
            np.empty(count, dtype),
            np.empty(count, np.int64),
            np.empty(shape[0] + 1, np.int64),
        ]
    else:
        parts = [rows.data, rows.indices.astype(np.int64), rows.indptr.astype(np.int64)]
    data, indices, pointers = (comm.broadcast(np.ascontiguousarray(p), root) for p in parts)
    return csr_array((data, indices, pointers), shape=shape)


def transposed_product(a: Matrix, b: Matrix) -> Any:
    """This rank's rows of ``A'B``, dealt evenly."""
    comm, dtype = a.comm, np.result_type(a.dtype, b.dtype)
    here, there = gathered_rows(a.block.local, comm), gathered_rows(b.block.local, comm)
    right = b.local.astype(dtype, copy=False)
    if here != there:
        right = to_rows(right.toarray() if b.sparse else right, there, here, comm)
    left = a.local.astype(dtype, copy=False)
    rows, width = BlockRows.even(a.shape[1], comm.size), b.shape[1]
    height = max(STRIP_BYTES // max(width * dtype.itemsize, 1), 1)
    own = np.empty((rows.counts[comm.rank], width), dtype)
    by_column = left.tocsc() if a.sparse else left
    for root, count in enumerate(rows.counts):
        for begin in range(0, count, height):
            comm.check()
            first = rows.offset(root) + begin
            high = min(height, count - begin)
            part = by_column[:, first : first + high].T @ right
            part = part.toarray() if hasattr(part, "toarray") else part
            strip = comm.sum_on(root, np.ascontiguousarray(part))
            if comm.rank == root:
                own[begin : begin + high] = strip
    return own


def gramian(a: Matrix) -> Any:
    """This rank's rows of ``A'A``, dealt evenly."""
    columns, dtype = a.shape[1], a.dtype
    if a.sparse or columns**2 * dtype.itemsize > 8 * STRIP_BYTES:
        return transposed_product(a, a)
    from scipy.linalg.blas import get_blas_funcs

    syrk = get_blas_funcs("syrk", dtype=dtype)
    upper = np.zeros((columns, columns), dtype, order="F")
    for _, panel in _tall(a):
        syrk(1.0, panel.T, 1.0, upper, 0, 0, 1)
    whole(a.comm, upper)
    begin, end = BlockRows.even(columns, a.comm.size).range(a.comm.rank)
    rows = np.ascontiguousarray(upper[begin:end])
    for row, values in enumerate(rows):  # the lower triangle is that of the upper one's transpose
        values[: begin + row] = upper[: begin + row, begin + row]
    return rows


def _tall(a: Matrix) -> Any:
    """Panels high enough that the square result is read seldom."""
    step = max(2 * a.shape[1], 256)
    for begin in range(0, a.rows, step):
        a.comm.check()
        yield begin, np.ascontiguousarray(a.block.local[begin : begin + step], a.dtype)


def transposed(block: Any) -> Any:
    """This rank's rows of the transpose, dealt evenly; of the same type, and sparse where the matrix is."""
    comm, (rows, columns) = block.comm, block.shape
    old, new = gathered_rows(block.local, comm), BlockRows.even(columns, comm.size)
    if block.sparse:
        return _transposed_sparse(block.local, old, new, comm)
    begin, end = new.range(comm.rank)
    into = np.empty((end - begin, rows), block.local.dtype)
    step = max(STRIP_BYTES // max(columns * block.local.dtype.itemsize, 1), 1)
    for first in range(0, max(old.counts), step):
        strip = block.local[first : first + step]
        parts = [strip[:, slice(*new.range(rank))].reshape(-1) for rank in range(comm.size)]
        heights = [min(max(count - first, 0), step) for count in old.counts]
        arrived = comm.exchanged(parts, [height * (end - begin) for height in heights])
        for rank, part in enumerate(arrived):
            at = old.offset(rank) + first
            into[:, at : at + heights[rank]] = part.reshape(heights[rank], end - begin).T
    return into


def _transposed_sparse(local: Any, old: BlockRows, new: BlockRows, comm: Collectives) -> Any:
    from scipy.sparse import csc_array, csr_array, hstack

    by_column = local.tocsc()
    cuts = [by_column[:, slice(*new.range(rank))] for rank in range(comm.size)]
    sizes = np.array([cut.nnz for cut in cuts], np.int64)
    counts = [
        int(n[0])
        for n in comm.exchanged([sizes[r : r + 1] for r in range(comm.size)], [1] * comm.size)
    ]
    width = new.counts[comm.rank]
    data = comm.exchanged([cut.data for cut in cuts], counts)
    where = comm.exchanged([cut.indices.astype(np.int64) for cut in cuts], counts)
    ends = comm.exchanged([cut.indptr.astype(np.int64) for cut in cuts], [width + 1] * comm.size)
    parts = [
        csc_array((data[rank], where[rank], ends[rank]), shape=(old.counts[rank], width)).T
        for rank in range(comm.size)
    ]
    return csr_array(hstack(parts, format="csr"))
