"""What Python adds to a timeline: start, steps, broadcasts, the clocks; and, without the core, the calls.

``FAIRLEAD_COMM_TIMELINE=FILE`` turns it on. Each rank appends a line an event to its own file beside
``FILE``, so that what was recorded is there however the rank ends; :mod:`fairlead.trace` reads those files.
Imported only where there is a timeline.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from fairlead.comm.backend import Backend

VARIABLE = "FAIRLEAD_COMM_TIMELINE"
# An exchange with rank 0 is repeated: the quickest is the truest.
_ROUNDS = 20
_MOST = 200_000  # events


class Timeline:
    """The file of one rank. The clock is CLOCK_MONOTONIC, in ns, as in the core."""

    def __init__(self, backend: Backend, environ: Mapping[str, str]):
        """Collective: rank 0 removes what an earlier run has left."""
        self.file = environ[VARIABLE]
        self._backend, self._lock = backend, threading.Lock()
        self._count = self._dropped = 0
        self._stepped, self._steps = 0, 0
        folder = f"{self.file}.parts"
        if backend.rank == 0:
            _emptied(folder)
        backend.barrier()
        path = f"{folder}/rank-{backend.rank:06d}.jsonl"
        try:
            os.makedirs(folder, exist_ok=True)  # noqa: PTH103, every rank would import pathlib for it
            self._out = os.open(
                path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o666
            )
        except OSError as exc:
            self._out = -1
            sys.stderr.write(
                f"fairlead.comm: rank {backend.rank} ({os.uname().nodename}) records no timeline: {exc}\n"
            )
        now = time.monotonic_ns()
        self._put({
            "rank": backend.rank, "size": backend.size, "host": os.uname().nodename, "reads": clock_name(),
            "wall_ns": time.time_ns() - now, "begun": now,
        })  # fmt: skip
        self._set_clocks()

    def began(self, begun: int, backend: str) -> None:
        """The start has lasted since ``begun``."""
        self._stepped = time.monotonic_ns()
        self.span("main", "init", "python", begun, self._stepped, {"backend": backend})

    def span(
        self,
        thread: str,
        name: str,
        kind: str,
        begin: int,
        end: int,
        args: Mapping[str, Any] = {},
        **more: Any,
    ) -> None:
        """Records what ``thread`` did; see :class:`fairlead.trace.Span`."""
        with self._lock:
            if self._count >= _MOST:
                self._dropped += 1
                return
            self._count += 1
        self._put(
            {
                "thread": thread,
                "name": name,
                "kind": kind,
                "begin": begin,
                "end": end,
                "args": dict(args),
                **more,
            }
        )

    @contextmanager
    def doing(self, name: str, args: Mapping[str, Any] = {}) -> Iterator[None]:
        """Records what is done within, in the row of the calling thread."""
        begin = time.monotonic_ns()
        try:
            yield
        finally:
            known = threading.current_thread() is threading.main_thread()
            thread = "main" if known else f"thread {threading.get_native_id()}"
            self.span(thread, name, "python", begin, time.monotonic_ns(), args)

    def step(self) -> None:
        """The gradients of a step have their means: it lasted since those of the one before."""
        now = time.monotonic_ns()
        self.span("steps", f"step {self._steps}", "step", self._stepped, now, {"step": self._steps})
        self._stepped, self._steps = now, self._steps + 1

    def end(self) -> None:
        """Puts the ranks' files together, on rank 0. Collective; what comes later is not recorded."""
        self._set_clocks()
        if self._dropped:
            self._put({"dropped": self._dropped})
        if self._out >= 0:
            os.close(self._out)
            self._out = -1
        self._backend.barrier()
        if self._backend.rank == 0:
            self._merge()
        self._backend.barrier()

    def _merge(self) -> None:
        from fairlead.findings import FairleadError
        from fairlead.trace import merge

        try:
            merged = merge(self.file)
            said = f"timeline: {merged.line()}" if merged else "timeline: no rank could record one"
        except FairleadError as exc:
            finding = exc.findings[0]
            said = f"{finding.what}: {finding.why}; {finding.remedy}"
        sys.stderr.write(f"fairlead.comm: {said}\n")

    def _set_clocks(self) -> None:
        """Measures, on the first rank of each clock that is not rank 0's, how far it is from that."""
        clocks = self._backend.allgather(clock_name())
        ask = [
            r for r, clock in enumerate(clocks) if clock != clocks[0] and clocks.index(clock) == r
        ]
        found = self._backend.clock_of_rank_0(ask, _ROUNDS)
        if found:
            self._put({"clock": found})

    def _put(self, said: Mapping[str, Any]) -> None:
        if self._out >= 0:
            try:
                os.write(
                    self._out, (json.dumps(said) + "\n").encode()
                )  # one write: threads do not mix
            except OSError:  # no room: what is there stays
                self._dropped += 1


def clock_name() -> str:
    """The same in processes that read one clock: of one start of a machine, in one namespace of time."""
    boot = space = "?"
    with suppress(OSError), open("/proc/sys/kernel/random/boot_id") as stream:
        boot = stream.read().strip()
    with suppress(OSError):
        space = os.readlink("/proc/self/ns/time")  # noqa: PTH115
    return f"{boot} {space}"


def _emptied(folder: str) -> None:
    try:
        for name in os.listdir(folder):  # noqa: PTH208
            if name.startswith("rank-") and name.endswith((".ring", ".jsonl")):
                os.unlink(f"{folder}/{name}")  # noqa: PTH108
    except FileNotFoundError:
        pass
    except OSError as exc:
        sys.stderr.write(f"fairlead.comm: timeline: {exc}\n")
