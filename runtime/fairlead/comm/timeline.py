"""The Python part of a timeline: start, steps and their parts, spans, clocks; without the core, also the calls.

``FAIRLEAD_COMM_TIMELINE=FILE`` turns it on. Each rank appends one line per event to its own file next to ``FILE``, so
that the record survives however the rank ends; :mod:`fairlead.trace.document` reads those files. Imported only if a
timeline is recorded.
"""

from __future__ import annotations

import errno
import json
import os
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from fairlead.base import proc_stat
from fairlead.base.comm_names import TIMELINE, TIMELINE_HOST
from fairlead.base.errors import fail
from fairlead.trace import spans
from fairlead.trace.spans import clock_name

if TYPE_CHECKING:
    from fairlead.comm.backend import Backend
    from fairlead.comm.core import Timings

# An exchange with rank 0 is repeated: the quickest is the most accurate.
_ROUNDS = 20
_MARKS = 64  # parts of one step


class Timeline:
    """The file of one rank. The clock is CLOCK_MONOTONIC, in ns, as in the core.

    It holds the last ``FAIRLEAD_COMM_TIMELINE_EVENTS`` events, or half as many: a full file replaces the older one,
    whose events are counted as dropped.
    """

    def __init__(self, backend: Backend, environ: Mapping[str, str]):
        """Collective: rank 0 removes the files of an earlier run."""
        self.file = environ[TIMELINE]
        self._backend, self._lock = backend, threading.RLock()
        self._most = _events(environ) // 2
        self._count = self._before = self._dropped = 0
        self._rows: dict[str, threading.Thread] = {}
        self._steps = self._begins = 0
        self._spent: Timings | None = None
        self._ends_by_itself = True
        folder = f"{self.file}.parts"
        if backend.rank == 0:
            _emptied(folder)
        backend.barrier()
        self._name = f"rank-{backend.rank:06d}.jsonl"
        self._folder = self._out = -1
        try:
            self._folder = _own(folder)
            self._open()
        except OSError as exc:
            sys.stderr.write(
                f"fairlead.comm: rank {backend.rank} ({os.uname().nodename}) records no timeline: {exc}\n"
            )
        now = time.monotonic_ns()
        self._head: list[dict[str, Any]] = []
        self._keep({
            "rank": backend.rank, "size": backend.size, "host": os.uname().nodename, "reads": clock_name(),
            "wall_ns": time.time_ns() - now, "begun": now,
        })  # fmt: skip
        self._borders, self._parts = [now], list[str]()
        self._set_clocks()
        spans.recorder = self.doing

    def began(self, begun: int, backend: str) -> None:
        """Records the start, from ``begun`` (ns) until now."""
        now = time.monotonic_ns()
        born = min(_born(now), begun)
        self.span("main", "start Python and import", "python", born, begun)
        self.span("main", "init", "python", begun, now, {"backend": backend})
        self._borders = [now]

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
        """Records what ``thread`` did; see :class:`fairlead.trace.parts.Span`."""
        self._add({
            "thread": thread, "name": name, "kind": kind, "begin": begin, "end": end, "args": dict(args), **more,
        })  # fmt: skip

    @contextmanager
    def doing(self, name: str, args: Mapping[str, Any] = {}) -> Iterator[None]:
        """Records the block as a span in the row of the calling thread."""
        row, begin = self._row(), time.monotonic_ns()
        try:
            yield
        finally:
            self.span(row, name, "python", begin, time.monotonic_ns(), args)

    def phases(self, step: int, parts: Sequence[str], borders: Sequence[int]) -> None:
        """Records a step and its parts, which follow each other.

        Args:
            borders: ns, ascending; one more than there are ``parts``.
        """
        self._add({"step": step, "parts": list(parts), "borders": list(borders)}, 1 + len(parts))

    def forward_apart(self, ns: int) -> None:
        """Records the duration of a forward pass alone, for steps that do not show their own."""
        self._keep({"forward_ns": ns})

    # Steps without measured borders: a front end marks what has ended, and the rest follows.

    def mark(self, part: str, at: int | None = None) -> None:
        """The training thread spent the time since the previous mark on ``part`` of a step."""
        with self._lock:
            now = max(time.monotonic_ns() if at is None else at, self._borders[-1])
            if len(self._parts) < _MARKS:
                self._borders.append(now)
                self._parts.append(part)
            else:  # such as a validation of many batches: merged into one part
                self._borders[-1], self._parts[-1] = now, "other"

    def open_step(self, spent: Timings) -> None:
        """A step begins here; it and all later ones end with :meth:`close_step`, not with the means of their
        gradients. The time before belongs to no step.

        Args:
            spent: this rank's time in collectives so far.
        """
        with self._lock:
            self._borders, self._parts, self._spent = [time.monotonic_ns()], [], spent
        self._ends_by_itself = False

    def close_step(self) -> None:
        """The step is over, and its update with it."""
        if self._parts:
            self.mark("update")
            self._write_step()

    def averaging(self, spent: Timings) -> None:
        """The gradients of a step are about to be averaged; without this call, that is derived from the time
        spent."""
        self.mark("other" if self._parts else "computing")
        self._spent, self._begins = spent, self._borders[-1]

    def averaged(self, spent: Timings) -> None:
        """The gradients of a step have their means."""
        now, last = time.monotonic_ns(), self._spent or type(spent)()
        waited = round(1e9 * (spent.wait_s - last.wait_s))
        took = waited + round(1e9 * (spent.move_s - last.move_s + spent.pack_s - last.pack_s))
        begun = self._begins or max(now - took, self._borders[-1])
        if not self._begins:
            self.mark("computing", begun)
        self.mark("idle", min(begun + waited, now))
        self.mark("exposed communication", now)
        self._spent, self._begins = spent, 0
        if self._ends_by_itself:  # it began with the means of the previous step
            self._write_step()

    def _write_step(self) -> None:
        self.phases(self._steps, self._parts, self._borders)
        self._borders, self._parts = self._borders[-1:], []
        self._steps += 1

    def end(self) -> None:
        """Puts the ranks' files together, on rank 0, unless the launching process does. Collective; what comes later
        is not recorded."""
        spans.recorder = None
        self._set_clocks()
        with self._lock:
            if self._out >= 0:
                os.close(self._out)
                self._out = -1
        self._backend.barrier()
        by_host = os.path.exists(f"{os.path.dirname(self.file)}/{TIMELINE_HOST}")  # noqa: PTH110, PTH120
        if self._backend.rank == 0 and not by_host:
            self._merge()
        self._backend.barrier()

    def _merge(self) -> None:
        from fairlead.base.errors import FairleadError
        from fairlead.trace.document import merge

        try:
            merged = merge(self.file)
            line = f"timeline: {merged.line()}" if merged else "timeline: no rank could record one"
        except FairleadError as exc:
            finding = exc.findings[0]
            line = f"{finding.what}: {finding.why}; {finding.remedy}"
        sys.stderr.write(f"fairlead.comm: {line}\n")

    def _set_clocks(self) -> None:
        """Measures, on the first rank of each clock that is not rank 0's, how far it is from that."""
        clocks = self._backend.allgather(clock_name())
        ask = [
            r for r, clock in enumerate(clocks) if clock != clocks[0] and clocks.index(clock) == r
        ]
        measured = self._backend.clock_of_rank_0(ask, _ROUNDS)
        if measured:
            self._keep({"clock": measured})

    def _row(self) -> str:
        """The calling thread's: its name, or that and its number, while another thread of that name lives."""
        mine = threading.current_thread()
        if mine is threading.main_thread():
            return "main"
        with self._lock:
            first = self._rows.setdefault(mine.name, mine)
            if first is not mine and not first.is_alive():
                first = self._rows[mine.name] = mine
        return mine.name if first is mine else f"{mine.name} {threading.get_native_id()}"

    def _add(self, event: Mapping[str, Any], events: int = 1) -> None:
        with self._lock:
            if self._count and self._count + events > self._most:
                self._turn()
            self._count += events
            self._put(event)

    def _turn(self) -> None:
        """A file is full: it becomes the older one, and the one that was is gone."""
        if self._out < 0:
            return
        try:
            os.close(self._out)
            self._out = -1
            older = self._name.removesuffix(".jsonl") + ".older.jsonl"
            os.replace(self._name, older, src_dir_fd=self._folder, dst_dir_fd=self._folder)
            self._dropped, self._before, self._count = (
                self._dropped + self._before,
                self._count,
                0,
            )
            self._open()
        except OSError:  # no room, or the folder is gone: what is there stays
            return
        for line in self._head:
            self._put(line)
        if self._dropped:
            self._put({"dropped": self._dropped})

    def _open(self) -> None:
        with suppress(FileNotFoundError):
            os.unlink(self._name, dir_fd=self._folder)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        self._out = os.open(self._name, flags, 0o600, dir_fd=self._folder)

    def _keep(self, event: dict[str, Any]) -> None:
        """A line that every file of this rank has."""
        with self._lock:
            self._head.append(event)
            self._put(event)

    def _put(self, event: Mapping[str, Any]) -> None:
        if self._out >= 0:
            with suppress(OSError):  # no room: what is there stays
                os.write(self._out, (json.dumps(event) + "\n").encode())


