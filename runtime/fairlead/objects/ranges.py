"""Bytes of an object by ranges: as they come, or as a file that programs read here and there."""

from __future__ import annotations

import io
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from fairlead.base.errors import FairleadError, fail
from fairlead.objects import workers
from fairlead.objects.failures import passing
from fairlead.objects.model import PART, Body, Object, Store
from fairlead.objects.url import hidden


@contextmanager
def whole(store: Store, each: Object, start: int, end: int) -> Iterator[Body]:
    """An answer that has all bytes of a range, of the object that was listed; else its chunks end with an error.

    Raises:
        FairleadError: the object has another size now, the answer was cut, or the store fails.
    """
    with store.read(each, start, end) as body:
        if body.size != each.size:
            place, reason = hidden(str(store.url.below(each.name))), f"it has {body.size} bytes now"
            raise fail("object-changed", place=place, reason=reason)
        yield replace(body, chunks=_counted(body.chunks, end - start, store, each))


def _counted(chunks: Iterator[bytes], wanted: int, store: Store, each: Object) -> Iterator[bytes]:
    came = 0
    for chunk in chunks:
        came += len(chunk)
        yield chunk
    if came != wanted:
        raise passing(f"{came} of {wanted} bytes came", store.url, each.name)


class Ranged(io.RawIOBase):
    """An object as a file. What is read at once comes in pieces by several threads.

    A range cannot be compared with the checksum of its object: formats that have checksums inside are to use them.

    Attributes:
        name: its URL.
        failure: why a read has failed: libraries that call a file from C may show another error than the one raised.
    """

    def __init__(self, store: Store, each: Object):
        super().__init__()
        self._store, self._each, self._at = store, each, 0
        self.name = hidden(str(store.url.below(each.name)))
        self.failure: FairleadError | None = None

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._each.size}[whence]
        self._at = max(base + offset, 0)
        return self._at

    def size(self) -> int:
        return self._each.size

    def readinto(self, buffer: Any) -> int:
        """Reads from here on, as many bytes as fit.

        Raises:
            FairleadError: as :func:`whole`, after several tries.
        """
        view = memoryview(buffer).cast("B")
        begin = min(self._at, self._each.size)
        end = min(begin + len(view), self._each.size)

        def piece(start: int, stop: threading.Event) -> None:
            till = min(start + PART, end)
            into = view[start - begin : till - begin]
            workers.tried_again(lambda: self._fill(into, start, till), stop)

        try:
            if end - begin <= PART:
                if end > begin:
                    piece(begin, threading.Event())
            else:
                workers.each(range(begin, end, PART), piece, lambda count: None, lambda: 0)
        except FairleadError as exc:
            self.failure = exc
            raise
        self._at = end
        return end - begin

    def _fill(self, into: memoryview, start: int, end: int) -> None:
        at = 0
        with whole(self._store, self._each, start, end) as body:
            for chunk in body.chunks:
                into[at : at + len(chunk)] = chunk
                at += len(chunk)
