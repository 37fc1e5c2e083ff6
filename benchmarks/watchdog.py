"""Runs what is measured, and writes down where every process stands if it makes no progress, before it ends them.

A launch that stands still leaves nothing to look at once it is killed: which rank waited, in what, and on which core.
Shared memory of ranks that were killed here, or with the benchmark itself, is removed, at the latest by the next launch.
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
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from benchmarks.result import RESULTS
from fairlead.base.paths import cache_dir
from fairlead.launch import leftovers, shm_cleanup, stacks
from fairlead.launch.run_folder import new_run_folder

QUIET_S = 60.0
MARK = "FAIRLEAD_BENCH_RUN"  # the variable by which processes of a launch are known
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
    with swept():
        return _watched(argv, env, quiet_s, folder)[0]


def seconds_of(argv: Sequence[str | os.PathLike[str]], env: Mapping[str, str]) -> float:
    """Wall time of a launch; as :func:`run`."""
    with swept():
        return _watched(argv, env, QUIET_S, RESULTS)[1]


@contextmanager
def swept(memory: Path = Path("/dev/shm")) -> Iterator[None]:
    """Shared memory of MPIs that is left of what was started within is removed: here, or where this process is
    killed too, by the next."""
    runs = new_run_folder(cache_dir())
    leftovers.clear_dead(runs.parent, memory)
    before = leftovers.begin(runs, memory)
    try:
        yield
    except BaseException:
        shm_cleanup.clear(before, memory)
        raise
    finally:
        leftovers.end(runs)


def _watched(
    argv: Sequence[str | os.PathLike[str]], env: Mapping[str, str], quiet_s: float, folder: Path
) -> tuple[str, float]:
    mark = uuid.uuid4().hex
    lines: list[str] = []
    begun, heard = time.perf_counter(), time.monotonic()
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            argv, env={**env, MARK: mark}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors,
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
        while True:
            reader.join(0.1)
            if not reader.is_alive():
                with suppress(subprocess.TimeoutExpired):
                    process.wait(0.1)
                    break
            if time.monotonic() - heard > quiet_s:
                file = describe(argv, lines, mark, folder)
                end(mark)
                process.wait()
                raise Stuck(
                    f"{argv[0]} printed nothing for {quiet_s:g} s: {file} has its processes"
                )
        took = time.perf_counter() - begun
        errors.seek(0)
        output, said = "".join(lines), errors.read()
    if process.wait():
        raise RuntimeError(
            f"{argv[0]} ended with code {process.returncode}: {(said or output)[-1000:]}"
        )
    return output, took


def _processes(mark: str) -> list[Path]:
    """Of /proc, those that were started with the mark, whatever their session, and those below them: an engine may hand
    no environment on."""
    wanted = f"{MARK}={mark}".encode()
    parents: dict[int, int] = {}
    found: set[int] = set()
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, IndexError, ValueError):
            parents[int(entry.name)] = int(_text(entry / "stat").rpartition(")")[2].split()[1])
            if wanted in (entry / "environ").read_bytes().split(b"\0"):
                found.add(int(entry.name))
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return [Path("/proc", str(pid)) for pid in sorted(found - {os.getpid()})]


def describe(
    argv: Sequence[str | os.PathLike[str]], lines: Sequence[str], mark: str, folder: Path
) -> Path:
    """A new file in ``folder`` about all processes of a launch; they go on."""
    file = folder / f"stuck-{time.strftime('%Y%m%d-%H%M%S')}-{mark[:8]}.txt"
    file.write_text(_described(argv, lines, _processes(mark)), "utf-8")
    return file


def _described(
    argv: Sequence[str | os.PathLike[str]], lines: Sequence[str], processes: Collection[Path]
) -> str:
    parts = [
        " ".join(str(word) for word in argv),
        f"load {os.getloadavg()}",
        "last lines:",
        *lines[-5:],
    ]
    for entry in processes:
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
    try:
        return "main thread: " + " < ".join(stacks.functions(int(process)))
    except (OSError, stacks.Unreadable) as exc:
        return f"no stacks of its threads: {exc}; neither gdb nor eu-stack is installed, or it took too long"


def end(mark: str) -> None:
    """Kills them all; again, for a process may have started another meanwhile."""
    late = time.monotonic() + 10
    while time.monotonic() < late:
        alive = _processes(mark)
        if not alive:
            return
        for entry in alive:
            with suppress(OSError):
                os.kill(int(entry.name), signal.SIGKILL)
        time.sleep(0.05)
