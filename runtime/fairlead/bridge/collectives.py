"""Collectives of a run that the other ranks can leave when one of them has failed.

MPI cannot cancel a collective: a rank that raises leaves the others waiting in it for good. These wait for a
non-blocking one and look meanwhile whether the run is aborted. The communicator of an aborted run is given up.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

_SPIN_S = 0.002
_PAUSE_S = 0.0005
_MOST_BYTES = 1 << 30  # of one call: counts are 32-bit in MPI-3


class RunAborted(Exception):
    """Another rank of this run has failed."""


class Collectives:
    """What a function of a library says to the other ranks.

    Args:
        comm: an ``mpi4py`` communicator that nothing else uses.
        aborted: set when the run is to be left.
    Attributes:
        mpi: the communicator itself, for libraries that call MPI themselves. A rank that waits in it cannot leave a
            run that another has failed in.
        redistribute_s: seconds spent on moving matrices to other layouts.
    """

    def __init__(self, comm: Any, aborted: threading.Event | None = None):
        self.mpi = comm
        self.rank: int = comm.Get_rank()
        self.size: int = comm.Get_size()
        self._aborted = aborted or threading.Event()
        self.redistribute_s = 0.0
        self.abandoned: list[Any] = []  # requests of an aborted run, with their buffers

    def _finish(self, request: Any, *buffers: Any) -> None:
        begun = time.monotonic()
        while not request.Test():
            if self._aborted.is_set():
                self.abandoned.append((request, buffers))
                raise RunAborted
            if time.monotonic() - begun > _SPIN_S:
                time.sleep(_PAUSE_S)

    def check(self) -> None:
        """Leaves the run if another rank has failed; for loops without collectives.

        Raises:
            RunAborted: it has.
        """
        if self._aborted.is_set():
            raise RunAborted

    def barrier(self) -> None:
        """Waits until every rank is here."""
        self._finish(self.mpi.Ibarrier())

    def sum(self, array: Any) -> Any:
        """The sum over all ranks, in place.

        Args:
            array: any shape, C-contiguous; float or integer.
        Returns:
            The same array.
        """
        from mpi4py import MPI

        flat = array.reshape(-1)
        step = max(_MOST_BYTES // array.itemsize, 1)
        for begin in range(0, flat.size, step):
            part = flat[begin : begin + step]
            self._finish(self.mpi.Iallreduce(MPI.IN_PLACE, part), part)
        return array

    def sum_on(self, root: int, array: Any) -> Any:
        """The sum over all ranks, in place on one of them; what the others are left with is undefined."""
        from mpi4py import MPI

        flat = array.reshape(-1)
        step = max(_MOST_BYTES // array.itemsize, 1)
        for begin in range(0, flat.size, step):
            part = flat[begin : begin + step]
            out, into = (MPI.IN_PLACE, part) if self.rank == root else (part, None)
            self._finish(self.mpi.Ireduce(out, into, root=root), part)
        return array

    def maximum(self, array: Any) -> Any:
        """The largest over all ranks by element, in place."""
        from mpi4py import MPI

        self._finish(self.mpi.Iallreduce(MPI.IN_PLACE, array, op=MPI.MAX), array)
        return array

    def minimum(self, array: Any) -> Any:
        """The smallest over all ranks by element, in place."""
        from mpi4py import MPI

        self._finish(self.mpi.Iallreduce(MPI.IN_PLACE, array, op=MPI.MIN), array)
        return array

    def broadcast(self, array: Any, root: int) -> Any:
        """A rank's array on every rank, in place; all have the same shape and type."""
        flat = array.reshape(-1)
        step = max(_MOST_BYTES // max(array.itemsize, 1), 1)
        for begin in range(0, flat.size, step):
            part = flat[begin : begin + step]
            self._finish(self.mpi.Ibcast(part, root), part)
        return array

    def counts(self, number: int) -> list[int]:
        """A number of each rank."""
        every = np.zeros(self.size, np.int64)
        mine = np.array([number], np.int64)
        self._finish(self.mpi.Iallgather(mine, every), mine, every)
        return [int(n) for n in every]

    def stacked(self, rows: Any) -> Any:
        """The rows of all ranks, in the order of the ranks.

        Args:
            rows: (own rows, columns), of the same columns and type on every rank.
        """
        rows = np.ascontiguousarray(rows)
        width = int(np.prod(rows.shape[1:], dtype=np.int64))
        each = self.counts(rows.shape[0])
        every = np.empty((sum(each), *rows.shape[1:]), rows.dtype)
        begin = 0
        for root, number in enumerate(each):
            part = every[begin : begin + number]
            if root == self.rank:
                part[...] = rows
            if number and width:
                self.broadcast(part, root)
            begin += number
        return every

    def exchanged(self, parts: list[Any], counts: list[int]) -> list[Any]:
        """A 1-D array for each rank against one from each.

        Args:
            parts: for each rank; of one type.
            counts: how many elements come from each rank.
        """
        kind = parts[0].dtype
        received = [np.empty(number, kind) for number in counts]
        requests, kept = [], []
        step = max(_MOST_BYTES // kind.itemsize, 1)
        for rank in range(self.size):
            into, out = received[rank], np.ascontiguousarray(parts[rank])
            if rank == self.rank:
                into[...] = out
                continue
            for begin in range(0, into.size, step):
                requests.append(self.mpi.Irecv(into[begin : begin + step], rank))
            for begin in range(0, out.size, step):
                requests.append(self.mpi.Isend(out[begin : begin + step], rank))
            kept.append(out)
        for request in requests:
            self._finish(request, received, kept)
        return received

    def on(self, root: int, make: Callable[[], Any], like: Any) -> Any:
        """What one rank makes, on every rank.

        Args:
            like: an array of the shape and type of the result.
        """
        array = make() if self.rank == root else like
        return self.broadcast(np.ascontiguousarray(array, like.dtype), root)
