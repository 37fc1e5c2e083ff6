"""Linear algebra on matrices in block rows: products, factorisations, least squares, clusters, statistics.

float32 is computed in float32, integers become float64. What is small (values, right vectors, solutions) is on every
rank, what has as many rows as the matrix stays on the ranks.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from fairlead.base.errors import fail
from fairlead.bridge.library import Block, Library, Rows, Whole

LIBRARY = Library("linalg", "Linear algebra on block rows", needs=("numpy", "scipy"))


@LIBRARY.function
def matmul(a: Block, b: Block, *, transpose_a: bool = False) -> dict[str, Any]:
    """The product of two matrices, or of the first's transpose and the second.

    Returns:
        product: sparse if both matrices are and ``transpose_a`` is not set.
    """
    from fairlead.bridge.linalg import products

    inner = a.shape[0] if transpose_a else a.shape[1]
    if inner != b.shape[0]:
        raise fail(
            "bridge-shapes",
            called="linalg.matmul",
            a=_size(a),
            b=_size(b),
            inner=inner,
            rows=b.shape[0],
        )
    multiply = products.transposed_product if transpose_a else products.multiplied
    return {"product": Rows(multiply(_matrix(a), _matrix(b)))}


@LIBRARY.function
def transpose(a: Block) -> dict[str, Any]:
    """The transpose, of the same type; sparse if the matrix is.

    Returns:
        transposed: dealt evenly over the ranks.
    """
    from fairlead.bridge.linalg import products

    return {"transposed": Rows(products.transposed(a))}


@LIBRARY.function
def gramian(a: Block) -> dict[str, Any]:
    """``A'A``, columns × columns.

    Returns:
        gramian: dealt evenly over the ranks; the share of each has to fit into its memory.
    """
    from fairlead.bridge.linalg import products

    return {"gramian": Rows(products.gramian(_matrix(a)))}


@LIBRARY.function
def qr(a: Block) -> dict[str, Any]:
    """The thin QR factorisation by TSQR; no number on the diagonal of R is negative.

    Returns:
        q: (rows, min(rows, columns)).
        r: (min(rows, columns), columns).
    """
    from fairlead.bridge.linalg.tsqr import tsqr

    _refuse_sparse(a, "linalg.qr", "call linalg.lstsq or linalg.svd, which keep it sparse")
    q, r = tsqr(_matrix(a).local, a.comm)
    return {"q": Rows(q), "r": Whole(r)}


@LIBRARY.function
def svd(
    a: Block,
    *,
    k: int,
    method: Literal["randomized", "lanczos"] = "randomized",
    oversample: int = 10,
    power_steps: int = 2,
    tol: float = 1e-10,
    max_restarts: int = 100,
    seed: int = 0,
) -> dict[str, Any]:
    """The k largest singular triplets; the largest component of each right vector is positive.

    ``randomized`` is fast and exact where the values decay: ``oversample`` more vectors and more ``power_steps`` make it
    more exact. ``lanczos`` goes on until each triplet's residual is below ``tol`` of the largest value.

    Returns:
        u: (rows, k).
        s: (k,).
        v: (columns, k).
        residual: the Frobenius norm of ``A V - U S``, for ``lanczos`` of ``A'U - V S``, relative to that of ``A``; the
            other one is 0 by the method.
        converged: whether ``lanczos`` reached ``tol``; None for ``randomized``.
    """
    options: dict[str, Any] = {"oversample": oversample, "power_steps": power_steps}
    if method == "lanczos":
        options = {"tol": tol, "max_restarts": max_restarts}
    made = _triplets("linalg.svd", a, None, k, method, seed, **options)
    return {
        "u": Rows(made.u),
        "s": Whole(made.s),
        "v": Whole(made.v),
        "residual": made.residual,
        "converged": made.converged,
    }


@LIBRARY.function
def pca(
    a: Block,
    *,
    k: int,
    method: Literal["randomized", "lanczos"] = "randomized",
    oversample: int = 10,
    power_steps: int = 2,
    seed: int = 0,
) -> dict[str, Any]:
    """Principal components; the mean is subtracted in the products, so a sparse matrix stays sparse.

    Returns:
        components: (columns, k); the largest of each is positive.
        scores: (rows, k), the rows along the components.
        explained_variance: (k,), along each component.
        explained_variance_ratio: (k,), of the whole variance.
        mean: (columns,).
        residual: as of ``svd``, of the centred matrix.
    """
    matrix = _matrix(a)
    mean = matrix.column_means().astype(matrix.dtype)
    options = (
        {"oversample": oversample, "power_steps": power_steps} if method == "randomized" else {}
    )
    made = _triplets("linalg.pca", a, mean, k, method, seed, **options)
    whole = _matrix(a, mean).norm() ** 2
    squares = made.s.astype(np.float64) ** 2
    return {
        "components": Whole(made.v),
        "scores": Rows(made.u * made.s),
        "explained_variance": Whole(squares / max(a.shape[0] - 1, 1)),
        "explained_variance_ratio": Whole(squares / whole if whole else np.zeros(k)),
        "mean": Whole(mean),
        "residual": made.residual,
    }


@LIBRARY.function
def kmeans(
    a: Block,
    *,
    k: int = 2,
    iterations: int = 20,
    init: Literal["k-means||", "random"] = "k-means||",
    init_steps: int = 2,
    tol: float = 1e-4,
    seed: int = 0,
) -> dict[str, Any]:
    """Clusters by Lloyd's iterations; for one seed the same on any number of ranks.

    Args:
        init: ``k-means||`` draws candidates in ``init_steps`` passes, far ones rather; ``random`` takes k of the rows.
        tol: ends when no centre has moved by more.

    Returns:
        centers: (k, columns).
        labels: (rows,), the number of each row's centre.
        inertia: the sum of squared distances of the rows to their centres.
        history: the inertia before each step, and at the end.
        sizes: rows of each cluster.
        converged: whether it ended by ``tol``.
    """
    from fairlead.bridge.linalg import clusters

    called = "linalg.kmeans"
    _at_least(
        called, iterations=(iterations, 0), init_steps=(init_steps, 0), seed=(seed, 0), tol=(tol, 0)
    )
    _at_most_rank(called, k, a.shape[0], f"the matrix has {a.shape[0]} rows")
    made = clusters.kmeans(
        _matrix(a), k, iterations=iterations, init=init, init_steps=init_steps, tol=tol, seed=seed
    )
    return {
        "centers": Whole(made.centers),
        "labels": Rows(made.labels),
        "inertia": made.inertia,
        "history": made.history,
        "sizes": made.sizes,
        "converged": made.converged,
    }


@LIBRARY.function
def lstsq(
    a: Block,
    b: Block,
    *,
    method: Literal["auto", "tsqr", "lsqr"] = "auto",
    tol: float = 1e-12,
    iterations: int = 1000,
) -> dict[str, Any]:
    """The x with the least ``|A x - b|``, and of those the shortest; one for each column of ``b``.

    Args:
        method: ``tsqr`` is direct, for tall dense matrices; ``lsqr`` needs products only. ``auto`` takes ``lsqr`` where
            the matrix is sparse or has more columns than rows.
        tol: of ``lsqr``, as is ``iterations``.

    Returns:
        x: (columns, columns of b).
        method: the one used.
        rank: by ``tsqr``; else None.
        normal_residual: ``|A'(A x - b)|`` relative to ``|A'b|``.
        history: of ``lsqr``.
        converged: whether ``lsqr`` reached ``tol``.
    """
    from fairlead.bridge.linalg import solvers

    _at_least("linalg.lstsq", iterations=(iterations, 0))
    matrix, right = _matrix(a), _right_side("linalg.lstsq", a, b)
    used = method
    if method == "auto":
        used = "lsqr" if a.sparse or a.shape[0] < a.shape[1] else "tsqr"
    if used == "tsqr":
        _refuse_sparse(a, "linalg.lstsq with tsqr", 'take method="lsqr"')
        made = solvers.direct(matrix, right)
    else:
        made = solvers.lsqr(matrix, right, tol=tol, iterations=iterations)
    return {
        "x": Whole(made.x),
        "method": used,
        "rank": made.rank,
        "normal_residual": solvers.normal_residual(matrix, made.x, right),
        "history": made.history,
        "converged": made.converged,
    }


@LIBRARY.function
def ridge(
    a: Block, b: Block, *, penalty: float = 1.0, tol: float = 1e-10, iterations: int = 1000
) -> dict[str, Any]:
    """The x that solves ``(A'A + penalty) x = A'b``, by conjugate gradients.

    Returns:
        x: (columns, columns of b).
        history: the relative residual after each step, of the column of b with the largest.
        residual: recomputed from x.
        converged: whether ``tol`` was reached.
    """
    from fairlead.bridge.linalg import solvers

    _at_least("linalg.ridge", penalty=(penalty, 0), iterations=(iterations, 0))
    matrix, right = _matrix(a), _right_side("linalg.ridge", a, b)
    made = solvers.ridge(matrix, right, penalty=penalty, tol=tol, iterations=iterations)
    return {
        "x": Whole(made.x),
        "history": made.history,
        "residual": solvers.normal_residual(matrix, made.x, right, penalty),
        "converged": made.converged,
    }


@LIBRARY.function
def column_stats(a: Block, *, ddof: int = 1) -> dict[str, Any]:
    """Statistics of each column.

    Args:
        ddof: the variance is over ``rows - ddof``.

    Returns:
        mean: (columns,), as are the others.
        var: the variance.
        min: the smallest value.
        max: the largest.
        nnz: how many values are not zero.
    """
    from fairlead.bridge.linalg.statistics import column_statistics

    _at_least("linalg.column_stats", ddof=(ddof, 0))
    made = column_statistics(_matrix(a), ddof)
    return {
        "mean": Whole(made.mean),
        "var": Whole(made.var),
        "min": Whole(made.least),
        "max": Whole(made.largest),
        "nnz": Whole(made.nnz),
    }


@LIBRARY.function
def standardize(a: Block, *, center: bool = True, scale: bool = True) -> dict[str, Any]:
    """The matrix with columns of mean 0 and variance 1; a constant column is only centred.

    A sparse matrix is not centred, since it would not stay sparse: give ``center=False``.

    Returns:
        standardized: as many rows and columns.
        mean: (columns,), what was subtracted.
        scale: (columns,), what was divided by.
    """
    from fairlead.bridge.linalg.statistics import column_statistics

    if center:
        _refuse_sparse(
            a, "linalg.standardize with center", "give center=False; linalg.pca centres it"
        )
    matrix = _matrix(a)
    made = column_statistics(matrix)
    deviation = np.sqrt(made.var)
    usable = scale & (deviation > 0)  # false for the NaN of a single row
    mean = (made.mean if center else np.zeros_like(made.mean)).astype(matrix.dtype)
    divisor = np.where(usable, deviation, 1.0).astype(matrix.dtype)
    if a.sparse:
        local = matrix.local.copy()
        local.data /= divisor[local.indices]
    else:
        local = np.empty(matrix.local.shape, matrix.dtype)
        for begin, panel in matrix.panels():
            part = local[begin : begin + len(panel)]
            np.subtract(panel, mean, out=part)
            part /= divisor
    return {"standardized": Rows(local), "mean": Whole(mean), "scale": Whole(divisor)}


def _triplets(
    called: str, a: Block, mean: Any, k: int, method: str, seed: int, **options: Any
) -> Any:
    from fairlead.bridge.linalg import truncated

    _at_least(called, seed=(seed, 0), **{name: (n, 0) for name, n in options.items()})
    _at_most_rank(called, k, min(a.shape), f"the matrix is {_size(a)}")
    find = truncated.lanczos if method == "lanczos" else truncated.randomised
    return find(_matrix(a, mean), k, seed=seed, **options)


def _matrix(block: Block, mean: Any = None) -> Any:
    from fairlead.bridge.linalg.matrix import Matrix

    return Matrix(block, mean)


def _right_side(called: str, a: Block, b: Block) -> Any:
    """This rank's rows of b where it has those of a; dense."""
    from fairlead.bridge.layout import gathered_rows, to_rows

    if a.shape[0] != b.shape[0]:
        raise fail(
            "bridge-shapes",
            called=called,
            a=_size(a),
            b=_size(b),
            inner=a.shape[0],
            rows=b.shape[0],
        )
    local = b.local.toarray() if b.sparse else b.local
    here, there = gathered_rows(a.local, a.comm), gathered_rows(local, a.comm)
    return to_rows(local, there, here, a.comm)


def _size(block: Block) -> str:
    return f"{block.shape[0]} × {block.shape[1]}"


def _at_most_rank(called: str, k: int, limit: int, why: str) -> None:
    if not 1 <= k <= limit:
        raise fail("bridge-rank", called=called, k=k, limit=limit, size=why)


def _at_least(called: str, **values: tuple[float, float]) -> None:
    for name, (value, least) in values.items():
        if value < least:
            raise fail("bridge-value", called=called, name=name, value=value, least=least)


def _refuse_sparse(a: Block, called: str, remedy: str) -> None:
    if a.sparse:
        raise fail("bridge-sparse", called=called, size=_size(a), remedy=remedy)
