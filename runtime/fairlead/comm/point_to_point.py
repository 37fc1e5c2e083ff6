"""Messages from one rank to another: activations of a pipeline, gradients of workers that are out of step.

    links = comm.init().point_to_point()
    if links.rank == 0:
        links.send(activations, to=1)
    else:
        activations = links.recv(source=0)

A message is a header with dtype and shape, and the bytes of the array, so that a receiver can name what does not fit.
Messages between two ranks with the same tag arrive in the order in which they were sent. Every wait has a limit, and
ends sooner when the other rank is a process of this machine and has ended.
"""

# ruff: noqa: PTH115
# Every rank would import pathlib for it.

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from fairlead.base import proc_stat
from fairlead.base.errors import fail
from fairlead.comm.core import Array, bits_of, dtype_of_key, key_of

if TYPE_CHECKING:
    from fairlead.comm.backend import Backend, Request

LIMIT_S = 300.0
_HEADER = 256
_LOOKS = 4
_PIECE = 1 << 30  # MPI before 4.0 counts bytes in a C int
_SPIN_S, _LONGEST_SLEEP_S, _LOOK_S = 50e-6, 200e-6, 0.25
_AFTER_END_S = 0.5  # for what a rank has sent before it ended


class Place(NamedTuple):
    """Where a rank runs, for those that wait for it.

    Attributes:
        space: kernel and namespace in which ``pid`` counts.
        began: start of the process, so that a number which is used again is noticed.
    """

    host: str
    space: str
    pid: int
    began: str

    @classmethod
    def own(cls) -> Place:
        try:
            with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as stream:
                space = f"{stream.read().strip()} {os.readlink('/proc/self/ns/pid')}"
        except OSError:
            space = ""
        return cls(os.uname().nodename, space, os.getpid(), proc_stat.began(os.getpid()))

    def ended(self) -> bool:
        return proc_stat.began(self.pid) != self.began


class Sent:
    """A message that is being sent; its array must not change before :meth:`wait` has returned."""

    def __init__(self, wait: Callable[[float | None], None], requests: list[Request], *kept: Array):
        self._wait, self._requests, self._kept = wait, requests, kept

    def done(self) -> bool:
        """Whether the array may change."""
        while self._requests and self._requests[0].Test():
            self._requests.pop(0)
        return not self._requests

    def wait(self, limit_s: float | None = None) -> None:
        """Returns when the array may change.

        Raises:
            FairleadError: as :meth:`PointToPoint.send`.
        """
        if not self.done():
            self._wait(limit_s)


