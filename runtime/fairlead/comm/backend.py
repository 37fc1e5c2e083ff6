"""What moves bytes between ranks: the interface that :class:`fairlead.comm.core.Comm` needs.

:mod:`fairlead.comm.mpi` implements it by mpi4py and for a single process, :mod:`fairlead.comm.external_backend` by
libraries of others. Only type checkers load this module.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt


class Request(Protocol):
    """A message under way, as mpi4py has it."""

    def Test(self) -> bool:
        """Whether it is complete; drives MPI."""

    def Cancel(self) -> None:
        """Gives up a receive."""


class Link(Protocol):
    """Messages between two ranks. Nothing here is collective, and nothing waits.

    Attributes:
        highest_tag: tags are 0 to this number.
    """

    highest_tag: int

    def send(self, buffer: npt.NDArray[np.uint8], to: int, tag: int) -> Request:
        """Starts to send ``buffer`` (1-D, contiguous), which must not change until it is complete."""

    def receive(self, buffer: npt.NDArray[np.uint8], source: int, tag: int) -> Request:
        """Starts to receive into ``buffer``, of the size that was sent."""

    def arrived(self, source: int, tag: int) -> bool:
        """Whether a message waits there."""


class Backend(Protocol):
    """What :class:`fairlead.comm.core.Comm` needs. Every method is collective but ``abort`` and ``link``."""

    name: str
    rank: int
    size: int
    local_rank: int

    def sum(self, buffer: npt.NDArray[Any]) -> None:
        """Replaces ``buffer`` (1-D, contiguous, integer, float or complex) by its sum over ranks."""

    def mean(self, buffer: npt.NDArray[Any]) -> None:
        """Replaces ``buffer`` (1-D, contiguous, float or complex) by its mean over ranks."""

    def largest(self, buffer: npt.NDArray[np.int64]) -> None:
        """Replaces ``buffer`` by its maximum over ranks, element by element."""

    def broadcast(self, buffer: npt.NDArray[np.uint8], root: int) -> None:
        """Replaces ``buffer`` by that of ``root``."""

    def allgather(self, value: Any) -> list[Any]:
        """The ``value`` (any small picklable object) of each rank, in rank order."""

    def gather(self, value: Any, root: int) -> list[Any] | None:
        """As ``allgather``, on ``root`` only; None elsewhere."""

    def barrier(self) -> None:
        """Returns when every rank has called it."""

    def abort(self, code: int) -> None:
        """Ends every rank now, with exit code ``code``."""

    def another(self) -> Backend:
        """The same ranks, with messages of their own."""

    def split(self, part: int) -> Backend:
        """The ranks that pass the same ``part``, in their order, with messages of their own."""

    def link(self) -> Link:
        """What sends from one rank to another; its messages are those of this backend."""

    def clock_of_rank_0(self, ask: Sequence[int], rounds: int) -> tuple[int, int, int] | None:
        """On the ranks in ``ask``: a time of CLOCK_MONOTONIC, the offset to rank 0's clock, and the duration of the
        quickest of ``rounds`` exchanges, in ns; the offset is off by half of that at most. None elsewhere."""

    def close(self) -> None:
        """Ends MPI."""
