"""What a job script says, whoever reads it, and what a scheduler's module has to know."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from fairlead.base.errors import ExitCode, FairleadError, fail
from fairlead.launchers.model import Shape

_NAME = re.compile(r"[\w.@+:/-]+")


@dataclass(frozen=True)
class Array:
    """Several jobs by one script, told apart by an index.

    Attributes:
        limit: how many may run at once; 0 for all.
    """

    first: int
    last: int
    step: int = 1
    limit: int = 0


@dataclass(frozen=True)
class Job:
    """A job script before it is anybody's.

    Attributes:
        shape: ranks, nodes, time, account and partition.
        log: file for its output; the scheduler's own choice when empty.
        requeue: run it again when a node is lost.
        options: the user's further options for the scheduler, each with its value.
        modules: environment modules to load; ``-NAME`` unloads.
        exports: variables that the job needs as they are in this shell.
        launcher: kind of what starts the ranks; LSF's grammar depends on it.
        body: the line that runs the ranks.
        written_by: the command that wrote it.
        leading: the site's options for the scheduler, before all others.
    """

    shape: Shape
    body: str
    name: str = ""
    log: str = ""
    array: Array | None = None
    requeue: bool = False
    options: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    exports: tuple[tuple[str, str], ...] = ()
    launcher: str = ""
    written_by: str = ""
    leading: tuple[str, ...] = ()


class Scheduler(Protocol):
    """A scheduler's module."""

    kind: str
    sentinel: str  # what a line begins with that it reads
    submit: str  # the command that takes a script, which follows
    index: str  # the variable with the index of an array's job; empty where there are no arrays
    folder: str  # the variable with the folder it was sent from, where a job starts elsewhere

    def directives(self, job: Job) -> tuple[str, ...]:
        """The options of a script, without the sentinel; a pure function.

        Raises:
            FairleadError: exit code 2; it has no word for something.
        """


def array(text: str) -> Array:
    """``0-9``, ``1-99:2`` or ``1-100%8``.

    Raises:
        FairleadError: exit code 2.
    """
    match = re.fullmatch(r"(\d{1,9})-(\d{1,9})(?::(\d{1,9}))?(?:%(\d{1,9}))?", text)
    made = Array(*(int(part or 0) for part in match.groups())) if match else Array(1, 0)
    made = Array(made.first, made.last, made.step or 1, made.limit)
    if not match or made.last < made.first:
        raise fail(
            f"--array {text} is no range",
            where="--array",
            why="it is FIRST-LAST, the last not before the first, then :STEP and %MOST_AT_ONCE if wanted",
            remedy="--array 0-9, or --array 1-100:2%8",
            check="script",
            code=ExitCode.USAGE,
        )
    return made


def name(option: str, text: str) -> str:
    """A name as every scheduler takes it without quotes.

    Raises:
        FairleadError: exit code 2; it holds a blank, a quote or the like.
    """
    if text and not _NAME.fullmatch(text):
        raise fail(
            f"{option} {shlex.quote(text)}",
            where=option,
            why="a directive ends at a blank; a name has letters, digits and _ . @ + : / -",
            remedy="write it without blanks and quotes",
            check="script",
            code=ExitCode.USAGE,
        )
    return text


def lacks(kind: str, what: str, remedy: str) -> FairleadError:
    """The error of a scheduler that has no word for something."""
    return fail(
        f"a {kind} job cannot have {what}",
        where=f"--scheduler {kind}",
        why="its job scripts have no directive for it",
        remedy=remedy,
        check="script",
        code=ExitCode.USAGE,
    )


def leading(sites: Iterable[str], given: Iterable[str], partition: str) -> tuple[str, ...]:
    """The site's options without those that the user gives a value of one's own, by its name.

    >>> leading(("--partition=standard", "--qos=standard"), ("--qos=short",), "highmem")
    ()
    >>> leading(("-l filesystems=home",), ("-l place=pack",), "")
    ('-l filesystems=home',)
    """
    own = {_called(option) for option in given}
    if partition:
        own |= {"--partition", "-p", "--queue"}
    return tuple(option for option in sites if _called(option) not in own)


def _called(option: str) -> str:
    """``--qos=x`` as ``--qos``, ``-C gpu`` as ``-C``; ``-l`` and ``-R`` are told apart by what they ask for."""
    parts = re.split(r"[= \[]", option)
    return " ".join(parts[: 2 if parts[0] in ("-l", "-R") else 1])


def options(words: Iterable[str]) -> tuple[str, ...]:
    """A list of words as options, each with its value behind it.

    >>> options(("-C", "haswell", "--exclusive", "-l filesystems=home"))
    ('-C haswell', '--exclusive', '-l filesystems=home')
    """
    found: list[str] = []
    for word in words:
        if "\n" in word:
            raise fail(
                f"a directive is one line: {word!r}",
                where="--directive, or the site's profile",
                why="what follows the line's end would be no directive",
                remedy="give each option by a --directive of its own",
                check="script",
                code=ExitCode.USAGE,
            )
        if word.startswith("-") or not found:
            found.append(word)
        else:
            found[-1] += f" {word}"
    return tuple(found)
