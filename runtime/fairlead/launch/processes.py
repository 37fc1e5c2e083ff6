"""Starting a launcher so that nothing of it survives: its own session, orphans adopted, a
marker in the environment, and SIGKILL at the end; SIGTERM from the kernel when this process is
killed itself.

A launcher's ranks are grandchildren behind proxies and container starters; when a proxy dies they
would be handed to init. As a *subreaper* (prctl(2)) this process inherits them instead, and finds
them by parentage or by the marker, whatever session or namespace they have gone into. Parentage
alone must do for a process in its own user namespace, whose environment cannot be read.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import re
import resource
import select
import signal
import subprocess
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, NamedTuple

from fairlead.base.process import tied_to
from fairlead.engines.registry import ENGINES

MARKER = "FAIRLEAD_RUN_ID"


# The shells and the sed around an engine. A shell that is the program itself loads the witness, and is known by that.
_SHELLS = ("(?:ba|da)?sh$", "sed$")


# Names that a container engine's processes have, those of its file systems among them.
@functools.cache
def _engine_names(*more: str) -> re.Pattern[str]:
    names = dict.fromkeys(name for driver in ENGINES for name in driver.processes)
    return re.compile("|".join((*names, *more)), re.IGNORECASE)


# Clears up after a rank's container by itself, on whichever node (engine/podman.py).
_GUARD = "fairlead-guard"
_GUARD_S = 10.0
_PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True)
class Streams:
    """Where the launcher's standard streams go; None for this process's own."""

    stdout: IO[bytes] | int | None = None
    stderr: IO[bytes] | int | None = None
    stdin: int | None = None


INHERITED = Streams()


@dataclass(frozen=True)
class Started:
    """A running launcher.

    Attributes:
        before: the other children that this process had; they are none of the run's.
    """

    process: subprocess.Popen[bytes]
    run_id: str
    before: frozenset[int]


def start(
    argv: Sequence[str],
    environ: Mapping[str, str],
    run_id: str,
    streams: Streams = INHERITED,
    *,
    open_files: int = 0,
) -> Started:
    """Starts ``argv`` in its own session, marked with ``run_id``.

    Until :func:`end`, every new child of this process counts as one of the run: there is one
    launch at a time.

    Args:
        open_files: its soft limit of these, at most the hard one; 0 for this process's own.
    Raises:
        OSError: the program cannot be executed.
    """
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    marked = {**environ, MARKER: run_id}
    before = frozenset(_children())
    # `kill -9` of this process reaches no other session: the kernel ends the launcher then.
    tie = tied_to(os.getpid())

    def prepare() -> None:
        tie()
        if open_files:
            _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            resource.setrlimit(resource.RLIMIT_NOFILE, (open_files, hard))

    process = subprocess.Popen(
        list(argv),
        env=marked,
        stdout=streams.stdout,
        stderr=streams.stderr,
        stdin=streams.stdin,
        start_new_session=True,
        preexec_fn=prepare,
    )
    return Started(process, run_id, before)


def end(started: Started, grace_s: float = 2.0) -> int:
    """Ends the launcher and all that it started: SIGTERM, after ``grace_s`` SIGKILL; at once if 0.

    Returns:
        How many processes had to be killed.
    """
    process = started.process
    if process.poll() is None:
        with contextlib.suppress(OSError):
            process.send_signal(signal.SIGTERM if grace_s else signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(grace_s or 1.0)
    if process.poll() is not None and not _children():
        return 0  # every orphan would be ours by now
    killed = 0
    until = time.monotonic() + _GUARD_S
    rounds = clear = 0
    while rounds < 50:
        left = survivors(started)
        # A process in the middle of exec shows no environment, and one whose parent has just ended no parent of
        # this run: one look without survivors can have missed it.
        clear = 0 if left else clear + 1
        if clear == 2:
            break
        at_work = guards() & set(left) if time.monotonic() < until else set()  # others' run on
        # After the first round, processes other than a guard may be its children.
        doomed = [pid for pid in left if pid not in at_work] if not (at_work and killed) else []
        rounds += bool(doomed)
        for pid in doomed:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
                killed += 1
        time.sleep(0.02)
    if process.poll() is None:
        process.kill()
        process.wait()
    for pid in set(_children()) - started.before - {process.pid}:
        with contextlib.suppress(OSError):
            os.waitpid(pid, os.WNOHANG)  # the dead among the adopted
    return killed


def guards() -> set[int]:
    """Processes that clean up after a container, with those they have started for it."""
    return _guards_among(list(_living("")))


def _guards_among(living: Sequence[_Process]) -> set[int]:
    return _with_descendants({p.pid for p in living if p.name == _GUARD}, living)


def _with_descendants(pids: set[int], living: Sequence[_Process]) -> set[int]:
    while more := {p.pid for p in living if p.parent in pids} - pids:
        pids |= more
    return pids


def wait(process: subprocess.Popen[bytes], seconds: float) -> bool:
    """Waits at most ``seconds`` for a process's end, and notices it at once; True when it ended.

    ``Popen.wait`` with a time limit sleeps up to 50 ms between looks, which a launch would notice.
    """
    try:
        handle = os.pidfd_open(process.pid)
    except (OSError, AttributeError):  # a kernel before 5.3
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(seconds)
        return process.poll() is not None
    try:
        poll = select.poll()  # select knows no descriptor above 1023
        poll.register(handle, select.POLLIN)
        poll.poll(seconds * 1000)
    finally:
        os.close(handle)
    return process.poll() is not None


def survivors(started: Started) -> list[int]:
    """Living processes of a run: the launcher, processes that this one inherited since, those that carry
    the marker, and the descendants of all these."""
    me = os.getpid()
    living = [p for p in _living(started.run_id) if p.pid != me]
    pids = {p.pid for p in living if p.marked or (p.parent == me and p.pid not in started.before)}
    return sorted(_with_descendants(pids, living))


def of_run(run_id: str, more: Collection[int] = ()) -> list[int]:
    """Living processes that carry a run's marker, descend from this process, or are among ``more``, with all their
    descendants: those of another user namespace may show no environment."""
    me = os.getpid()
    living = [p for p in _living(run_id) if p.pid != me]
    pids = {p.pid for p in living if p.marked or p.parent == me or p.pid in more}
    return sorted(_with_descendants(pids, living))


def signal_ranks(pids: Collection[int], number: int) -> int:
    """Sends a signal to those of a run's processes that are in a container, and have a handler for it.

    Of a process and those below it only the upper one gets it: torchrun ends its workers by itself, and a worker of a
    DataLoader that gets SIGTERM takes its trainer down before that has saved.

    Returns:
        How many they are.
    """
    machine = os.stat("/")  # noqa: PTH116
    living = list(_living(""))
    handling = set()
    for process in living:
        if process.pid not in pids or _engine_names().match(process.name):
            continue
        with contextlib.suppress(OSError):  # it has ended
            root = os.stat(f"/proc/{process.pid}/root/")  # noqa: PTH116
            outside = (root.st_dev, root.st_ino) == (machine.st_dev, machine.st_ino)
            if not outside and _catches(process.pid, number):  # else the launcher, or an engine
                handling.add(process.pid)
    parents = {process.pid: process.parent for process in living}
    sent = 0
    for pid in handling:
        above = parents[pid]
        while above in parents and above not in handling:
            above = parents[above]
        if above not in handling:
            with contextlib.suppress(OSError):
                os.kill(pid, number)
                sent += 1
    return sent


def _catches(pid: int, number: int) -> bool:
    """Whether a process has a handler for a signal. Source: proc_pid_status(5), SigCgt."""
    status = Path(f"/proc/{pid}/status").read_text("utf-8", "replace")
    caught = re.search(r"^SigCgt:\s*([0-9a-f]+)$", status, re.MULTILINE)
    return caught is not None and bool(int(caught[1], 16) >> (number - 1) & 1)


def runs_in_container() -> bool:
    """Whether a program runs below a container engine that this process has started, on this node.

    An engine's own processes, the file systems it mounts among them, do not count. Recognised by names
    alone: what is in another user namespace shows no more.
    """
    outside = _engine_names(*_SHELLS)
    living = {p.pid: p for p in _living("")}
    holders = _guards_among(list(living.values()))  # of a container that ranks are to join
    for process in living.values():
        if process.pid in holders:
            continue
        if outside.match(process.name):
            continue
        above, below_engine = living.get(process.parent), False
        while above is not None and above.pid != os.getpid():
            below_engine = below_engine or bool(outside.match(above.name))
            above = living.get(above.parent)
        if above is not None and below_engine:
            return True
    return False


def _children() -> list[int]:
    """This process's children, adopted ones included."""
    try:
        tasks = list(Path("/proc/self/task").iterdir())
        return [
            int(pid) for task in tasks for pid in (task / "children").read_text("utf-8").split()
        ]
    except OSError:  # a thread has just ended, or a kernel without CONFIG_PROC_CHILDREN
        return [p.pid for p in _living("") if p.parent == os.getpid()]


class _Process(NamedTuple):
    pid: int
    parent: int
    name: str
    marked: bool


def _living(run_id: str) -> Iterator[_Process]:
    """Every process that is not a zombie; ``marked`` when it carries ``run_id``."""
    needle = f"{MARKER}={run_id}".encode()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            name, _, rest = (entry / "stat").read_bytes().rpartition(b")")
            fields = rest.split()
            if fields[0] == b"Z":
                continue
        except (OSError, IndexError):
            continue  # it has just ended
        marked = False
        with contextlib.suppress(OSError):
            marked = needle in (entry / "environ").read_bytes().split(b"\0")
        comm = name.partition(b"(")[2].decode(errors="replace")
        yield _Process(int(entry.name), int(fields[1]), comm, marked)
