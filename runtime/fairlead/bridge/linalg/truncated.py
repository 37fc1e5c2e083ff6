"""The largest singular triplets of a matrix in block rows; the Gramian is never formed.

* ``randomised``: Halko, Martinsson, Tropp, SIAM Review 53 (2011), with subspace iteration on ``A'A``.
* ``lanczos``: Golub-Kahan bidiagonalisation with full reorthogonalisation and thick restarts: Baglama, Reichel, SIAM
  J. Sci. Comput. 27 (2005).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fairlead.bridge.collectives import Collectives
from fairlead.bridge.linalg.matrix import Matrix, agreed, total, whole
from fairlead.bridge.linalg.tsqr import orthonormal, panel_qr, tsqr

# How ill-conditioned Y may be before A'Q is multiplied out again: it costs that share of the digits.
_SAFE_CONDITION = {8: 1e3, 4: 10.0}


@dataclass(frozen=True)
class Triplets:
    """Singular triplets, largest first; the largest component of each right vector is positive.

    Attributes:
        u: (this rank's rows, k).
        s: (k,), on every rank.
        v: (columns, k), on every rank.
        residual: the norm of ``A V - U S`` or ``A'U - V S`` relative to that of ``A``, of that which is not 0 by the
            method.
        converged: whether the method ended by its tolerance; None where it has none.
    """

    u: Any
    s: Any
    v: Any
    residual: float
    converged: bool | None = None


def randomised(
    matrix: Matrix, k: int, *, oversample: int = 10, power_steps: int = 2, seed: int = 0
) -> Triplets:
    """By subspace iteration from a random start; reads the matrix ``power_steps + 2`` times."""
    comm = matrix.comm
    width = min(k + oversample, *matrix.shape)
    x = np.random.default_rng(seed).standard_normal((matrix.shape[1], width)).astype(matrix.dtype)
    for _ in range(power_steps):
        x = orthonormal(matrix.normal(x)[1], comm)
    y, z = matrix.normal(x, keep=True)
    q, r = tsqr(y, comm)
    scale = np.linalg.norm(r, axis=0)
    limit = _SAFE_CONDITION[matrix.dtype.itemsize]
    if agreed(comm, bool(scale.all() and np.linalg.cond(r / scale) < limit)):
        projected = np.linalg.solve(r.T.astype(np.float64), z.T).T  # A'Q, from A'Y and Y = Q R
    else:
        projected = matrix.adjoint(q)
    left, s, v = _small_svd(projected, k, comm)
    return _finished(matrix, q @ left.astype(matrix.dtype), s, v)


def _small_svd(projected: Any, k: int, comm: Collectives) -> tuple[Any, Any, Any]:
    """Left vectors in the basis, singular values and right vectors, from ``A'Q``; rank 0's on every rank."""
    columns, width = projected.shape
    shapes = [(width, k), (1, k), (columns, k)]

    def decompose() -> Any:
        basis, r = panel_qr(np.ascontiguousarray(projected, np.float64))
        right, s, left = np.linalg.svd(r, full_matrices=False)
        parts = [left[:k].T, s[None, :k], basis @ right[:, :k]]
        return np.concatenate([part.reshape(-1) for part in parts])

    size = sum(rows * count for rows, count in shapes)
    packed = comm.on(0, decompose, np.empty(size))
    ends = np.cumsum([rows * count for rows, count in shapes])[:-1]
    left, s, v = (
        part.reshape(shape) for part, shape in zip(np.split(packed, ends), shapes, strict=True)
    )
    return left, s[0], v


def _finished(matrix: Matrix, u: Any, s: Any, v: Any, converged: bool | None = None) -> Triplets:
    """With signs fixed, and the residual of what is returned, in its type."""
    rows = np.argmax(np.abs(v), axis=0)
    signs = np.where(v[rows, np.arange(v.shape[1])] < 0, -1, 1).astype(matrix.dtype)
    u, v, s = u * signs, v.astype(matrix.dtype) * signs, s.astype(matrix.dtype)
    if converged is None:
        rest = matrix.apply(v) - u * s
        (squares,) = total(matrix.comm, float(np.vdot(rest, rest)))
        left_over = float(np.sqrt(squares))
    else:  # of Lanczos, whose A V is U S
        left_over = float(np.linalg.norm(matrix.adjoint(u) - v * s))
    norm = matrix.norm()
    return Triplets(u, s, v, left_over / norm if norm else 0.0, converged)


def lanczos(
    matrix: Matrix, k: int, *, tol: float = 1e-10, max_restarts: int = 100, seed: int = 0
) -> Triplets:
    """By bidiagonalisation, until the residual of each triplet is below ``tol`` times the largest singular value."""
    width = min(max(2 * k + 10, 20), *matrix.shape)
    if width == min(matrix.shape):  # a basis of all there is: one step is exact
        full = randomised(matrix, k, oversample=width - k, power_steps=1, seed=seed)
        return replace(full, converged=True)
    keep = k + (width - k) // 2
    space = _Space(matrix, width, np.random.default_rng(seed))
    restarts = 0
    while True:
        space.extend()
        left, s, right, residuals = space.decomposed()
        done = bool((residuals[:k] <= tol * max(s[0], np.finfo(float).tiny)).all())
        if done or restarts == max_restarts:
            break
        space.restart(keep, left, s, right, residuals)
        restarts += 1
    dtype = matrix.dtype
    u = space.u[:, :width] @ left[:, :k].astype(dtype)
    v = space.v[:, :width] @ right[:, :k].astype(dtype)
    return _finished(matrix, u, s[:k], v, done)


class _Space:
    """``A V = U B`` and ``A'U = V B' + f e'``: rows of U on their ranks, V on every rank."""

    def __init__(self, matrix: Matrix, width: int, random: np.random.Generator):
        self.matrix, self.comm, self.width, self.random = matrix, matrix.comm, width, random
        self.u = np.zeros((matrix.rows, width), matrix.dtype, order="F")
        self.v = np.zeros((matrix.shape[1], width + 1), matrix.dtype, order="F")
        self.b = np.zeros((width, width))
        self.kept, self.beta = 0, 0.0
        first = random.standard_normal((matrix.shape[1], 1))
        inside = matrix.normal(first)[
            1
        ]  # where all rows are: a wide matrix then ends with its rank
        first = inside if inside.any() else first
        self.v[:, 0] = first[:, 0] / np.linalg.norm(first)

    def extend(self) -> None:
        """From the kept vectors to the full width."""
        for j in range(self.kept, self.width):
            column = self.matrix.apply(self.v[:, j : j + 1])[:, 0]
            for _ in range(2):
                column -= self.u[:, :j] @ whole(self.comm, self.u[:, :j].T @ column)
            self.b[j, j] = alpha = self._length(column)
            if alpha > self._floor():
                self.u[:, j] = column / alpha
            else:  # A v lies in what is there: any other direction does
                self.b[j, j] = alpha = 0.0
                self._fill(j)
            row = self.matrix.adjoint(self.u[:, j : j + 1])[:, 0]
            for _ in range(2):
                row -= self.v[:, : j + 1] @ (self.v[:, : j + 1].T @ row)
            self.beta = float(np.linalg.norm(row))
            if self.beta > self._floor():
                self.v[:, j + 1] = row / self.beta
            else:
                self.beta = 0.0
                self._fill_right(j + 1)
            if j + 1 < self.width:
                self.b[j, j + 1] = self.beta

    def decomposed(self) -> tuple[Any, Any, Any, Any]:
        """Left vectors, values and right vectors of the small matrix, and the residual of each; rank 0's."""
        width = self.width

        def decompose() -> Any:
            left, s, right = np.linalg.svd(self.b)
            return np.stack([left, right.T, np.diag(s), np.diag(self.beta * np.abs(left[-1]))])

        left, right, s, residuals = self.comm.on(0, decompose, np.empty((4, width, width)))
        return left, np.diagonal(s), right, np.diagonal(residuals)

    def restart(self, keep: int, left: Any, s: Any, right: Any, residuals: Any) -> None:
        """With the first triplets, and the direction in which they are not exact."""
        dtype, width = self.matrix.dtype, self.width
        self.u[:, :keep] = self.u @ left[:, :keep].astype(dtype)
        self.v[:, :keep] = self.v[:, :width] @ right[:, :keep].astype(dtype)
        self.v[:, keep] = self.v[:, width]
        self.b[:] = 0
        self.b[range(keep), range(keep)] = s[:keep]
        self.b[:keep, keep] = self.beta * left[-1, :keep]
        self.kept = keep

    def _length(self, column: Any) -> float:
        return float(np.sqrt(total(self.comm, float(np.vdot(column, column)))[0]))

    def _floor(self) -> float:
        """Below this a norm is rounding."""
        largest = float(np.abs(self.b).max()) or np.finfo(self.matrix.dtype).tiny
        return float(10 * np.finfo(self.matrix.dtype).eps * largest)

    def _fill(self, j: int) -> None:
        """A left vector at random, orthogonal to those before."""
        seed = int(self.random.integers(1 << 62))  # the same on every rank
        own = np.random.default_rng([seed, self.comm.rank])
        column = own.standard_normal(self.matrix.rows).astype(self.matrix.dtype)
        for _ in range(3):
            column -= self.u[:, :j] @ whole(self.comm, self.u[:, :j].T @ column)
            length = self._length(column)
            column /= length or 1.0
        self.u[:, j] = column

    def _fill_right(self, j: int) -> None:
        column = self.random.standard_normal(len(self.v)).astype(self.matrix.dtype)
        for _ in range(3):
            column -= self.v[:, :j] @ (self.v[:, :j].T @ column)
            column /= np.linalg.norm(column) or 1.0
        self.v[:, j] = column
