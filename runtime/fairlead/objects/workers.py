"""Threads that move pieces, and what they may be asked again."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import TypeVar

from fairlead.objects.failures import Passing

T = TypeVar("T")
_POLL_S = 0.1
_TRIES = 5
_LONGEST_PAUSE_S = 8.0
_MOST = 32


def count() -> int:
    """How many threads move data: they wait for the network more than they compute."""
    return min(_MOST, max(8, 2 * len(os.sched_getaffinity(0))))


def tried_again(do: Callable[[], T], stop: threading.Event | None = None) -> T:
    """The result of ``do``, which is tried again where a store was busy or a connection was cut.

    Raises:
        Passing: it failed each time.
    """
    stop = stop or threading.Event()
    for n in range(_TRIES):
        try:
            return do()
        except Passing:
            if n + 1 == _TRIES or stop.is_set():
                raise
        stop.wait(min(_LONGEST_PAUSE_S, 0.1 * 2**n) * (0.5 + random.random()))
    raise AssertionError("unreachable")


def each(
    items: Iterable[T],
    do: Callable[[T, threading.Event], None],
    on_moved: Callable[[int], None],
    moved: Callable[[], int],
) -> None:
    """Calls ``do`` with each item in some threads. All end as soon as one fails.

    Args:
        do: also gets an event that is set when it is to end.
        on_moved: called from this thread every now and then with how many more bytes were moved.
        moved: how many bytes were, so far.
    """
    pending_items, lock, stop = iter(items), threading.Lock(), threading.Event()
    none = object()

    def work() -> None:
        while not stop.is_set():
            with lock:
                item = next(pending_items, none)
            if item is none:
                return
            do(item, stop)  # type: ignore[arg-type]

    reported = moved()
    with ThreadPoolExecutor(count()) as pool:
        pending = {pool.submit(work) for _ in range(count())}
        try:
            while pending:
                ended, pending = wait(pending, _POLL_S, FIRST_EXCEPTION)
                for thread in ended:
                    thread.result()
                now = moved()
                on_moved(now - reported)
                reported = now
        finally:
            stop.set()
