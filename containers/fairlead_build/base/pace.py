"""A sender has to keep up a pace: one byte a second is never silent for long, and never ends either.

requests limits the time between two pieces only, and urllib3 waits for as many bytes as were asked for. Here the body is
taken as it comes, and the head of an answer has a time limit of its own.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import requests
from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool

from fairlead.base.errors import FairleadError, fail

LEAST = (
    1024  # bytes a second, of each WINDOW_S: a modem's; below it an image of 1 GB takes twelve days
)
WINDOW_S = 30.0
CHECK = "sender-too-slow"
HEAD_S = 60.0
_CHUNK = 1 << 18


def pieces(answer: requests.Response, where: str, size: int = _CHUNK) -> Iterator[bytes]:
    """The body of a streamed answer as it is sent, in pieces of ``size`` bytes at most; not decoded.

    Args:
        where: whose answer it is, for the error.
    Raises:
        FairleadError: fewer than :data:`LEAST` bytes a second came for :data:`WINDOW_S` seconds of waiting.
        requests.exceptions.ConnectionError: the connection was cut.
    """
    waited, got = 0.0, 0
    while True:
        begun = time.monotonic()
        try:
            piece = answer.raw.read1(size, decode_content=False)
        except Exception as exc:  # urllib3's, ssl's and the socket's own
            raise requests.exceptions.ConnectionError(exc) from None
        if not piece:
            return
        # Only waiting counts: the caller may be slow.
        waited += time.monotonic() - begun
        got += len(piece)
        if waited >= WINDOW_S:
            if got < LEAST * waited:
                raise too_slow(where, got, waited)
            waited, got = 0.0, 0
        yield piece


@contextlib.contextmanager
def kept_up(process: subprocess.Popen[bytes], folder: Path, where: str) -> Iterator[None]:
    """Ends a downloader, a process with a group of its own, whose sender is below the pace.

    Senders that send nothing are left to its own time limits: it knows which of them it is connected to.

    Args:
        folder: what it writes to.
        where: its senders, for the error.
    Raises:
        FairleadError: more than nothing and fewer than :data:`LEAST` bytes a second came for :data:`WINDOW_S` seconds.
    """
    over = threading.Event()
    slow: list[FairleadError] = []

    def watch() -> None:
        read: dict[int, int] = {}
        begun, before = time.monotonic(), _received(process.pid, read, folder)
        while not over.wait(WINDOW_S / 30):
            now = _received(process.pid, read, folder)
            got, waited = now - before, time.monotonic() - begun
            if got >= LEAST * WINDOW_S:
                begun, before = time.monotonic(), now
            elif waited >= WINDOW_S and got <= 0:
                begun = time.monotonic()
            elif waited >= WINDOW_S:
                slow.append(too_slow(where, got, waited))
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGTERM)
                return

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
    if slow:
        raise slow[0]


def _received(group: int, read: dict[int, int], folder: Path) -> int:
    """Bytes that a group of processes has read and written so far.

    Connections that are encrypted are read in a way that the kernel does not count; what comes through them is written.

    Args:
        read: keeps the counts of its processes, also of those that have ended.
    """
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError, IndexError):
            if entry.name.isdigit() and os.getpgid(int(entry.name)) == group:
                text = (entry / "io").read_text("ascii")
                read[int(entry.name)] = int(text.split("rchar: ")[1].split()[0])
    written = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):
            written += path.lstat().st_size
    return written + sum(read.values())


def too_slow(where: str, got: int, waited: float) -> FairleadError:
    """The error of a sender below the pace."""
    return fail("sender-too-slow", where=where, got=got, waited=waited, least=LEAST)


class Paced(HTTPAdapter):
    """An adapter for which the head of an answer has to come within :data:`HEAD_S` seconds."""

    def init_poolmanager(self, *words: Any, **more: Any) -> None:
        super().init_poolmanager(*words, **more)
        self.poolmanager.pool_classes_by_scheme = _POOLS

    def proxy_manager_for(self, proxy: str, **more: Any) -> Any:
        manager = super().proxy_manager_for(proxy, **more)
        manager.pool_classes_by_scheme = _POOLS
        return manager


class _Timed:
    """A connection that is shut down where an answer's head takes too long; the reader then meets its end."""

    def getresponse(self) -> Any:
        late = threading.Event()

        def end() -> None:
            late.set()
            if (open_one := getattr(self, "sock", None)) is not None:
                with contextlib.suppress(OSError):  # it has ended by itself
                    open_one.shutdown(socket.SHUT_RDWR)

        timer = threading.Timer(HEAD_S, end)
        timer.daemon = True
        timer.start()
        answer = None
        try:
            answer = super().getresponse()  # type: ignore[misc]
        finally:
            timer.cancel()
            if late.is_set():  # a head that was cut looks complete to http.client
                raise TimeoutError(f"the head of its answer took over {HEAD_S:g} s") from None
        return answer


class _Connection(_Timed, HTTPConnection):
    pass


class _SecureConnection(_Timed, HTTPSConnection):
    pass


class _Pool(HTTPConnectionPool):
    ConnectionCls = _Connection


class _SecurePool(HTTPSConnectionPool):
    ConnectionCls = _SecureConnection


_POOLS = {"http": _Pool, "https": _SecurePool}
