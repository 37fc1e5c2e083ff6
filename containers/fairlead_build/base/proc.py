"""Runs the tools of a build: nothing outlives the build, and a full disk is reported as such."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import tarfile
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import IO, Any

from fairlead.base.errors import FairleadError, fail

# Debian's names for what provides each tool.
PACKAGE = {
    "apt-get": "apt", "dpkg-deb": "dpkg", "mmdebstrap": "mmdebstrap", "setpriv": "util-linux",
    "tar2sqfs": "squashfs-tools-ng", "sqfs2tar": "squashfs-tools-ng", "unshare": "util-linux",
    "squashfuse_ll": "squashfuse", "newuidmap": "uidmap",
}  # fmt: skip

Watch = Callable[[subprocess.Popen[bytes]], AbstractContextManager[None]]

_PATIENCE_S = 20
_PIPE_BYTES = 1 << 20  # /proc/sys/fs/pipe-max-size
_MOST_SAID_BYTES = 64 << 10
# A command that a tool repeats may name a thousand packages.
_LINE_CHARACTERS = 600
# Free bytes below which a tool that failed had no room, whatever it says.
NEARLY_FULL = 16 << 20
_NO_SPACE = ("No space left on device", "Disk quota exceeded")


def tool(name: str) -> str:
    """The path of a program.

    Raises:
        FairleadError: it is not installed; the remedy installs it.
    """
    if path := tool_path(name):
        return path
    raise fail("tool-missing-not-installed", name=name, package=PACKAGE.get(name, name))


def tool_path(name: str) -> str | None:
    """The path of a program; None when it is not installed."""
    # Ordinary users rarely have /usr/sbin on their PATH.
    return shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin:/usr/lib/apt")


def clean_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """An environment in which tools give the same bytes everywhere."""
    return {
        "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": "/nonexistent",
        "LC_ALL": "C.UTF-8",
        "PYTHONHASHSEED": "0",
        **(extra or {}),
    }


@contextmanager
def child(
    argv: Sequence[str | os.PathLike[str]],
    *,
    env: Mapping[str, str] | None = None,
    stdin: int | IO[bytes] | None = subprocess.DEVNULL,
    stdout: int | IO[bytes] | None = subprocess.PIPE,
    stderr: int | IO[bytes] | None = subprocess.STDOUT,
    parting: str = "TERM",
) -> Iterator[subprocess.Popen[bytes]]:
    """A child process that ends with the block, and with this process even if that is killed.

    Args:
        parting: the signal that it gets when this process is killed.
    """
    # The kernel sends the signal when this process dies, so a `kill -9` leaves nothing running.
    command = [
        tool("setpriv"), "--pdeathsig", parting, tool(os.fspath(argv[0])),
        *(os.fspath(part) for part in argv[1:]),
    ]  # fmt: skip
    # A group of its own, which can be ended as a whole.
    process = subprocess.Popen(
        command, env=env, stdin=stdin, stdout=stdout, stderr=stderr, umask=0o022, process_group=0
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            _end(process)
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None and not pipe.closed:
                # Data that an ended child did not read is of no use.
                with suppress(BrokenPipeError):
                    pipe.close()


def enlarge(pipe: IO[bytes]) -> None:
    """Gives a pipe as much room as Linux grants without privileges: both ends switch 16 times less often."""
    with suppress(OSError):  # the user has many such pipes, and keeps the usual size
        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends a child and its group; it may clean up for ``_PATIENCE_S``."""
    deadline = time.monotonic() + _PATIENCE_S
    # The whole group, and again: some tools ignore the signal while a child of theirs works.
    while time.monotonic() < deadline:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(2)
            return
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def run(
    argv: Sequence[str | os.PathLike[str]],
    *,
    doing: str,
    remedy: str,
    env: Mapping[str, str] | None = None,
    stdin: bytes | None = None,
    on_line: Callable[[str], None] | None = None,
    watch: Watch | None = None,
) -> bytes:
    """Runs a tool to its end.

    Args:
        doing: what for, as in "cannot DOING".
        on_line: called with each line of stdout and stderr as it comes; without it, stdout is returned.
        watch: goes on while it runs, and may end it.
    Returns:
        stdout, empty with ``on_line``.
    Raises:
        FairleadError: the tool failed; with its last lines.
    """
    if on_line is not None:
        tail: deque[str] = deque(maxlen=12)
        with child(argv, env=env) as process, (watch or nullcontext)(process):
            assert process.stdout is not None
            for raw in process.stdout:
                line = raw.decode("utf-8", "replace").rstrip()
                tail.append(line)
                on_line(line)
            code = process.wait()
        if code:
            raise tool_failed(argv, code, "\n".join(tail), doing, remedy)
        return b""
    given = subprocess.DEVNULL if stdin is None else subprocess.PIPE
    with (
        child(argv, env=env, stdin=given, stderr=subprocess.PIPE) as process,
        (watch or nullcontext)(process),
    ):
        out, err = process.communicate(stdin)
    if process.returncode:
        raise tool_failed(argv, process.returncode, err.decode("utf-8", "replace"), doing, remedy)
    return out


@contextmanager
def piped(
    argv: Sequence[str | os.PathLike[str]],
    *,
    doing: str,
    remedy: str,
    env: Mapping[str, str] | None = None,
) -> Iterator[IO[bytes]]:
    """The stdout of a tool, to be read to its end in the block.

    It may end the block with a ``tarfile.TarError``: what the tool says explains it.

    Raises:
        FairleadError: the tool failed, or the block could not read what came.
    """
    with complaints() as errors, child(argv, env=env, stderr=errors) as process:
        assert process.stdout is not None
        enlarge(process.stdout)
        unreadable = ""
        try:
            yield process.stdout
        except tarfile.TarError as exc:
            unreadable = str(exc)
            process.stdout.read()
        if (code := process.wait()) or unreadable:
            raise tool_failed(argv, code, last_of(errors) or unreadable, doing, remedy)


def complaints() -> IO[bytes]:
    """A file for what a tool writes on stderr. A pipe that nobody reads meanwhile would stop it: some write a line a file."""
    return tempfile.TemporaryFile()


def last_of(errors: IO[bytes]) -> str:
    """The end of what a tool wrote."""
    errors.seek(max(0, errors.seek(0, os.SEEK_END) - _MOST_SAID_BYTES))
    return errors.read().decode("utf-8", "replace")


def tool_failed(
    argv: Sequence[str | os.PathLike[str]], code: int, text: str, doing: str, remedy: str
) -> FairleadError:
    """The error of a tool that ended with ``code`` and printed ``text``."""
    name = Path(os.fspath(argv[0])).name
    if says_no_space(text):
        return no_space(doing)
    lines = [line for line in text.splitlines() if line.strip()][-12:]
    tail = "\n".join(
        line if len(line) <= _LINE_CHARACTERS else f"{line[:_LINE_CHARACTERS]} …" for line in lines
    )
    given: dict[str, Any] = {"doing": doing, "name": name, "status": abs(code), "remedy": remedy}
    given["why"] = f":\n{tail}" if tail else ""
    if code < 0:
        return fail("tool-failed-killed-signal", **given)
    return fail("tool-failed-ended-exit-code", **given)


def says_no_space(text: str) -> bool:
    """Whether a tool's output mentions a full disk."""
    return any(words in text for words in _NO_SPACE)


def no_space(doing: str, folder: Path | None = None) -> FairleadError:
    """A write failed on a full disk, although the estimate before the build held."""
    if folder is None:
        return fail("no-space-left-place-unknown", doing=doing)
    return fail("no-space-left-in-folder", doing=doing, folder=folder)
