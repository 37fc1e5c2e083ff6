"""ScaLAPACK's factorisations of dense matrices that are large in both directions, in two-dimensional block-cyclic layout.

A matrix that ``mpi.layout`` has put there already is taken as it lies. The image needs the library: ``bridge:scalapack``
has it. A rank that fails here leaves the others waiting.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NoReturn

import numpy as np

from fairlead.base.errors import fail
from fairlead.bridge.library import Block, Library, Rows, Tiles, Whole

if TYPE_CHECKING:
    from fairlead.bridge.layout import BlockRows
    from fairlead.bridge.linalg.blacs import Cyclic, Grid


def _lacks() -> list[str]:
    from fairlead.bridge.linalg.blacs import is_available

    return [] if is_available() else ["libscalapack"]


_LETTERS = {8: "d", 4: "s"}  # of double and single, in the names of routines
LIBRARY = Library(
    "scalapack", "ScaLAPACK: dense matrices in 2-D layout", needs=("numpy", "scipy"), lacks=_lacks
)


@LIBRARY.function
def matmul(
    a: Block | Tiles,
    b: Block | Tiles,
    *,
    transpose_a: bool = False,
    transpose_b: bool = False,
    block: int = 64,
) -> dict[str, Any]:
    """The product of two matrices or their transposes, by pdgemm: each rank moves a share of both, however large b is.

    Returns:
        product: dealt evenly over the ranks.
    """
    from fairlead.bridge.layout import BlockRows
    from fairlead.bridge.linalg.blacs import blacs, call

    left, right = (_given("scalapack.matmul", operand, block) for operand in (a, b))
    dtype = np.result_type(left.dtype, right.dtype)
    (rows, inner), (height, columns) = _turned(a, transpose_a), _turned(b, transpose_b)
    if inner != height:
        _unfit("scalapack.matmul", a, b, inner, height)
    letters = [b"T" if turned else b"N" for turned in (transpose_a, transpose_b)]
    unit, zero = np.ones(1, dtype), np.zeros(1, dtype)
    with blacs(a.comm, block) as grid:
        first, second = left.on(grid, dtype), right.on(grid, dtype)
        product = grid.empty(rows, columns, dtype)
        routine = f"p{_LETTERS[dtype.itemsize]}gemm"
        call(
            routine,
            *letters,
            rows,
            columns,
            inner,
            unit,
            *first.words,
            *second.words,
            zero,
            *product.words,
        )
        return {"product": Rows(grid.gathered(product, BlockRows.even(rows, a.comm.size)))}


@LIBRARY.function
def svd(a: Block | Tiles, *, k: int | None = None, block: int = 64) -> dict[str, Any]:
    """All singular triplets, or the k largest of them, by pdgesvd.

    Args:
        block: rows and columns of a block of the layout.

    Returns:
        u: (rows, k).
        s: (k,).
        v: (columns, k).
    """
    from fairlead.bridge.layout import BlockRows
    from fairlead.bridge.linalg.blacs import blacs, worked
    from fairlead.bridge.linalg.products import transposed

    given = _given("scalapack.svd", a, block)
    (rows, columns), dtype, count = a.shape, given.dtype, min(a.shape)
    if k is not None and not 1 <= k <= count:
        size = f"the matrix is {rows} × {columns}"
        raise fail("bridge-rank", called="scalapack.svd", k=k, limit=count, size=size)
    here = given.rows
    with blacs(a.comm, block) as grid:
        matrix = given.on(grid)
        left, right = grid.empty(rows, count, dtype), grid.empty(count, columns, dtype)
        s = np.zeros(count, dtype)
        info = worked(f"p{given.letter}gesvd", b"V", b"V", rows, columns, *matrix.words, s, *left.words, *right.words,
                      dtype=dtype)  # fmt: skip
        _done("pdgesvd", info)
        u = grid.gathered(left, here)
        even = BlockRows.even(count, a.comm.size)
        v = grid.gathered(right, even)
    turned = Block(v, even.offset(a.comm.rank), (count, columns), a.comm)
    wanted = k or count
    v = transposed(turned)[:, :wanted]
    return {"u": Rows(u[:, :wanted]), "s": Whole(s[:wanted]), "v": Rows(v)}


@LIBRARY.function
def qr(a: Block | Tiles, *, block: int = 64) -> dict[str, Any]:
    """The thin QR factorisation by pdgeqrf and pdorgqr; no number on the diagonal of R is negative.

    Returns:
        q: (rows, min(rows, columns)).
        r: (min(rows, columns), columns).
    """
    from fairlead.bridge.layout import BlockRows, gathered_rows, to_rows
    from fairlead.bridge.linalg.blacs import blacs, worked

    given = _given("scalapack.qr", a, block)
    (rows, columns), dtype, count = a.shape, given.dtype, min(a.shape)
    here, letter = given.rows, given.letter
    with blacs(a.comm, block) as grid:
        matrix = given.on(grid)
        tau = np.zeros(max(matrix.local.shape[1], 1), dtype)
        info = worked(f"p{letter}geqrf", rows, columns, *matrix.words, tau, dtype=dtype)
        _done("pdgeqrf", info)
        upper = grid.gathered(matrix, here)
        info = worked(f"p{letter}orgqr", rows, count, count, *matrix.words, tau, dtype=dtype)
        _done("pdorgqr", info)
        q = grid.gathered(matrix, here)[:, :count]
    begin = here.offset(a.comm.rank)
    upper = np.triu(upper, begin)[: max(count - begin, 0)]
    mine = np.where(np.diagonal(upper, begin) < 0, -1, 1).astype(dtype)
    signs = a.comm.stacked(mine[:, None])[:, 0]
    upper = mine[:, None] * upper
    r = to_rows(upper, gathered_rows(upper, a.comm), BlockRows.even(count, a.comm.size), a.comm)
    return {"q": Rows(q * signs), "r": Rows(r)}


@LIBRARY.function
def cholesky(a: Block | Tiles, *, block: int = 64) -> dict[str, Any]:
    """The lower triangle L of ``A = L L'`` by pdpotrf, for a symmetric, positive definite matrix.

    Returns:
        lower: of the rows of the matrix.
    """
    from fairlead.bridge.linalg.blacs import blacs, call

    given = _given("scalapack.cholesky", a, block)
    _square("scalapack.cholesky", a)
    here = given.rows
    with blacs(a.comm, block) as grid:
        matrix, info = given.on(grid), np.zeros(1, np.int32)
        call(f"p{given.letter}potrf", b"L", a.shape[0], *matrix.words, info)
        _done("pdpotrf", int(info[0]))
        lower = grid.gathered(matrix, here)
    return {"lower": Rows(np.tril(lower, here.offset(a.comm.rank)))}


@LIBRARY.function
def solve(
    a: Block | Tiles, b: Block | Tiles, *, method: Literal["lu", "cholesky"] = "lu", block: int = 64
) -> dict[str, Any]:
    """The x with ``A x = B`` for a square matrix, by pdgesv, or by pdposv for a symmetric, positive definite one.

    Returns:
        x: of the rows of b.
    """
    from fairlead.bridge.linalg.blacs import blacs, call

    left, right = (_given("scalapack.solve", operand, block) for operand in (a, b))
    letter = left.letter
    _square("scalapack.solve", a)
    order, count = a.shape[0], b.shape[1]
    if b.shape[0] != order:
        _unfit("scalapack.solve", a, b, order, b.shape[0])
    info = np.zeros(1, np.int32)
    with blacs(a.comm, block) as grid:
        matrix, side = left.on(grid), right.on(grid, left.dtype)
        if method == "lu":
            pivots = np.zeros(matrix.local.shape[0] + block, np.int32)
            call(f"p{letter}gesv", order, count, *matrix.words, pivots, *side.words, info)
        else:
            call(f"p{letter}posv", b"L", order, count, *matrix.words, *side.words, info)
        _done("pdgesv" if method == "lu" else "pdposv", int(info[0]))
        return {"x": Rows(grid.gathered(side, right.rows))}


@dataclass(frozen=True)
class _Given:
    """A matrix as a function has got it.

    Attributes:
        local: this rank's part, in the type that it is computed in.
        rows: where rows of results lie that belong to its own.
        tiles: None for block rows.
    """

    local: Any
    rows: BlockRows
    tiles: Tiles | None = None

    @property
    def dtype(self) -> np.dtype:
        kind: np.dtype = self.local.dtype
        return kind

    @property
    def letter(self) -> str:
        """ScaLAPACK's for the type."""
        return _LETTERS[self.dtype.itemsize]

    def on(self, grid: Grid, dtype: Any = None) -> Cyclic:
        """A copy over a grid, which routines may overwrite."""
        local = self.local.astype(dtype or self.dtype, copy=False)
        return grid.taken(local, self.tiles.layout) if self.tiles else grid.spread(local, self.rows)


