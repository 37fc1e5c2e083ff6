"""Statistics of columns, merged over panels and ranks as Chan, Golub and LeVeque (1979) do: without cancellation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fairlead.bridge.linalg.matrix import Matrix, by_column


@dataclass(frozen=True)
class Columns:
    """Each (columns,), on every rank; of the values as float64, ``nnz`` as int64."""

    mean: Any
    var: Any
    least: Any
    largest: Any
    nnz: Any


def column_statistics(matrix: Matrix, ddof: int = 1) -> Columns:
    """Mean, variance (over ``rows - ddof``), extremes, and how many values are not zero."""
    comm, columns = matrix.comm, matrix.shape[1]
    merged = _sparse(matrix) if matrix.sparse else _dense(matrix)
    count, mean, squares, least, largest, nnz = merged
    rows = max(matrix.shape[0], 1)
    overall = comm.sum(count * mean) / rows
    squares = comm.sum(squares + count * (mean - overall) ** 2)
    comm.minimum(least)
    comm.maximum(largest)
    comm.sum(nnz)
    var = squares / (rows - ddof) if rows > ddof else np.full(columns, np.nan)
    return Columns(overall, var, least, largest, nnz)


def _empty(columns: int) -> tuple[Any, Any, Any, Any, Any]:
    least, largest = np.full(columns, np.inf), np.full(columns, -np.inf)
    return np.zeros(columns), np.zeros(columns), least, largest, np.zeros(columns, np.int64)


def _dense(matrix: Matrix) -> tuple[int, Any, Any, Any, Any, Any]:
    mean, squares, least, largest, nnz = _empty(matrix.shape[1])
    count = 0
    for _, panel in matrix.panels():
        rows = len(panel)
        middle = (np.ones(rows, panel.dtype) @ panel / rows).astype(panel.dtype)
        rest = panel - middle
        # What rounding left of the mean is in the rest, where it can be seen.
        correction = np.ones(rows, panel.dtype) @ rest / rows
        own = np.einsum("ij,ij->j", rest, rest, dtype=np.float64) - rows * correction**2.0
        exact = middle.astype(np.float64) + correction
        delta, together = exact - mean, count + rows
        mean += delta * (rows / together)
        squares += own + delta**2 * (count * rows / together)
        count = together
        np.minimum(least, panel.min(0), out=least)
        np.maximum(largest, panel.max(0), out=largest)
        nnz += np.count_nonzero(panel, axis=0)
    return count, mean, squares, least, largest, nnz


def _sparse(matrix: Matrix) -> tuple[int, Any, Any, Any, Any, Any]:
    _, _, least, largest, _ = _empty(matrix.shape[1])
    local, columns = matrix.local, matrix.shape[1]
    rows, where, data = local.shape[0], local.indices, local.data.astype(np.float64)
    stored = np.bincount(where, minlength=columns)
    mean = by_column(where, data, columns) / max(rows, 1)
    squares = by_column(where, (data - mean[where]) ** 2, columns) + (rows - stored) * mean**2
    np.minimum.at(least, where, data)
    np.maximum.at(largest, where, data)
    if rows:
        implicit = stored < rows
        least[implicit] = np.minimum(least[implicit], 0)
        largest[implicit] = np.maximum(largest[implicit], 0)
    nnz = np.bincount(where[data != 0], minlength=columns).astype(np.int64)
    return rows, mean, squares, least, largest, nnz
