"""Starting a launcher so that nothing of it survives: a session of its own, orphans adopted, a
marker in the environment, and SIGKILL at the end.

A launcher's ranks are grandchildren behind proxies and container starters; when a proxy dies they
would be handed to init. As a *subreaper* (prctl(2)) this process inherits them instead, and finds
them by parentage or by the marker, whatever session or namespace they have gone into.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

MARKER = "FAIRLEAD_RUN_ID"
_PR_SET_CHILD_SUBREAPER = 36


def start(
    argv: Sequence[str],
    environ: Mapping[str, str],
    run_id: str,
    stdout: IO[bytes] | int | None = None,
    stderr: IO[bytes] | int | None = None,
    stdin: int | None = None,
) -> subprocess.Popen[bytes]:
    """Starts ``argv`` in a session of its own, marked with ``run_id``.

    Raises:
        OSError: the program cannot be executed.
    """
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    marked = {**environ, MARKER: run_id}
    return subprocess.Popen(
        list(argv), env=marked, stdout=stdout, stderr=stderr, stdin=stdin, start_new_session=True
    )


def end(process: subprocess.Popen[bytes], run_id: str, grace_s: float = 2.0) -> int:
    """Ends ``process`` and all that it started: SIGTERM, after ``grace_s`` SIGKILL.

    Returns:
        How many processes had to be killed.
    """
    if process.poll() is None:
        with contextlib.suppress(OSError):
            process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(grace_s)
    if process.poll() is not None and not _children():
        return 0  # every orphan would be ours by now
    killed = 0
    for _ in range(50):
        left = survivors(process.pid, run_id)
        if not left:
            break
        for pid in left:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
                killed += 1
        time.sleep(0.02)
    if process.poll() is None:
        process.kill()
        process.wait()
    return killed


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
        select.select([handle], [], [], seconds)
    finally:
        os.close(handle)
    return process.poll() is not None


def _children() -> list[int]:
    """This process's children, adopted ones included."""
    found: list[int] = []
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):
            found += map(int, (task / "children").read_text().split())
    return found


def survivors(launcher: int, run_id: str) -> list[int]:
    """Living processes of a run: descendants of ``launcher`` and whoever carries its marker."""
    parents: dict[int, int] = {}
    marked: set[int] = set()
    me = os.getpid()
    needle = f"{MARKER}={run_id}".encode()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        pid = int(entry.name)
        try:
            fields = (entry / "stat").read_bytes().rpartition(b")")[2].split()
            if fields[0] == b"Z":
                continue
            parents[pid] = int(fields[1])
            if pid != me and needle in (entry / "environ").read_bytes().split(b"\0"):
                marked.add(pid)
        except (OSError, IndexError):
            continue
    found = set(marked)
    if launcher in parents:
        found.add(launcher)
    grown = True
    while grown:
        more = {pid for pid, parent in parents.items() if parent in found and pid not in found}
        grown = bool(more)
        found |= more
    return sorted(found - {me})