def _given(called: str, a: Block | Tiles, block: int) -> _Given:
    from fairlead.bridge.layout import BlockRows, gathered_rows
    from fairlead.bridge.linalg.blacs import library
    from fairlead.bridge.linalg.matrix import Matrix, real

    if isinstance(a, Block) and a.sparse:
        size, remedy = (
            f"{a.shape[0]} × {a.shape[1]}",
            "call the library slepc, which keeps it sparse",
        )
        raise fail("bridge-sparse", called=called, size=size, remedy=remedy)
    if block < 1:
        raise fail("bridge-value", called=called, name="block", value=block, least=1)
    library()
    if isinstance(a, Tiles):
        local = a.local.astype(real(a.local.dtype), copy=False)
        return _Given(local, BlockRows.even(a.shape[0], a.comm.size), a)
    local = Matrix(a).local
    return _Given(local, gathered_rows(local, a.comm))


def _turned(a: Block | Tiles, transposed: bool) -> tuple[int, int]:
    return (a.shape[1], a.shape[0]) if transposed else a.shape


def _unfit(called: str, a: Block | Tiles, b: Block | Tiles, inner: int, rows: int) -> NoReturn:
    sizes = [f"{block.shape[0]} × {block.shape[1]}" for block in (a, b)]
    raise fail("bridge-shapes", called=called, a=sizes[0], b=sizes[1], inner=inner, rows=rows)


def _square(called: str, a: Block | Tiles) -> None:
    if a.shape[0] != a.shape[1]:
        raise fail("bridge-square", called=called, rows=a.shape[0], columns=a.shape[1])


def _done(routine: str, info: int) -> None:
    if info:
        raise fail("bridge-info", routine=routine, info=info)
