"""Runs what is measured, and writes down where every process stands if it makes no progress, before it ends them.

A launch that stands still leaves nothing to look at once it is killed: which rank waited, in what, and on which core.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from benchmarks.result import RESULTS

QUIET_S = 60.0
_MARK = "FAIRLEAD_BENCH_RUN"
# Prints the stacks of all threads of a process, within seconds.
_STACKS = (
    ("gdb", "-batch", "-nx", "-ex", "thread apply all bt", "-p"),
    ("eu-stack", "-p"),
)


class Stuck(RuntimeError):
    """A launch printed nothing for too long; the message names the file about its processes."""


def run(
    argv: Sequence[str | os.PathLike[str]],
    env: Mapping[str, str],
    quiet_s: float = QUIET_S,
    folder: Path = RESULTS,
) -> str:
    """What the command prints, which has to be a line every ``quiet_s`` seconds.

    Raises:
        Stuck: it was not. Every process that it started is in a new file in ``folder``, and has been killed.
        RuntimeError: the command failed.
    """
    mark = uuid.uuid4().hex
    lines: list[str] = []
    heard = time.monotonic()
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            argv, env={**env, _MARK: mark}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors,
            text=True, start_new_session=True,
        )  # fmt: skip

        def read() -> None:
            nonlocal heard
            assert process.stdout
            for line in process.stdout:
                lines.append(line)
                heard = time.monotonic()

        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        while reader.is_alive() or process.poll() is None:
            reader.join(0.1)
            if time.monotonic() - heard > quiet_s:
                file = folder / f"stuck-{time.strftime('%Y%m%d-%H%M%S')}-{process.pid}.txt"
                file.write_text(_described(argv, lines, mark), "utf-8")
                _end(mark)
                process.wait()
                raise Stuck(
                    f"{argv[0]} printed nothing for {quiet_s:g} s: {file} has its processes"
                )
        errors.seek(0)
        output, said = "".join(lines), errors.read()
    if process.wait():
        raise RuntimeError(
            f"{argv[0]} ended with code {process.returncode}: {(said or output)[-1000:]}"
        )
    return output


def _processes(mark: str) -> Iterator[Path]:
    """Of /proc, those that were started with the mark, whatever their session."""
    wanted = f"{_MARK}={mark}".encode()
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if wanted in (entry / "environ").read_bytes().split(b"\0"):
                yield entry


def _described(argv: Sequence[str | os.PathLike[str]], lines: Sequence[str], mark: str) -> str:
    parts = [
        " ".join(str(word) for word in argv),
        f"load {os.getloadavg()}",
        "last lines:",
        *lines[-5:],
    ]
    for entry in sorted(_processes(mark), key=lambda path: int(path.name)):
        parts += [f"\n== process {entry.name}: {_text(entry / 'cmdline')}"]
        for thread in sorted((entry / "task").glob("*")):
            stat = _text(thread / "stat").rpartition(")")[2].split()
            state, core = (stat[0], stat[36]) if len(stat) > 36 else ("?", "?")
            wait = (
                f"{_text(thread / 'wchan') or '-'}; system call {_text(thread / 'syscall') or '?'}"
            )
            parts += [f"thread {thread.name}: {state}, last on core {core}, in {wait}"]
            parts += [kernel] if (kernel := _text(thread / "stack")) else []
        status = _text(entry / "status").splitlines()
        parts += [line for line in status if line.startswith(("Cpus_allowed_list", "State"))]
        parts += [_stacks(entry.name)]
    return "\n".join(parts) + "\n"


def _text(path: Path) -> str:
    try:
        return path.read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""


def _stacks(process: str) -> str:
    for words in _STACKS:
        if shutil.which(words[0]):
            with suppress(subprocess.TimeoutExpired):
                done = subprocess.run(
                    [*words, process], capture_output=True, text=True, timeout=30, check=False,
                )  # fmt: skip
                return done.stdout + done.stderr
    return "no stacks of its threads: neither gdb nor eu-stack is installed, or it took too long"


def _end(mark: str) -> None:
    """Kills them all; again, for a process may have started another meanwhile."""
    late = time.monotonic() + 10
    while time.monotonic() < late:
        alive = list(_processes(mark))
        if not alive:
            return
        for entry in alive:
            with suppress(OSError):
                os.kill(int(entry.name), signal.SIGKILL)
        time.sleep(0.05)
