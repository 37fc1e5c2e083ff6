"""Buckets of torch's DistributedDataParallel: in memory that ranks of a node share, and in the background where it pays."""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fairlead.comm.frameworks import common
from fairlead.comm.overlap import Overlap

if TYPE_CHECKING:
    from fairlead.comm.core import Array, Comm

# DDP rebuilds its buckets once, at the start of its second step.
_FINAL_FROM = 3
_LEAST = 1 << 16  # bytes; smaller buckets go by one copy as fast
_PUNCH, _KEEP_SIZE = 2, 1  # FALLOC_FL_PUNCH_HOLE, FALLOC_FL_KEEP_SIZE


class Buckets:
    """The means of one communicator's buckets. Collective: DDP gives every rank the same buckets in the same order."""

    def __init__(self, ranks: Comm):
        self._ranks = ranks
        self._calls: dict[int, int] = {}  # by the first parameter's id
        self._overlap = Overlap(common.say if ranks.rank == 0 else lambda text: None)
        self._waiting: ThreadPoolExecutor | None = None

    def mean(self, bucket: Any, array: Callable[[], Array]) -> Any:
        """A future of the bucket's buffer, averaged in place.

        Args:
            array: gives the buffer's memory, which may have moved.
        """
        self._share(bucket)
        buffer, name = bucket.buffer(), f"bucket {bucket.index()}"
        future: Any = torch.futures.Future()
        if self._overlap.background:
            arrays = [array()]
            wait = common.start(self._ranks, arrays, [name])
            self._later(future, buffer, wait)
        else:
            common.aggregate(self._ranks, arrays := [array()], [name], arrays)
            future.set_result(buffer)
        measuring = bucket.is_last() and self._ranks.size > 1 and not self._overlap.decided
        if measuring and self._overlap.begin_step():
            self._overlap.settle(self._ranks)
        return future

    def _later(self, future: Any, buffer: Any, wait: Callable[[], list[Array]]) -> None:
        def finish() -> None:
            try:
                wait()
            except BaseException as exc:
                future.set_exception(exc)
            else:
                future.set_result(buffer)

        if self._waiting is None:
            self._waiting = ThreadPoolExecutor(1, "fairlead buckets")
        self._waiting.submit(finish)

    def _share(self, bucket: Any) -> None:
        """Moves the bucket's memory to where the ranks of the node add it in place, once it is where it stays."""
        storage = bucket.buffer().untyped_storage()
        parameter = bucket.parameters()[0]
        key = id(parameter)
        if key not in self._calls:
            weakref.finalize(parameter, self._calls.pop, key, None)
        self._calls[key] = calls = self._calls.get(key, 0) + 1
        if calls != _FINAL_FROM or storage.nbytes() < _LEAST or self._ranks.size == 1:
            return
        # torch maps memory of a file of its own, for which every view of the storage is as good; ours takes its place.
        able = (
            hasattr(storage, "_share_fd_cpu_")
            and not storage.is_shared()
            and room_for(storage.nbytes())
        )
        (count,) = self._ranks.sum([np.array([int(able)])])
        if int(count[0]) != self._ranks.size:
            return
        file, _ = storage._share_fd_cpu_()
        pages = -(-storage.nbytes() // mmap.PAGESIZE) * mmap.PAGESIZE
        free = self._ranks.share(storage.data_ptr(), pages)
        if free is None:
            return
        _empty(file, pages)
        # The memory must stay mapped for as long as the core knows it.
        weakref.finalize(parameter, _release, free, storage).atexit = False


def room_for(size: int) -> bool:
    """Whether shared memory has room for torch's copy: it does not check, and writing to a full one is a SIGBUS."""
    place = os.statvfs("/dev/shm")
    return place.f_bavail * place.f_frsize > 4 * size * (os.cpu_count() or 1)


def _empty(file: int, size: int) -> None:
    """Gives the pages of torch's file back, which nothing maps any more."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.fallocate(file, _PUNCH | _KEEP_SIZE, ctypes.c_int64(0), ctypes.c_int64(size))


def _release(free: Callable[[], None], storage: Any) -> None:
    free()
    del storage
