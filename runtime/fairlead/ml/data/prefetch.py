"""Reads ahead: a thread makes the next batches while the current one is used."""

from __future__ import annotations

import queue
import threading
from collections.abc import Generator, Iterable
from typing import Any, TypeVar

from fairlead.trace.spans import span

T = TypeVar("T")

_END = object()


def prefetch(source: Iterable[T], depth: int = 2) -> Generator[T, None, None]:
    """The items of ``source``, of which up to ``depth`` are made in advance.

    The thread starts with the first item. Exceptions of ``source`` are raised here, in their place. When the iterator
    is closed or dropped, the thread ends and closes ``source``, after one item at most.

    >>> list(prefetch(range(5), depth=2))
    [0, 1, 2, 3, 4]
    """
    ready: queue.Queue[Any] = queue.Queue(max(depth, 1))
    stop = threading.Event()
    thread = threading.Thread(
        target=_fill, args=(source, ready, stop), name="fairlead-prefetch", daemon=True
    )
    thread.start()
    try:
        while True:
            item, error = ready.get()
            if error is not None:
                raise error
            if item is _END:
                return
            yield item
    finally:
        stop.set()
        while thread.is_alive():
            # Makes room for an item that the thread may be waiting to put.
            try:
                ready.get_nowait()
            except queue.Empty:
                thread.join(0.01)


def _fill(source: Iterable[Any], ready: queue.Queue[Any], stop: threading.Event) -> None:
    iterator = iter(source)
    try:
        while True:
            with span("make a batch"):
                item = next(iterator, _END)
            if item is _END:
                break
            with span("wait for the training"):
                ready.put((item, None))
            if stop.is_set():
                return
            del item  # otherwise a batch would be held until the next is made
        ready.put((_END, None))
    except BaseException as exc:
        ready.put((None, exc))
    finally:
        if close := getattr(iterator, "close", None):
            close()
