"""Other programs, run to their end: what they said, or a finding that quotes it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fairlead.findings import fail


@dataclass(frozen=True)
class Ran:
    """A program that ended. ``returncode`` is 127 when there is no such program."""

    argv: tuple[str, ...]
    returncode: int
    stdout: str = ""
    stderr: str = ""

    @property
    def said(self) -> str:
        """The last lines of what it wrote, errors preferred."""
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
    except FileNotFoundError as exc:
        return Ran(words, 127, stderr=str(exc))
    except OSError as exc:  # not executable, or damaged
        return Ran(words, 126, stderr=str(exc))
    except subprocess.TimeoutExpired:
        return Ran(words, 124, stderr=f"no end after {timeout_s:.0f} s")
    return Ran(words, done.returncode, done.stdout, done.stderr)


def follow(
    argv: Sequence[str | Path],
    on_line: Callable[[str], None],
    *,
    environ: Mapping[str, str] = os.environ,
) -> Ran:
    """As :func:`run` without a time limit, and shows each line as it comes.

    Args:
        on_line: told each line of its standard output and error, which are one in the result.
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
    """As :func:`run`, and returns its standard output.

    Args:
        what: the sentence for the case that it fails, e.g. ``cannot unpack apptainer``.
        remedy: the next command to type then.
    Raises:
        FairleadError: it ended with another code than 0.
    """
    return checked(run(argv, environ=environ, cwd=cwd), what, remedy)


def checked(ran: Ran, what: str, remedy: str) -> str:
    """The standard output of a program that ended well; for the rest see :func:`run_checked`."""
    if ran.returncode:
        raise fail(
            what,
            where=" ".join(ran.argv),
            why=ran.said or f"it ended with code {ran.returncode} and said nothing",
            remedy=remedy,
            check="command-failed",
        )
    return ran.stdout
