"""Runs other programs to completion: returns their output, or raises a finding that quotes it."""

from __future__ import annotations

import contextlib
import os
import resource
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fairlead.base.errors import fail

_PR_SET_PDEATHSIG = 1
# -P: modules come from where this process has them, never from the folder it stands in, where a user's json.py may be.
PYTHON = (sys.executable, "-P")


@dataclass(frozen=True)
class Ran:
    """The result of a program. ``returncode`` is 127 if the program does not exist."""

    argv: tuple[str, ...]
    returncode: int
    stdout: str = ""
    stderr: str = ""

    @property
    def tail(self) -> str:
        """The last lines of its output; those of standard error are preferred."""
        return "\n".join((self.stderr.strip() or self.stdout.strip()).splitlines()[-6:])


def run(
    argv: Sequence[str | Path],
    *,
    environ: Mapping[str, str] = os.environ,
    cwd: Path | None = None,
    timeout_s: float = 600.0,
) -> Ran:
    """Runs ``argv`` with nothing on its standard input, in the C locale, and waits for it."""
    words = tuple(str(word) for word in argv)
    try:
        done = subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            env={**environ, "LC_ALL": "C"},
            cwd=cwd,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Ran(words, 124, stderr=f"no end after {timeout_s:.0f} s")
    except OSError as exc:
        return _not_started(words, exc)
    return Ran(words, done.returncode, done.stdout, done.stderr)


def _not_started(words: tuple[str, ...], exc: Exception) -> Ran:
    """Of a program that is missing, or not executable, damaged, or has a null byte in its words."""
    return Ran(words, 127 if isinstance(exc, FileNotFoundError) else 126, stderr=str(exc))


def run_boxed(
    argv: Sequence[str | Path],
    *,
    environ: Mapping[str, str] = os.environ,
    timeout_s: float = 2.0,
    most_bytes: int = 1 << 20,
) -> Ran:
    """Like :func:`run`, for a program that may hang, print without end or leave children behind.

    It runs in a separate session, without a terminal to prompt on; when it exceeds the time or the output
    limit, its whole process group is killed. Processes that cannot be killed because they
    wait for a file system are not waited for. ``Popen.communicate`` would wait for children that keep the pipe open.

    Args:
        most_bytes: of its standard output and error together.
    """
    words = tuple(str(word) for word in argv)
    try:
        process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**environ, "LC_ALL": "C"},
            start_new_session=True,
        )
    except (OSError, ValueError) as exc:
        return _not_started(words, exc)
    try:
        out, err, why = _read_both(process, timeout_s, most_bytes)
    finally:
        # Also kills children that outlive it: the group's number cannot be reused until it is reaped.
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.5)
    if why:
        return Ran(words, 124, out, why)
    return Ran(words, process.returncode if process.returncode is not None else 124, out, err)


def _read_both(
    process: subprocess.Popen[bytes], timeout_s: float, most_bytes: int
) -> tuple[str, str, str]:
    """Standard output and error, and why reading stopped early; empty if it did not."""
    assert process.stdout and process.stderr
    until = time.monotonic() + timeout_s
    with process.stdout as out, process.stderr as err, selectors.DefaultSelector() as pipes:
        parts = {stream.fileno(): bytearray() for stream in (out, err)}
        for fd in parts:
            os.set_blocking(fd, False)
            pipes.register(fd, selectors.EVENT_READ)
        # Its end is enough: a child that holds the pipe, in a session of its own, may stay for ever. What
        # it wrote is in the pipe by then, however late we come to read it.
        while not (ended := _has_ended(process)) and time.monotonic() < until:
            if pipes.get_map():
                for key, _ in pipes.select(min(0.02, max(0.0, until - time.monotonic()))):
                    if not _drain(key.fd, parts[key.fd], most_bytes):
                        pipes.unregister(key.fd)
            else:
                time.sleep(0.002)
            if sum(map(len, parts.values())) > most_bytes:
                break
        for fd, part in parts.items():
            _drain(fd, part, most_bytes)
    out_text, err_text = (part.decode(errors="replace") for part in parts.values())
    if sum(map(len, parts.values())) > most_bytes:
        return out_text, err_text, f"it printed more than {most_bytes} bytes"
    return out_text, err_text, "" if ended else f"no end after {timeout_s:g} s"


def _drain(fd: int, part: bytearray, most_bytes: int) -> bool:
    """Reads the available output; returns whether more may follow."""
    while len(part) <= most_bytes:
        try:
            piece = os.read(fd, 1 << 16)
        except BlockingIOError:
            return True
        if not piece:
            return False
        part += piece
    return True


def _has_ended(process: subprocess.Popen[bytes]) -> bool:
    """Whether it ended, without reaping it: its number must not be reused before the group is killed."""
    return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def follow(
    argv: Sequence[str | Path],
    on_line: Callable[[str], None],
    *,
    environ: Mapping[str, str] = os.environ,
) -> Ran:
    """Like :func:`run` without a time limit; passes on each line as it arrives.

    Args:
        on_line: called with each line of standard output and error, which the result merges.
    """
    words = tuple(str(word) for word in argv)
    lines: list[str] = []
    try:
        process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env={**environ, "LC_ALL": "C"},
        )
    except OSError as exc:
        return Ran(words, 127, stderr=str(exc))
    with process:
        assert process.stdout
        for line in process.stdout:
            lines.append(line)
            on_line(line.strip())
    return Ran(words, process.returncode, "".join(lines))


def run_checked(
    argv: Sequence[str | Path],
    what: str,
    remedy: str,
    *,
    environ: Mapping[str, str] = os.environ,
    cwd: Path | None = None,
) -> str:
    """Like :func:`run`, but returns the standard output of a successful program.

    Args:
        what: the message if it fails, e.g. ``cannot unpack apptainer``.
        remedy: the next command to type if it fails.
    Raises:
        FairleadError: it ended with another code than 0.
    """
    return checked(run(argv, environ=environ, cwd=cwd), what, remedy)


def checked(ran: Ran, what: str, remedy: str) -> str:
    """The standard output of a successful program; raises as :func:`run_checked` does."""
    if ran.returncode:
        argv, output = " ".join(ran.argv), ran.tail
        raise fail("command-failed", what=what, ran=ran, argv=argv, output=output, remedy=remedy)
    return ran.stdout


def raise_open_files() -> None:
    """Lets this process open as many files as the hard limit allows: a connection for each rank may need more than the
    soft limit, often 1,024."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def open_files() -> tuple[int, int]:
    """How many files this process may have open: the soft limit and the hard one."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    soft, hard = (sys.maxsize if limit == resource.RLIM_INFINITY else limit for limit in limits)
    return soft, hard


def tied_to(parent: int, number: int = signal.SIGTERM) -> Callable[[], None]:
    """For a child to call: the kernel sends it a signal when its parent ends, also by SIGKILL.

    What a child between fork and exec must not do, load a library, is done here.

    Args:
        parent: the process that forks it; the child ends at once if that is gone already.
    """
    import ctypes

    prctl = ctypes.CDLL(None).prctl

    def tie() -> None:
        prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)

    return tie


def end_group(process: subprocess.Popen[bytes], patience_s: float) -> None:
    """Ends a child that leads a process group, and the group: SIGTERM, after ``patience_s`` SIGKILL."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(patience_s)
            break