def _born(now: int) -> int:
    """When this process was started, by the clock that says ``now``; to a hundredth of a second, see proc(5)."""
    try:
        ticks = int(proc_stat.fields()[proc_stat.BEGAN])
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return now
    return now - max(round(1e9 * age), 0)


def _events(environ: Mapping[str, str]) -> int:
    name = f"{TIMELINE}_EVENTS"
    text = environ.get(name) or "100000"
    if not text.isdecimal() or int(text) < 2:
        raise fail("comm-timeline-events", name=name, text=text)
    return int(text)


def _own(folder: str) -> int:
    """A descriptor of that folder, made if need be. In a place such as /tmp others plant links: it must be ours.

    Raises:
        OSError: it cannot be made or opened, is a link, or belongs to another user.
    """
    with suppress(FileExistsError):
        os.makedirs(folder, 0o700)  # noqa: PTH103, every rank would import pathlib for it
    made = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    if os.fstat(made).st_uid != os.geteuid():
        os.close(made)
        raise PermissionError(errno.EPERM, "the folder belongs to another user", folder)
    return made


def _emptied(folder: str) -> None:
    try:
        parts = _own(folder)
    except OSError:
        return  # every rank says so
    try:
        for name in os.listdir(parts):  # noqa: PTH208
            if name.startswith("rank-") and name.endswith((".ring", ".jsonl")):
                os.unlink(name, dir_fd=parts)
    except OSError as exc:
        sys.stderr.write(f"fairlead.comm: timeline: {exc}\n")
    finally:
        os.close(parts)
