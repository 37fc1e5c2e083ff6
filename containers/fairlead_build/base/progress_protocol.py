"""Progress of a program that reports what it does in lines.

What runs inside a tree prints lines such as ``fairlead-stage`` TAB title TAB total TAB unit,
``fairlead-advance`` TAB amount and ``fairlead-note`` TAB text to stderr; :class:`Phases` turns them
into stages and keeps the last of all other lines, which explain a failure. ``fairlead-refused`` TAB finding
says what forbids it.
"""

from __future__ import annotations

import json
import os
import re
import selectors
import shutil
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NoReturn

from fairlead.base import bounded_json
from fairlead.base.errors import FairleadError, Finding, Severity
from fairlead.base.progress import Progress, Stage
from fairlead_build.base.proc import (
    NEARLY_FULL,
    enlarge,
    no_space,
    says_no_space,
    tool_failed,
)

CHUNK = 1 << 20
# What apt and dpkg say all the time.
_CHATTER = re.compile(
    r"Get:|Selecting |Preparing |Unpacking |Setting up |\(Reading|Fetched|I: |Processing "
)


class Phases:
    """Shows one stage after another, as the lines announce them.

    Args:
        folder: where the program writes.
    """

    def __init__(self, progress: Progress, folder: Path):
        self.progress, self.folder = progress, folder
        self.tail: deque[str] = deque(maxlen=25)
        self.no_space = False
        self.refusal: FairleadError | None = None
        self._open = ExitStack()
        self._stage: Stage | None = None
        self._title = ""

    @contextmanager
    def open(self) -> Iterator[None]:
        """Closes the last stage when the block ends; an exception marks it as failed."""
        with self._open:
            yield

    def feed(self, line: str) -> None:
        """Takes in one line."""
        word, *rest = line.split("\t")
        match word, rest:
            case "fairlead-stage", [title, total, unit]:
                self.enter(title, float(total) or None, unit)
            case "fairlead-advance", [amount]:
                self.advance(float(amount))
            case "fairlead-note", [text]:
                self.note(text)
            case "fairlead-refused", [finding]:
                self.refusal = FairleadError(Finding(Severity.ERROR, **bounded_json.loads(finding)))
            case _:
                if says_no_space(line):
                    self.no_space = True  # many lines may follow
                if line.strip() and not _CHATTER.match(line):
                    self.tail.append(line)
                    # Not every tool says why it could not write, and some make room before they end.
                    self.no_space |= shutil.disk_usage(self.folder).free < NEARLY_FULL

    def enter(self, title: str, total: float | None = None, unit: str = "") -> None:
        """Begins a stage, unless it is the present one."""
        if title == self._title:
            return
        self._open.close()
        self.tail.clear()
        self._stage = self._open.enter_context(self.progress.stage(title, total, unit))
        self._title = title

    def failed(
        self, argv: Sequence[str | Path], code: int, doing: str, remedy: str
    ) -> FairleadError:
        """The error of the program, which ended with ``code``."""
        if self.no_space:
            return no_space(doing, self.folder)
        if self.refusal is not None:
            return self.refusal
        return tool_failed(argv, code, "\n".join(self.tail), doing, remedy)

    def advance(self, amount: float) -> None:
        if self._stage is not None:
            self._stage.advance(amount)

    def note(self, text: str) -> None:
        if self._stage is not None:
            self._stage.note(text)


def stdout_of(process: subprocess.Popen[bytes], feed: Callable[[str], None]) -> Iterator[bytes]:
    """stdout in chunks, while stderr's lines go to ``feed``."""
    assert process.stdout is not None and process.stderr is not None
    out, err = process.stdout.fileno(), process.stderr.fileno()
    enlarge(process.stdout)
    rest = b""
    with selectors.DefaultSelector() as selector:
        selector.register(out, selectors.EVENT_READ)
        selector.register(err, selectors.EVENT_READ)
        while selector.get_map():
            for ready, _ in selector.select():
                data = os.read(ready.fd, CHUNK)
                if not data:
                    selector.unregister(ready.fd)
                elif ready.fd == out:
                    yield data
                else:
                    *lines, rest = (rest + data).split(b"\n")
                    for line in lines:
                        feed(line.decode("utf-8", "replace"))
    if rest:
        feed(rest.decode("utf-8", "replace"))


def report(word: str, *rest: object) -> None:
    """The other side: one line for :meth:`Phases.feed`."""
    print(f"fairlead-{word}", *rest, sep="\t", file=sys.stderr, flush=True)


def refuse(error: FairleadError) -> NoReturn:
    """The other side: ends with the error's finding, which :meth:`Phases.failed` raises again."""
    finding = error.findings[0].to_json()
    report("refused", json.dumps({key: finding[key] for key in finding if key != "severity"}))
    sys.exit(1)
