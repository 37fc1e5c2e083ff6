"""Helpers for probes: run several programs at once with a time limit, and read settings from files."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from typing import TypeVar

from fairlead.base.process import Ran
from fairlead.base.system import View

PATIENCE_S = 2.0  # a program; all that a probe asks are asked at once
_K = TypeVar("_K", bound=Hashable)
_T = TypeVar("_T")


def at_once(
    tasks: Mapping[_K, Callable[[], _T]], limit_s: float, longer_s: Mapping[_K, float] | None = None
) -> dict[_K, _T | BaseException]:
    """What each task returned or raised; omits tasks that did not end within ``limit_s``.

    Their threads are left behind: one that waits for a dead file system can be neither ended nor waited
    for, and must not hold up the end of the process either.

    Args:
        longer_s: other limits for some of them.
    """
    done: dict[_K, _T | BaseException] = {}

    def work(key: _K, task: Callable[[], _T]) -> None:
        try:
            done[key] = task()
        except BaseException as exc:
            done[key] = exc

    threads = {
        key: threading.Thread(target=work, args=(key, task), daemon=True)
        for key, task in tasks.items()
    }
    for thread in threads.values():
        thread.start()
    begun = time.monotonic()
    for key, thread in threads.items():
        until = begun + (longer_s or {}).get(key, limit_s)
        thread.join(max(0.0, until - time.monotonic()))
    return dict(done)


def answers(world: View, asked: Mapping[_K, Sequence[str]]) -> dict[_K, Ran]:
    """The results of programs; one that does not end in time has code 124."""

    tasks = {key: partial(world.ask, argv, PATIENCE_S) for key, argv in asked.items()}
    results = at_once(tasks, PATIENCE_S + 1)
    return {
        key: ran
        if isinstance(ran := results.get(key), Ran)
        else Ran(tuple(argv), 124, stderr=str(ran) if ran else "no end")
        for key, argv in asked.items()
    }


def words(ran: Ran) -> str:
    """The output of a program, from either stream; empty if it failed."""
    return "" if ran.returncode else f"{ran.stdout}\n{ran.stderr}"


def version(text: str, before: str = "") -> str:
    """The first text after ``before`` that looks like a version.

    >>> version("apptainer version 1.3.6-1.el8", "version")
    '1.3.6-1.el8'
    """
    match = re.search(rf"{before}\D{{0,20}}?(\d+\.\d+[\w.+~-]*)", text)
    return match[1].rstrip(".") if match else ""


def failed(ran: Ran) -> str:
    """Why a program's output is unusable."""
    shown = " ".join(ran.argv)
    if ran.returncode < 0:
        return f"`{shown}` was ended by signal {-ran.returncode}"
    if ran.returncode == 124:
        return (
            f"`{shown}`: {ran.stderr.strip().splitlines()[-1] if ran.stderr.strip() else 'no end'}"
        )
    lines = ran.tail.splitlines()
    return f"`{shown}` ended with code {ran.returncode}" + (f": {lines[-1][:120]}" if lines else "")


def settings(text: str, wanted: Sequence[str], separator: str = "=") -> dict[str, str]:
    """Some ``key = value`` lines of a file, without comments and quotes, the last of each.

    >>> settings('mount home = yes\\n# mount sys = no', ("mount home", "mount sys"))
    {'mount home': 'yes'}
    """
    values: dict[str, str] = {}
    for line in text.splitlines():
        key, mark, value = line.partition(separator)
        key = key.strip()
        if mark and key in wanted:
            values[key] = value.split(" #")[0].strip().strip("\"'")
    return values


def content(world: View, path: str) -> str:
    """A file's text without blanks around it; empty if it cannot be read."""
    return (world.read(path) or "").strip()


def first(world: View, *paths: str) -> str:
    """The first path that exists; empty if none does."""
    return next((path for path in paths if world.access(path, 0)), "")


def clear(path: str) -> str:
    """One line's worth of a value."""
    return " ".join(path.split())[:200]
