"""Signals that a thread obeys, also while the main thread is inside a call of C; the standard library only."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import threading
import traceback
from collections.abc import Callable, Mapping


def follow(
    actions: Mapping[int, Callable[[], None]], on_any: Callable[[], None] = lambda: None
) -> None:
    """Has a thread call an action whenever its signal arrives. In the main thread only.

    Python's handler in C writes the signal's number to a socket at once; the thread waits at the other end.

    Args:
        on_any: called for every signal, also those that have another handler.
    """
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    for number in actions:
        signal.signal(number, lambda signum, frame: None)
    signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)

    def in_child() -> None:
        # A worker of multiprocessing has the same socket, and is ended by SIGTERM.
        signal.set_wakeup_fd(-1)
        for number in actions:
            signal.signal(number, signal.SIG_DFL)

    os.register_at_fork(after_in_child=in_child)

    def obey() -> None:
        kept = theirs  # or it would be closed
        while kept:
            for number in ours.recv(64):
                try:
                    on_any()
                    if number in actions:
                        actions[number]()
                except Exception:  # the disk is full, say: the next signal is obeyed all the same
                    traceback.print_exc()

    threading.Thread(target=obey, name="signals", daemon=True).start()


def die(number: int) -> None:
    """Ends this process by a signal, from any thread."""
    ctypes.CDLL(None).signal(number, 0)  # SIG_DFL, which Python sets in the main thread only
    os.kill(os.getpid(), number)
