"""Dense rows of a sender on the same node: it passes them through a ring of shared memory, and the rank copies them to where
they stay.

The ring is a memfd of the rank. It is small, so that one side finds in the cache what the other has written, and its length
is sealed, so that the sender cannot cut what the rank has mapped. The rows stay in memory that only the rank has. To share
that would save a copy, but a memfd seldom has huge pages, and to allocate small ones takes longer than to copy.

What a matrix leaves is kept for the rows of the next one, marked as free, so that the system takes it when memory is short:
fresh pages are to be cleared, and in a virtual machine may cost faults of its host too.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import weakref
from collections.abc import Iterator
from contextlib import suppress

import numpy as np

from fairlead.base.errors import fail
from fairlead.bridge.arrow import Form, Piece, check_end
from fairlead.bridge.wire import END, PLACED, Connection, WireError

RING_BYTES = 4 << 20
_SMALL_BYTES = 8 << 20  # that have small pages: many streams of a few rows would waste huge ones
_STEP_BYTES = 32 << 20
_NOEXEC = 0x8  # MFD_NOEXEC_SEAL; Linux 6.3

_KEPT: list[mmap.mmap] = []  # no lock: a finalizer adds to it, in whatever thread


def of(form: Form) -> Region | None:
    """A place for the rows of a stream; None where this system has no such memory, or no more descriptors."""
    for flags in (_NOEXEC, 0):
        try:
            fd = os.memfd_create("fairlead-ring", flags | os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        except AttributeError:
            return None
        except OSError as exc:
            if exc.errno != errno.EINVAL:
                return None
        else:
            return Region(fd, form)
    return None


class Region:
    """The rows of one stream.

    Attributes:
        fd: of the ring, until the rows come.
        rows: that have come.
    """

    def __init__(self, fd: int, form: Form):
        self.fd, self._form = fd, form
        self._close = weakref.finalize(self, os.close, fd)
        self._size = self.rows = 0
        try:
            os.ftruncate(fd, RING_BYTES)
            seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
            ring = mmap.mmap(fd, RING_BYTES, mmap.MAP_SHARED, mmap.PROT_READ)
            self._ring = np.frombuffer(ring, np.uint8)
            self._block = mmap.mmap(-1, _SMALL_BYTES, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except OSError as exc:
            raise fail("bridge-out-of-memory", who="a rank", reason=exc) from None

    def pieces(self, connection: Connection, limit_s: float) -> Iterator[Piece]:
        """What a sender announces: pieces without numbers, and at its end one with this region.

        Raises:
            FairleadError: there is no memory.
            WireError: it is cut off, or its end disagrees with what came.
        """
        try:
            yield from self._pieces(connection, limit_s)
        finally:
            self._ring = np.empty(0, np.uint8)  # unmapped, however long the rows wait for the seal

    def _pieces(self, connection: Connection, limit_s: float) -> Iterator[Piece]:
        self._close()  # the sender has it
        row = max(self._form.row_bytes, 1)
        connection.grant(RING_BYTES)
        while True:
            kind, value = connection.receive(limit_s)
            if kind == END:
                break
            if kind != PLACED or not 0 < value <= RING_BYTES:
                raise WireError("bridge-garbled", who=connection.who, reason="it placed no rows")
            rows = (self._size + value) // row - self.rows
            yield Piece(rows, bytes=value)  # in the budget before it takes memory
            at = self._size % RING_BYTES
            self._keep(self._ring[at : at + value])
            self._keep(self._ring[: max(at + value - RING_BYTES, 0)])
            self.rows += rows
            connection.grant(value)
        check_end(connection, value, self.rows, self._size)
        if self._size % row:
            raise WireError("bridge-garbled", who=connection.who, reason="it placed half a row")
        with suppress(OSError, BufferError):  # memory that nothing was written to, or kept
            self._block.resize(max(self._size, 1))
        yield Piece(0, region=self)

    def _keep(self, part: np.ndarray) -> None:
        if self._size + part.size > len(self._block):
            self._grow()
        np.frombuffer(self._block, np.uint8, part.size, self._size)[:] = part
        self._size += part.size

    def _grow(self) -> None:
        if kept := _taken(len(self._block)):
            size = self._size
            np.frombuffer(kept, np.uint8, size)[:] = np.frombuffer(self._block, np.uint8, size)
            self._block = kept
            return
        try:
            self._block.resize(2 * len(self._block))  # address space; memory as it is written
        except (OSError, BufferError) as exc:
            raise fail("bridge-out-of-memory", who="a rank", reason=exc) from None
        with suppress(OSError, AttributeError):
            self._block.madvise(mmap.MADV_HUGEPAGE)

    def array(self) -> np.ndarray:
        """The rows: (rows, columns), read-only."""
        made = np.frombuffer(self._block, self._form.dtype, self.rows * self._form.cols)
        made.flags.writeable = False
        if len(self._block) > _SMALL_BYTES:
            weakref.finalize(made, _leave, self._block).atexit = False  # after its last view
        return made.reshape(self.rows, self._form.cols)

    def move_into(self, out: np.ndarray) -> None:
        """Moves the rows, a few at a time, and returns their memory.

        Args:
            out: (rows, columns), C-contiguous.
        """
        flat = out.reshape(-1).view(np.uint8)
        for low in range(0, self._size, _STEP_BYTES):
            high = min(low + _STEP_BYTES, self._size)
            flat[low:high] = np.frombuffer(self._block, np.uint8, high - low, low)
            self._block.madvise(mmap.MADV_DONTNEED, low, high - low)


def _leave(block: mmap.mmap) -> None:
    """Keeps the memory of a matrix that is gone."""
    with suppress(OSError, AttributeError):
        block.madvise(mmap.MADV_FREE)
        _KEPT.append(block)


def _taken(least: int) -> mmap.mmap | None:
    """The largest block that is kept, if it has more than ``least`` bytes."""
    for block in sorted(_KEPT, key=len, reverse=True):
        if len(block) <= least:
            break
        with suppress(ValueError):  # another thread has it
            _KEPT.remove(block)
            return block
    return None
