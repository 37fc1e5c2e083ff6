"""SLEPc's singular values and eigenvalues and PETSc's linear solvers, for matrices that are large and sparse.

The image needs both: ``bridge:scalapack`` has them. They compute in float64; float32 comes back as float32. A rank that
fails here leaves the others waiting.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from fairlead.base.errors import fail
from fairlead.bridge.library import Block, Library, Rows, Whole

LIBRARY = Library("slepc", "SLEPc and PETSc: sparse matrices", needs=("petsc4py", "slepc4py"))


@LIBRARY.function
def svd(a: Block, *, k: int, tol: float = 1e-10, iterations: int = 1000) -> dict[str, Any]:
    """The k largest singular triplets, by thick-restart Lanczos.

    Returns:
        u: (rows, k).
        s: (k,).
        v: (columns, k).
        residual: the largest of SLEPc's errors, relative to its singular value.
        converged: whether all k are within ``tol``.
    """
    petsc, slepc = _packages()
    if not 1 <= k <= min(a.shape):
        size = f"the matrix is {a.shape[0]} × {a.shape[1]}"
        raise fail("bridge-rank", called="slepc.svd", k=k, limit=min(a.shape), size=size)
    matrix = _matrix(petsc, a)
    solver = slepc.SVD().create(comm=a.comm.mpi)
    solver.setOperators(matrix)
    solver.setType(slepc.SVD.Type.TRLANCZOS)
    solver.setDimensions(k)
    solver.setTolerances(tol, iterations)
    solver.setWhichSingularTriplets(slepc.SVD.Which.LARGEST)
    solver.solve()
    converged = min(k, solver.getConverged())
    right, left = matrix.createVecs()
    u, s = np.zeros((a.local.shape[0], k)), np.zeros(k)
    v = np.zeros((right.getLocalSize(), k))
    for number in range(converged):
        s[number] = solver.getSingularTriplet(number, left, right)
        u[:, number], v[:, number] = left.getArray(), right.getArray()
    errors = [solver.computeError(n, slepc.SVD.ErrorType.RELATIVE) for n in range(converged)]
    v = a.comm.stacked(v)
    largest = np.abs(v).argmax(axis=0)
    signs = np.where(v[largest, range(k)] < 0, -1.0, 1.0)
    kind = _kind(a)
    return {
        "u": Rows((u * signs).astype(kind)),
        "s": Whole(s.astype(kind)),
        "v": Whole((v * signs).astype(kind)),
        "residual": float(max(errors, default=0.0)),
        "converged": converged == k,
    }


@LIBRARY.function
def eigs(
    a: Block,
    *,
    k: int,
    which: Literal["largest", "smallest", "largest-magnitude"] = "largest",
    tol: float = 1e-10,
    iterations: int = 1000,
) -> dict[str, Any]:
    """k eigenvalues and vectors of a symmetric matrix, by Krylov-Schur.

    Returns:
        values: (k,), in the order of ``which``.
        vectors: (rows, k).
        residual: the largest of SLEPc's errors, relative to its eigenvalue.
        converged: whether all k are within ``tol``.
    """
    petsc, slepc = _packages()
    _square("slepc.eigs", a)
    if not 1 <= k <= a.shape[0]:
        size = f"the matrix has {a.shape[0]} rows"
        raise fail("bridge-rank", called="slepc.eigs", k=k, limit=a.shape[0], size=size)
    matrix = _matrix(petsc, a)
    wanted = {
        "largest": slepc.EPS.Which.LARGEST_REAL,
        "smallest": slepc.EPS.Which.SMALLEST_REAL,
        "largest-magnitude": slepc.EPS.Which.LARGEST_MAGNITUDE,
    }
    solver = slepc.EPS().create(comm=a.comm.mpi)
    solver.setOperators(matrix)
    solver.setProblemType(slepc.EPS.ProblemType.HEP)
    solver.setDimensions(k)
    solver.setTolerances(tol, iterations)
    solver.setWhichEigenpairs(wanted[which])
    solver.solve()
    converged = min(k, solver.getConverged())
    vector = matrix.createVecLeft()
    values, vectors = np.zeros(k), np.zeros((a.local.shape[0], k))
    for number in range(converged):
        values[number] = solver.getEigenpair(number, vector).real
        vectors[:, number] = vector.getArray()
    errors = [solver.computeError(n, slepc.EPS.ErrorType.RELATIVE) for n in range(converged)]
    kind = _kind(a)
    return {
        "values": Whole(values.astype(kind)),
        "vectors": Rows(vectors.astype(kind)),
        "residual": float(max(errors, default=0.0)),
        "converged": converged == k,
    }


@LIBRARY.function
def solve(
    a: Block,
    b: Block,
    *,
    method: Literal["gmres", "cg", "bcgs", "minres"] = "gmres",
    preconditioner: Literal["jacobi", "bjacobi", "asm", "none"] = "bjacobi",
    tol: float = 1e-10,
    iterations: int = 10000,
) -> dict[str, Any]:
    """The x with ``A x = B`` for a square matrix, by one of PETSc's Krylov solvers.

    Returns:
        x: of the rows of a.
        history: the residual's norm after each iteration, of the last column of b.
        converged: whether each column's residual fell by ``tol``.
    """
    from fairlead.bridge.layout import gathered_rows, to_rows

    petsc, _ = _packages()
    _square("slepc.solve", a)
    if b.shape[0] != a.shape[0]:
        raise fail(
            "bridge-shapes", called="slepc.solve", a=f"{a.shape[0]} × {a.shape[1]}",
            b=f"{b.shape[0]} × {b.shape[1]}", inner=a.shape[0], rows=b.shape[0],
        )  # fmt: skip
    given = b.local.toarray() if b.sparse else b.local
    here, there = gathered_rows(a.local, a.comm), gathered_rows(given, a.comm)
    given = to_rows(given, there, here, a.comm)
    matrix = _matrix(petsc, a)
    solver = petsc.KSP().create(comm=a.comm.mpi)
    solver.setOperators(matrix)
    solver.setType(method)
    solver.getPC().setType(preconditioner)
    solver.setTolerances(rtol=tol, max_it=iterations)
    solver.setConvergenceHistory(length=iterations + 1, reset=True)
    solution, side = matrix.createVecs()
    x, converged = np.zeros(given.shape), True
    for column in range(given.shape[1]):
        side.setArray(np.ascontiguousarray(given[:, column], np.float64))
        solver.solve(side, solution)
        x[:, column] = solution.getArray()
        converged = converged and solver.getConvergedReason() > 0
    history = [float(n) for n in solver.getConvergenceHistory()]
    return {"x": Rows(x.astype(_kind(a))), "history": history, "converged": bool(converged)}


def _packages() -> tuple[Any, Any]:
    """PETSc and SLEPc, initialised.

    Raises:
        FairleadError: they are not here.
    """
    try:
        import petsc4py
        import slepc4py
        from mpi4py import MPI

        # On one rank each: neither this nor the end is a collective of ranks that may not be in a run.
        petsc4py.init([], comm=MPI.COMM_SELF)
        slepc4py.init([])
        from petsc4py import PETSc
        from slepc4py import SLEPc
    except ImportError as exc:
        raise fail("bridge-absent", what="SLEPc", library="slepc", reason=exc) from exc
    return PETSc, SLEPc


def _kind(a: Block) -> Any:
    from fairlead.bridge.linalg.matrix import real

    return real(a.local.dtype)


def _matrix(petsc: Any, a: Block) -> Any:
    """The matrix as PETSc has it, copied."""
    from fairlead.bridge.layout import BlockRows

    rows, columns = a.shape
    across = BlockRows.even(columns, a.comm.size).counts[a.comm.rank]
    if rows == columns:
        across = a.local.shape[0]  # solvers want both dealt alike
    size = ((a.local.shape[0], rows), (across, columns))
    if a.sparse:
        count = petsc.IntType
        csr = (
            a.local.indptr.astype(count),
            a.local.indices.astype(count),
            a.local.data.astype(np.float64),
        )
        matrix = petsc.Mat().createAIJ(size=size, csr=csr, comm=a.comm.mpi)
    else:
        local = np.asfortranarray(a.local, np.float64)
        matrix = petsc.Mat().createDense(size=size, array=local, comm=a.comm.mpi)
    matrix.assemble()
    return matrix


def _square(called: str, a: Block) -> None:
    if a.shape[0] != a.shape[1]:
        raise fail("bridge-square", called=called, rows=a.shape[0], columns=a.shape[1])
