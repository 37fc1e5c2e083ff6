"""Another library beneath :class:`fairlead.comm.core.Comm`: the ranks agree by MPI, the library carries the buffers.

A :class:`Carrier` moves buffers, and need not notice that ranks differ: Horovod waits, others mix
gradients up. So every collective begins as in the reference, with an agreement by mpi4py, and the library
is called only then: with the same buffers on all ranks, in one order. Small values (numbers, objects,
digests) go by mpi4py.

:mod:`fairlead.comm.backends.horovod` and :mod:`fairlead.comm.backends.dl_comm` are carriers.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Protocol

from fairlead.base.comm_names import UNORDERED, is_ordered
from fairlead.base.errors import FairleadError, fail
from fairlead.comm.core import Array, Averaged, Comm, Pending, Timings
from fairlead.comm.startup import unavailable

if TYPE_CHECKING:
    from fairlead.comm.backend import Backend

MOST_ELEMENTS = 1 << 30  # MPI before 4.0 counts elements in a C int


class Carrier(Protocol):
    """What moves the buffers. Every method is collective, and may raise any exception of the library.

    Attributes:
        name: library and version.
        background: it may be called from a helper thread while the main one is in another call.
    """

    name: str
    background: bool

    def mean(self, buffer: Array, team: int) -> None:
        """Replaces ``buffer`` (1-D, contiguous, at most :data:`MOST_ELEMENTS` floats) by its mean over ranks.

        Args:
            team: calls of one team are sequential, those of two teams may be concurrent.
        """

    def broadcast(self, buffer: Array, root: int, team: int) -> None:
        """Replaces ``buffer`` (1-D bytes, contiguous, as many at most) by that of ``root``."""

    def barrier(self) -> None:
        """Returns when every rank has called it."""

    def close(self) -> None:
        """Ends the library; MPI is ended afterwards, by the caller."""


class Carried:
    """:class:`Backend` by a carrier, over the MPI that all ranks are connected by."""

    def __init__(self, mpi: Backend, carrier: Carrier, teams: Iterator[int] | None = None):
        self._mpi, self.carrier = mpi, carrier
        self._teams = itertools.count() if teams is None else teams
        self._team = next(self._teams)  # the same on all ranks, which make their teams in one order
        self.name = carrier.name
        self.rank, self.size, self.local_rank = mpi.rank, mpi.size, mpi.local_rank
        # What is small goes by MPI.
        self.sum, self.largest, self.allgather = mpi.sum, mpi.largest, mpi.allgather
        self.gather, self.abort, self.clock_of_rank_0 = mpi.gather, mpi.abort, mpi.clock_of_rank_0
        self.split, self.link = mpi.split, mpi.link

    def mean(self, buffer: Array) -> None:
        for part in parts(buffer):
            self._call(partial(self.carrier.mean, part, self._team))

    def broadcast(self, buffer: Array, root: int) -> None:
        for part in parts(buffer):
            self._call(partial(self.carrier.broadcast, part, root, self._team))

    def barrier(self) -> None:
        self._call(self.carrier.barrier)

    def another(self) -> Carried:
        return Carried(self._mpi.another(), self.carrier, self._teams)

    def close(self) -> None:
        self._call(self.carrier.close)
        self._mpi.close()

    def _call(self, call: Callable[[], None]) -> None:
        try:
            call()
        except FairleadError:
            raise
        except Exception as exc:
            why = f"{type(exc).__name__}: {exc}".strip().splitlines()[0]
            raise fail("comm-carrier-failed", name=self.name, rank=self.rank, why=why) from exc


class CarriedComm(Comm):
    """:class:`Comm` by a carrier; aggregations go on in the background where the carrier can."""

    def __init__(self, backend: Carried):
        """Collective."""
        super().__init__(backend)
        self._carried = backend
        # Background calls are in no order to those in front, so they have their own communicator.
        self._behind = Comm(backend.another()) if backend.carrier.background else None
        self._helper: ThreadPoolExecutor | None = None
        self._started: list[Future[list[Array]]] = []

    @property
    def timings(self) -> Timings:
        return self._spent + self._behind.timings if self._behind else self._spent

    def _means(self, call: Averaged, background: bool = False) -> Pending:
        if self._behind is None or not background:
            return super()._means(call, background)
        if self._helper is None:
            self._helper = ThreadPoolExecutor(1, "fairlead-comm")
        kept = call._replace(arrays=list(call.arrays))
        done = self._helper.submit(self._behind.aggregate, *kept)
        # `close` waits for those that the caller does not wait for, so that their errors are raised.
        self._started = [f for f in self._started if not f.done() or f.exception()]
        self._started.append(done)

        def wait() -> list[Array]:
            if done in self._started:
                self._started.remove(done)
            return done.result()

        return Pending(wait, done.done)

    def _another(self) -> Comm:
        return CarriedComm(self._carried.another())

    def close(self) -> None:
        for future in self._started:
            future.result()
        if self._helper is not None:
            self._helper.shutdown()
        super().close()


def connected(
    name: str, mpi: Backend, start: Callable[[], Carrier], environ: Mapping[str, str]
) -> Comm:
    """The ranks over the carrier that ``start`` makes; a single process without MPI needs none. Collective.

    Raises:
        FairleadError: it cannot be used here. Other ranks may wait in the library's start for one that has none;
            the exception ends them all.
    """
    if mpi.name.startswith("none"):
        return Comm(mpi)
    try:
        if is_ordered(environ):
            raise RuntimeError(UNORDERED)
        if hasattr(sys.modules.get(name), "__fairlead__"):
            raise RuntimeError(
                f"`{name}` is fairlead's stand-in in this program: leave that name out of install()"
            )
        carrier = start()
    except (ImportError, RuntimeError, OSError, AttributeError) as exc:
        reason = str(exc).strip() or type(exc).__name__
        raise unavailable(name, mpi, reason.splitlines()[0]) from exc
    return CarriedComm(Carried(mpi, carrier))


def parts(buffer: Array, most: int = MOST_ELEMENTS) -> Iterator[Array]:
    """``buffer`` (1-D) in views of at most ``most`` real numbers each; complex ones are two.

    >>> import numpy as np
    >>> [part.size for part in parts(np.zeros(5, np.complex64), 4)]
    [4, 4, 2]
    """
    whole = buffer.view(buffer.real.dtype)
    for start in range(0, whole.size, most):
        yield whole[start : start + most]
