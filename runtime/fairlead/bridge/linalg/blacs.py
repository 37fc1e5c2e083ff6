"""ScaLAPACK by ctypes: its grid, matrices in its layout, and calls of its Fortran routines."""

from __future__ import annotations

import ctypes
import functools
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fairlead.base.errors import fail
from fairlead.bridge.collectives import Collectives
from fairlead.bridge.layout import BlockCyclic, BlockRows, from_cyclic, grid, to_cyclic

# Debian's names for the builds on either MPI, and the one of everybody else.
LIBRARIES = ("libscalapack-mpich.so.2.2", "libscalapack-openmpi.so.2.2", "libscalapack.so")
_MOST_VALUES = 2**31 - 1  # of a rank: it counts them in 32 bits


def is_available() -> bool:
    """Whether ScaLAPACK is here, on whatever MPI."""
    for name in LIBRARIES:
        with suppress(OSError):
            return bool(ctypes.CDLL(name))
    return False


@functools.cache
def library() -> ctypes.CDLL:
    """
    Raises:
        FairleadError: ScaLAPACK is not here, or is linked to another MPI than mpi4py.
    """
    from mpi4py import MPI

    reasons = []
    names = (
        LIBRARIES[1:] if "Open MPI" in MPI.Get_library_version() else (LIBRARIES[0], LIBRARIES[2])
    )
    for name in names:
        try:
            loaded = ctypes.CDLL(name)
        except OSError as exc:
            reasons.append(str(exc))
            continue
        mapped = {line.split()[-1] for line in Path("/proc/self/maps").read_text("utf-8").splitlines()
                  if re.search(r"/libmpi(ch|_abi)?\.so", line)}  # fmt: skip
        if len(mapped) != 1:
            raise fail("bridge-two-mpis", library=name, files=", ".join(sorted(mapped)))
        return loaded
    raise fail("bridge-absent", what="ScaLAPACK", library="scalapack", reason="; ".join(reasons))


def call(name: str, *values: Any) -> None:
    """A Fortran subroutine: numbers by reference, arrays by their address, letters with their length at the end."""
    given: list[Any] = []
    lengths: list[Any] = []
    for value in values:
        if isinstance(value, bytes):
            given.append(ctypes.c_char_p(value))
            lengths.append(ctypes.c_size_t(len(value)))
        elif isinstance(value, np.ndarray):
            given.append(ctypes.c_void_p(value.ctypes.data))
        else:
            given.append(ctypes.byref(ctypes.c_int(int(value))))
    routine = getattr(library(), f"{name}_")
    routine.restype = None
    routine(*given, *lengths)


@dataclass
class Cyclic:
    """A matrix over the grid.

    Attributes:
        local: this rank's part, in Fortran order.
        descriptor: ScaLAPACK's, int32[9].
    """

    layout: BlockCyclic
    local: Any
    descriptor: Any

    @property
    def words(self) -> tuple[Any, int, int, Any]:
        """As routines take a matrix: its array, the first row and column, the descriptor."""
        return self.local, 1, 1, self.descriptor


class Grid:
    """All ranks of a communicator as a grid that ScaLAPACK knows.

    Attributes:
        block: rows and columns of a block.
    """

    def __init__(self, comm: Collectives, block: int, context: int):
        self.comm, self.block, self._context = comm, block, context
        self.rows, self.columns = grid(comm.size)

    def _shaped(self, rows: int, columns: int) -> BlockCyclic:
        layout = BlockCyclic(rows, columns, self.block, self.rows, self.columns)
        height, width = layout.shape(0)  # the largest part
        if height * width > _MOST_VALUES:
            raise fail("bridge-too-large", values=height * width, most=_MOST_VALUES)
        return layout

    def empty(self, rows: int, columns: int, dtype: Any) -> Cyclic:
        """A matrix of zeros."""
        layout = self._shaped(rows, columns)
        return self._described(layout, np.zeros(layout.shape(self.comm.rank), dtype, order="F"))

    def spread(self, local: Any, rows: BlockRows) -> Cyclic:
        """A matrix in block rows, copied."""
        layout = self._shaped(rows.rows, local.shape[1])
        return self._described(layout, to_cyclic(local, rows, layout, self.comm))

    def taken(self, local: Any, layout: BlockCyclic) -> Cyclic:
        """A matrix that lies over a grid already, copied; a grid of other blocks is left first."""
        mine = self._shaped(layout.rows, layout.columns)
        if layout != mine:
            even = BlockRows.even(layout.rows, self.comm.size)
            return self.spread(from_cyclic(local, layout, even, self.comm), even)
        return self._described(mine, local.copy(order="F"))

    def _described(self, layout: BlockCyclic, local: Any) -> Cyclic:
        descriptor, info = np.zeros(9, np.int32), np.zeros(1, np.int32)
        height = max(local.shape[0], 1)
        call("descinit", descriptor, layout.rows, layout.columns, self.block, self.block, 0, 0,
             self._context, height, info)  # fmt: skip
        if not local.size:
            local = np.zeros((1, 1), local.dtype, order="F")
        return Cyclic(layout, local, descriptor)

    def gathered(self, matrix: Cyclic, rows: BlockRows) -> Any:
        """This rank's rows of a matrix of the grid."""
        shape = matrix.layout.shape(self.comm.rank)
        local = matrix.local if matrix.local.shape == shape else np.zeros(shape, matrix.local.dtype)
        return from_cyclic(local, matrix.layout, rows, self.comm)


@contextmanager
def blacs(comm: Collectives, block: int) -> Iterator[Grid]:
    """A grid of all ranks. A rank that leaves it by an exception leaves the others waiting in ScaLAPACK."""
    from mpi4py import MPI

    loaded, (down, across) = library(), grid(comm.size)
    pointer = MPI._sizeof(MPI.Comm) > ctypes.sizeof(ctypes.c_int)  # Open MPI's handles are
    kind: Any = ctypes.c_void_p if pointer else ctypes.c_int
    handle = loaded.Csys2blacs_handle(kind(MPI._handleof(comm.mpi)))
    context = ctypes.c_int(handle)
    loaded.Cblacs_gridinit(ctypes.byref(context), b"Row", down, across)
    try:
        yield Grid(comm, block, context.value)
    finally:
        loaded.Cblacs_gridexit(context)
        loaded.Cfree_blacs_system_handle(handle)


def worked(name: str, *values: Any, dtype: Any) -> int:
    """A routine whose last arguments are its work space, how large it is, and ``info``: asks first how much it needs.

    Args:
    Returns:
        ``info``.
    """
    info = np.zeros(1, np.int32)
    work = np.zeros(1, dtype)
    call(name, *values, work, -1, info)
    if info[0] == 0:
        size = int(work[0])
        size += size // 1024 + 1  # float32 has rounded it
        call(name, *values, np.zeros(size, dtype), size, info)
    return int(info[0])
