"""Least squares on block rows; several right-hand sides are solved at once, each with its own numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fairlead.bridge.linalg.matrix import Matrix, agreed
from fairlead.bridge.linalg.tsqr import triangle


@dataclass(frozen=True)
class Solution:
    """
    Attributes:
        x: (columns, right-hand sides), on every rank.
        history: after each step, the largest relative residual of a right-hand side; what it measures is the method's.
        rank: of the matrix, where the method knows it.
    """

    x: Any
    history: list[float]
    converged: bool
    rank: int | None = None


def direct(matrix: Matrix, b: Any) -> Solution:
    """By TSQR of ``[A b]``; of minimal norm where A has not full rank.

    Args:
        b: this rank's rows of the right-hand sides, (rows, any).
    """
    comm, columns = matrix.comm, matrix.shape[1]
    r = triangle(matrix, b.astype(matrix.dtype), comm)
    digits = float(np.finfo(matrix.dtype).eps) * max(matrix.shape)

    def solve() -> Any:
        from scipy.linalg import lstsq, solve_triangular

        left, right = r[:, :columns].astype(np.float64), r[:, columns:].astype(np.float64)
        square, known = left[:columns], right[:columns]
        if len(square) == columns and _condition(square) * digits < 1:
            x, rank = solve_triangular(square, known), columns
        else:
            x, _, rank, _ = lstsq(left, right, cond=digits)
        return np.concatenate([x.reshape(-1), [rank]])

    packed = comm.on(0, solve, np.empty(columns * b.shape[1] + 1))
    x = packed[:-1].reshape(columns, b.shape[1]).astype(matrix.dtype)
    return Solution(x, [], True, int(packed[-1]))


def _condition(triangle: Any) -> float:
    """The condition number of an upper triangle, roughly; infinite for a singular one."""
    from scipy.linalg.lapack import dtrcon

    reciprocal, _ = dtrcon(triangle)
    return float(1 / reciprocal) if reciprocal > 0 else float("inf")


def lsqr(matrix: Matrix, b: Any, *, tol: float, iterations: int) -> Solution:
    """By LSQR (Paige, Saunders, ACM TOMS 8, 1982); of minimal norm where there are several solutions.

    Ends when ``|A'r|`` is below ``tol |A| |r|``, or ``|r|`` below ``tol (|b| + |A| |x|)``. The history is the smaller
    of the two quotients.
    """
    comm = matrix.comm
    u, beta = _unit_rows(matrix, b.astype(matrix.dtype))
    v, alpha = _unit(matrix.adjoint(u))
    x, w = np.zeros_like(v), v.copy()
    length, rho_bar, phi_bar = beta.copy(), alpha.copy(), beta.copy()
    squares = np.zeros_like(beta)
    history: list[float] = []
    done = not (alpha * beta).any()
    while not agreed(comm, done or len(history) >= iterations):
        squares += alpha**2
        u, beta = _unit_rows(matrix, matrix.apply(v) - u * alpha.astype(u.dtype))
        squares += beta**2
        v, alpha = _unit(matrix.adjoint(u) - v * beta.astype(v.dtype))
        rho = np.hypot(rho_bar, beta)
        cosine, sine = _ratio(rho_bar, rho), _ratio(beta, rho)
        theta, rho_bar = sine * alpha, -cosine * alpha
        phi, phi_bar = cosine * phi_bar, sine * phi_bar
        x += w * _ratio(phi, rho).astype(x.dtype)
        w = v - w * _ratio(theta, rho).astype(x.dtype)
        norm = np.sqrt(squares)
        consistent = _ratio(phi_bar, length + norm * np.linalg.norm(x, axis=0))
        stationary = _ratio(alpha * np.abs(cosine), norm)
        history.append(float(np.minimum(consistent, stationary).max()))
        done = history[-1] <= tol
    return Solution(x, history, agreed(comm, bool(done)))


def ridge(matrix: Matrix, b: Any, *, penalty: float, tol: float, iterations: int) -> Solution:
    """``(A'A + penalty) x = A'b`` by conjugate gradients, one pass over the rows and one sum a step.

    The history is the residual of these equations relative to ``A'b``, until it is below ``tol``.
    """
    comm = matrix.comm
    rest = matrix.adjoint(b.astype(matrix.dtype)).astype(np.float64)
    x, direction = np.zeros_like(rest), rest.copy()
    size = _squares(rest)
    first = np.sqrt(size)
    history: list[float] = []
    done = not first.any()
    while not agreed(comm, done or len(history) >= iterations):
        product = matrix.normal(direction)[1] + penalty * direction
        step = _ratio(size, np.einsum("ij,ij->j", direction, product))
        x += step * direction
        rest -= step * product
        before, size = size, _squares(rest)
        direction = rest + _ratio(size, before) * direction
        history.append(float(_ratio(np.sqrt(size), first).max()))
        done = history[-1] <= tol
    return Solution(x.astype(matrix.dtype), history, agreed(comm, bool(done)))


def normal_residual(matrix: Matrix, x: Any, b: Any, penalty: float = 0.0) -> float:
    """``|A'(A x - b) + penalty x|`` relative to ``|A'b|``, the largest of the right-hand sides."""
    b = b.astype(matrix.dtype)
    rest = matrix.adjoint(matrix.apply(x) - b) + penalty * x
    norms = np.linalg.norm(matrix.adjoint(b).astype(np.float64), axis=0)
    quotients = _ratio(np.linalg.norm(rest.astype(np.float64), axis=0), norms)
    return float(quotients.max()) if len(quotients) else 0.0


def _squares(columns: Any) -> Any:
    return np.einsum("ij,ij->j", columns, columns, dtype=np.float64)


def _ratio(above: Any, below: Any) -> Any:
    """The quotient, 0 where the divisor is: a right-hand side that is solved stays as it is."""
    return np.divide(above, below, out=np.zeros_like(below), where=below != 0)


def _unit(columns: Any) -> tuple[Any, Any]:
    """Columns of length 1, and the lengths they had; of zeros stay zero."""
    lengths = np.sqrt(_squares(columns))
    return columns * _ratio(np.ones_like(lengths), lengths).astype(columns.dtype), lengths


def _unit_rows(matrix: Matrix, columns: Any) -> tuple[Any, Any]:
    """The same for columns whose rows are on their ranks."""
    lengths = np.sqrt(matrix.comm.sum(_squares(columns)))
    return columns * _ratio(np.ones_like(lengths), lengths).astype(columns.dtype), lengths