class PointToPoint:
    """Messages between ranks, made by :meth:`fairlead.comm.Comm.point_to_point`. For one thread at a time.

    Attributes:
        rank, size: as of the communicator that made it.
        limit_s: the longest wait for a message, in seconds, where a call names none: ``FAIRLEAD_COMM_TIMEOUT_S``, or
            300.
        waited_s: seconds that this rank has waited in calls.
    """

    def __init__(self, backend: Backend, environ: Mapping[str, str] = os.environ):
        """Collective."""
        self.rank, self.size = backend.rank, backend.size
        self.limit_s = float(environ.get("FAIRLEAD_COMM_TIMEOUT_S") or 0) or LIMIT_S
        self.waited_s = 0.0
        self._stall_s = float(environ.get("FAIRLEAD_COMM_STALL_S") or 20)
        self._link = backend.link()
        self._places = [Place(*each) for each in backend.allgather(tuple(Place.own()))]
        here = self._places[self.rank].space
        self._watched = [bool(here) and p.space == here and not p.ended() for p in self._places]
        self._under_way: list[Sent] = []

    def send(self, array: Array, to: int, tag: int = 0, limit_s: float | None = None) -> None:
        """Sends an array, and returns when it may change; a large one waits for its receiver.

        Args:
            array: any shape and plain dtype.
            tag: 0 or higher; a receiver names it.
            limit_s: the longest wait, in seconds.
        Raises:
            FairleadError: no such rank or tag; the receiver has ended, or did not receive within the limit.
        """
        self.isend(array, to, tag).wait(limit_s)

    def isend(self, array: Array, to: int, tag: int = 0) -> Sent:
        """:meth:`send` that returns at once."""
        self._check("send", to, tag)
        whole = np.ascontiguousarray(array).reshape(array.shape)
        header = np.zeros(_HEADER, np.uint8)
        text = f"{key_of(whole.dtype)} {' '.join(map(str, whole.shape))}".encode()
        if whole.dtype.hasobject or len(text) > _HEADER:
            raise fail("comm-message-array", dtype=whole.dtype, shape=whole.shape)
        header[: len(text)] = np.frombuffer(text, np.uint8)
        requests = [self._link.send(header, to, 2 * tag)]
        for piece in _pieces(whole):
            requests.append(self._link.send(piece, to, 2 * tag + 1))

        def wait(limit_s: float | None) -> None:
            self._wait(sent.done, to, f"rank {to} to receive tag {tag}", limit_s)

        sent = Sent(wait, requests, whole, header)
        # MPI reads the array until then, even if the caller drops what is returned.
        self._under_way = [each for each in self._under_way if not each.done()]
        self._under_way.append(sent)
        return sent

    def recv(
        self, source: int, tag: int = 0, out: Array | None = None, limit_s: float | None = None
    ) -> Array:
        """The next array that rank ``source`` sends with ``tag``.

        Args:
            out: an array to fill, of the dtype and shape that was sent.
            limit_s: the longest wait, in seconds.
        Returns:
            ``out``, or a new array.
        Raises:
            FairleadError: no such rank or tag; the sender has ended, or sent nothing with this tag within the limit;
                what it sent is not of the dtype and shape of ``out``, and is dropped.
        """
        self._check("recv", source, tag)
        what = f"rank {source} to send tag {tag}"
        self._wait(lambda: self._link.arrived(source, 2 * tag), source, what, limit_s)
        header = np.zeros(_HEADER, np.uint8)
        self._finish(self._link.receive(header, source, 2 * tag), source, what, limit_s)
        key, *dims = header.tobytes().rstrip(b"\0").decode().split()
        shape = tuple(map(int, dims))
        fits = out is not None and key_of(out.dtype) == key and out.shape == shape
        direct = fits and out is not None and out.flags.c_contiguous and out.flags.writeable
        target = out if direct and out is not None else np.empty(shape, dtype_of_key(key))
        for piece in _pieces(target):
            self._finish(self._link.receive(piece, source, 2 * tag + 1), source, what, limit_s)
        if out is None or direct:
            return target
        if not fits:
            raise fail(
                "comm-message-other-array", rank=source, host=self._places[source].host, tag=tag,
                sent=f"{dtype_of_key(key).name} {shape}", expected=f"{out.dtype.name} {out.shape}", me=self.rank,
            )  # fmt: skip
        np.copyto(bits_of(out), bits_of(target), casting="no")
        return out

    def arrived(self, source: int, tag: int = 0) -> bool:
        """Whether :meth:`recv` would find a message. Also drives what is being sent."""
        # MPI may take in one message a look, and count it from the next one on.
        return any(self._link.arrived(source, 2 * tag) for _ in range(_LOOKS))

    def flush(self, limit_s: float | None = None) -> None:
        """Returns when every array that was sent may change.

        Raises:
            FairleadError: as :meth:`send`.
        """
        for sent in self._under_way:
            sent.wait(limit_s)
        self._under_way = []

    def _finish(self, request: Request, source: int, what: str, limit_s: float | None) -> None:
        try:
            self._wait(request.Test, source, what, limit_s)
        except BaseException:
            request.Cancel()
            raise

    def _check(self, call: str, other: int, tag: int) -> None:
        if not 0 <= other < self.size:
            raise fail("comm-message-rank", rank=other, call=call, last=self.size - 1)
        highest = (self._link.highest_tag - 1) // 2
        if not 0 <= tag <= highest:
            raise fail("comm-message-tag", tag=tag, call=call, highest=highest)

    def _wait(
        self, ready: Callable[[], bool], other: int, what: str, limit_s: float | None
    ) -> None:
        if ready():
            return
        begun = time.monotonic()
        try:
            limit_s = self.limit_s if limit_s is None else limit_s
            self._wait_from(begun, ready, other, what, limit_s)
        finally:
            self.waited_s += time.monotonic() - begun

    def _wait_from(
        self, begun: float, ready: Callable[[], bool], other: int, what: str, limit_s: float
    ) -> None:
        host, look, stall, sleep_s = self._places[other].host, _LOOK_S, self._stall_s, 20e-6
        while not ready():
            waited = time.monotonic() - begun
            if waited > limit_s:
                raise fail(
                    "comm-message-late", me=self.rank, what=what, host=host, limit_s=f"{limit_s:g}"
                )
            if waited > look:
                look += _LOOK_S
                if self._gone(other, ready):
                    raise fail(
                        "comm-message-rank-ended", me=self.rank, what=what, rank=other, host=host
                    )
            if 0 < stall < waited:
                stall += self._stall_s
                text = f"rank {self.rank} has waited {waited:.0f} s for {what} ({host})"
                sys.stderr.write(f"fairlead.comm: {text}\n")
            if waited > _SPIN_S:
                time.sleep(sleep_s)
                sleep_s = min(1.2 * sleep_s, _LONGEST_SLEEP_S)

    def _gone(self, other: int, ready: Callable[[], bool]) -> bool:
        """Whether the rank has ended, and what it had sent before does not help."""
        if not self._watched[other] or not self._places[other].ended():
            return False
        late = time.monotonic() + _AFTER_END_S
        while time.monotonic() < late:
            if ready():
                return False
            time.sleep(_LONGEST_SLEEP_S)
        return True


def _pieces(array: Array) -> list[Array]:
    """The bytes of a contiguous array, in parts that MPI can count."""
    if not array.size:
        return []
    flat = array.reshape(-1).view(np.uint8)
    return [flat[start : start + _PIECE] for start in range(0, flat.size, _PIECE)]
