"""Memory that a sender on the same node writes its rows into: the rank maps it as its block, and copies nothing.

It is a memfd of the rank, which allocates it and so is charged for it. The sender writes by its descriptor; once it has
ended, the file is sealed, so that no other process can change or cut what the rank has mapped.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import weakref
from collections.abc import Iterator

import numpy as np

from fairlead.base.errors import fail
from fairlead.bridge.arrow import PIECE_BYTES, Form, Piece, check_end
from fairlead.bridge.wire import END, PLACED, Connection, WireError

_FIRST_BYTES = 1 << 20  # for a sender that has little
_WINDOW_BYTES = 2 * PIECE_BYTES  # that a sender may be ahead; they are allocated
_STEP_BYTES = 32 << 20
_NOEXEC = 0x8  # MFD_NOEXEC_SEAL; Linux 6.3


def of(form: Form) -> Region | None:
    """Memory for the rows of a stream; None where this system has none, or no more descriptors."""
    for flags in (_NOEXEC, 0):
        try:
            return Region(os.memfd_create("fairlead-rows", flags | os.MFD_ALLOW_SEALING), form)
        except AttributeError:
            return None
        except OSError as exc:
            if exc.errno != errno.EINVAL:
                return None
    return None


class Region:
    """The memory of one stream.

    Attributes:
        rows: that are in it.
    """

    def __init__(self, fd: int, form: Form):
        self._fd, self._form = fd, form
        self._granted = self._size = self.rows = 0
        self.close = weakref.finalize(self, os.close, fd)

    @property
    def fd(self) -> int:
        return self._fd

    def pieces(self, connection: Connection, limit_s: float) -> Iterator[Piece]:
        """What a sender announces: pieces without numbers, and at its end one with this region.

        Raises:
            FairleadError: there is no memory.
            WireError: it is cut off, or its end disagrees with what came.
        """
        try:
            yield from self._pieces(connection, limit_s)
        except BaseException:
            self.close()
            raise

    def _pieces(self, connection: Connection, limit_s: float) -> Iterator[Piece]:
        while True:
            connection.grant(self._more())
            kind, value = connection.receive(limit_s)
            if kind == END:
                check_end(connection, value, self.rows, self._size)
                self._end(connection)
                yield Piece(0, region=self)
                return
            rows, rest = divmod(value, max(self._form.row_bytes, 1)) if kind == PLACED else (0, 1)
            if rest:
                raise WireError("bridge-garbled", who=connection.who, reason="it placed no rows")
            yield Piece(rows, bytes=value)
            self._size += value
            self.rows += rows

    def _more(self) -> int:
        """Allocates what the sender may write next; how many bytes."""
        ahead = min(_WINDOW_BYTES, max(_FIRST_BYTES, self._size))
        more = max(self._size + ahead - self._granted, 0)
        if more:
            try:
                os.posix_fallocate(self._fd, self._granted, more)
            except OSError as exc:
                raise fail("bridge-out-of-memory", who="a rank", reason=exc) from None
            self._granted += more
        return more

    def _end(self, connection: Connection) -> None:
        os.ftruncate(self._fd, self._size)
        fcntl.fcntl(self._fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        if (size := os.fstat(self._fd).st_size) != self._size:
            reason = f"{size} bytes are in its memory, not {self._size}"
            raise WireError("bridge-garbled", who=connection.who, reason=reason)

    def array(self) -> np.ndarray:
        """The rows, of which there are some: (rows, columns), which no other process can change; ends this region."""
        shape = (self.rows, self._form.cols)
        try:
            fcntl.fcntl(self._fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
        except OSError:  # the sender has mapped it
            copied = np.empty(shape, self._form.dtype)
            self.move_into(copied)
            return copied
        # Before Linux 6.7 a sealed file can be mapped only by a descriptor that cannot write.
        fd = os.open(f"/proc/self/fd/{self._fd}", os.O_RDONLY | os.O_CLOEXEC)
        try:
            mapped = mmap.mmap(fd, self._size, mmap.MAP_SHARED, mmap.PROT_READ)
        finally:
            os.close(fd)
            self.close()
        return np.frombuffer(mapped, self._form.dtype).reshape(shape)

    def move_into(self, out: np.ndarray) -> None:
        """Moves the rows, a few at a time, and returns their memory; ends this region.

        Args:
            out: (rows, columns), C-contiguous.
        """
        flat = out.reshape(-1).view(np.uint8)
        try:
            with mmap.mmap(self._fd, self._size) as mapped:
                for low in range(0, self._size, _STEP_BYTES):
                    high = min(low + _STEP_BYTES, self._size)
                    flat[low:high] = np.frombuffer(mapped, np.uint8, high - low, low)
                    mapped.madvise(mmap.MADV_REMOVE, low, high - low)
        finally:
            self.close()
