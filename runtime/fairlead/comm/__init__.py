"""Data-parallel collectives over NumPy arrays: what a training script needs of MPI, and no more.

    from fairlead import comm

    comm.init()
    comm.broadcast(weights, root=0, out=weights)   # every rank starts from rank 0's weights
    for batch in batches_of(comm.rank(), comm.size()):
        gradients = comm.aggregate(gradients_of(batch))    # mean over ranks, one fused buffer
        apply(gradients)
    assert comm.check_buffers_match(weights).matches
    comm.finalize()

The functions here act on the one communicator of this process. :mod:`fairlead.comm.core` holds the collectives over
mpi4py (:mod:`fairlead.comm.mpi`), :mod:`fairlead.comm.native_core` those of the native core,
:mod:`fairlead.comm.backends` declares these and other libraries, and :mod:`fairlead.comm.startup` takes one. Only the
standard library, NumPy and mpi4py are imported, none of the latter two before :func:`init`: command line and
declarations of backends must be readable on login nodes without them.

The names and their meaning follow the Cray PE DL plugin (``init``, ``broadcast``, ``gradients``,
``average``, ``check_buffers_match``, ``barrier``, ``finalize``), so that scripts carry over.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fairlead.base.errors import fail

if TYPE_CHECKING:
    from fairlead.comm.core import Array, BufferMatch, Comm, Pending, Timings
    from fairlead.trace.spans import span

__all__ = [
    "BufferMatch",
    "Comm",
    "Pending",
    "Timings",
    "aggregate",
    "average",
    "barrier",
    "broadcast",
    "check_buffers_match",
    "finalize",
    "gather",
    "init",
    "local_rank",
    "rank",
    "size",
    "span",
    "start",
    "zeros",
]

_comm: Comm | None = None
_finalized = False


_CLASSES = ("BufferMatch", "Comm", "Pending", "Timings")


def __getattr__(name: str) -> Any:
    if name in _CLASSES:
        from fairlead.comm import core

        return getattr(core, name)
    if name == "span":
        from fairlead.trace.spans import span  # a file that most runs at 10,000 ranks need not open

        return span
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def init() -> Comm:
    """Starts MPI unless it runs already, and returns this process's communicator. Calling it again is free.

    A process without a launcher and without an MPI library is rank 0 of 1. From here on an
    uncaught exception on any rank ends all ranks (``MPI_Abort``), so that none waits forever;
    ``sys.exit`` does not, so raise an exception where one rank has to give up.

    Raises:
        FairleadError: the launcher started more ranks than MPI can see (launcher and MPI are of
            different kinds), ranks were started but no MPI library can be loaded, or
            :func:`finalize` was called before.
    """
    global _comm
    if _comm is None:
        if _finalized:
            raise fail("comm-finalized-init")
        from fairlead.comm.startup import connected

        _comm = connected()
    return _comm


def rank() -> int:
    """This process, 0 to ``size() - 1``."""
    return init().rank


def size() -> int:
    """How many ranks there are."""
    return init().size


def local_rank() -> int:
    """This process among those that share its node's memory, from 0."""
    return init().local_rank


def broadcast(
    arrays: Sequence[Array], root: int = 0, out: Sequence[Array] | None = None
) -> list[Array]:
    """See :meth:`Comm.broadcast`."""
    return init().broadcast(arrays, root, out)


def aggregate(
    arrays: Sequence[Array],
    out: Sequence[Array] | None = None,
    compression: str | None = None,
) -> list[Array]:
    """See :meth:`Comm.aggregate`."""
    return init().aggregate(arrays, out, compression)


def start(
    arrays: Sequence[Array],
    out: Sequence[Array] | None = None,
    compression: str | None = None,
) -> Pending:
    """See :meth:`Comm.start`."""
    return init().start(arrays, out, compression)


def zeros(shape: int | Sequence[int], dtype: Any = "float32") -> Array:
    """See :meth:`Comm.zeros`."""
    return init().zeros(shape, dtype)


def average(value: float) -> float:
    """See :meth:`Comm.average`."""
    return init().average(value)


def gather(value: Any, root: int = 0) -> list[Any] | None:
    """See :meth:`Comm.gather`."""
    return init().gather(value, root)


def barrier() -> None:
    """See :meth:`Comm.barrier`."""
    init().barrier()


def check_buffers_match(arrays: Sequence[Array]) -> BufferMatch:
    """See :meth:`Comm.check_buffers_match`."""
    return init().check_buffers_match(arrays)


def finalize() -> None:
    """Ends MPI; every rank must call it, once. Before :func:`init` it does nothing.

    Raises:
        FairleadError: it was called before; another rank is in another call.
    """
    global _comm, _finalized
    if _finalized:
        raise fail("comm-finalized-twice")
    if _comm is not None:
        _comm.close()
        _comm, _finalized = None, True
