"""All that fairlead prints: answers on stdout; progress, warnings and errors on stderr.

``--json`` prints one object with a schema name and version instead of the answer; errors are
objects too. Colour and moving bars appear on a terminal only, and ``NO_COLOR`` is honoured.
"""

from __future__ import annotations

import itertools
import json
import re
import shutil
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from fairlead.base.errors import ExitCode, FairleadError, Finding, Severity, fail, os_error_as
from fairlead.base.paths import atomic_write
from fairlead.base.progress import Progress, Stage, human_bytes
from fairlead.base.serde import to_json
from fairlead.base.text import plain

SCHEMA_VERSION = 1


def print_json(kind: str, payload: dict[str, Any]) -> None:
    """One object on stdout: ``{"schema": "fairlead/KIND", "version": 1, ...payload}``, of what serde can write."""
    document = {"schema": f"fairlead/{kind}", "version": SCHEMA_VERSION, **payload}
    json.dump(to_json(document), sys.stdout, indent=2)
    sys.stdout.write("\n")


def answer(
    as_json: bool, kind: str, payload: dict[str, Any], text: str, more: str | None = None
) -> None:
    """The answer of a verb on stdout: one JSON object, or text; behind a text ``more`` on stderr."""
    if as_json:
        print_json(kind, payload)
        return
    echo(text, nl=not text.endswith("\n"))
    if more is not None:
        echo(more, err=True)


def echo(text: str, *, nl: bool = True, err: bool = False) -> None:
    """Text with words of images, profiles and tools in it: what would steer a terminal is made visible."""
    click.echo(_styled(text), nl=nl, err=err)


_STYLE = re.compile(r"(\x1b\[(?:[012]|3[0-7]|9[0-7])m)")  # what click.style writes


def _styled(text: str) -> str:
    """``text`` without what would steer a terminal, but with the colours of fairlead's own."""
    if text.isprintable():
        return text
    return "".join(p if _STYLE.fullmatch(p) else plain(p) for p in _STYLE.split(text))


def finding_lines(finding: Finding) -> str:
    """The four lines of a finding: what, where, why, next."""
    colour = {Severity.ERROR: "red", Severity.WARNING: "yellow", Severity.OK: "green"}
    name = f"[{finding.check}]" if finding.check else ""
    label = click.style(
        f"{finding.severity.value}{name}:", fg=colour.get(finding.severity), bold=True
    )
    return "\n".join([f"{label} {plain(finding.what)}", *detail_lines(finding)])


def detail_lines(finding: Finding) -> Iterator[str]:
    """Where, why and what next, as far as the finding says so."""
    for label, text in finding.details:
        yield f"{label} " + plain(text).replace("\n", "\n       ")


def say(text: str) -> None:
    """A line of fairlead's own among the ranks' output, on stderr."""
    click.echo(f"{click.style('fairlead:', bold=True)} {_styled(text)}", err=True)


def print_findings(findings: Iterable[Finding], err: bool = True) -> None:
    """Findings, an empty line between them; nothing where there are none."""
    if text := "\n\n".join(finding_lines(f) for f in findings):
        click.echo(text, err=err)


def print_findings_error(exc: FairleadError, as_json: bool) -> None:
    """The end of a failed verb."""
    if as_json:
        print_json("error", {"exit_code": exc.code, "findings": exc.findings})
    else:
        print_findings(exc.findings)


def usage_error(exc: click.UsageError) -> FairleadError:
    """The error of a command line that cannot be understood."""
    path = exc.ctx.command_path if exc.ctx else "fairlead"
    why = ""
    if isinstance(exc, click.NoSuchOption) and exc.ctx and exc.ctx.info_name in ("run", "explain"):
        why = "options of the launched command go after `--`"
    what = exc.format_message().rstrip(".")
    return fail("usage-command-line", code=ExitCode.USAGE, exc=what, path=path, why=why)


def columns() -> int:
    """How wide lines that are wrapped may be: the terminal's width, 100 where there is none."""
    return min(max(shutil.get_terminal_size((100, 24)).columns, 60), 120)


def wrap(text: str, width: int) -> list[str]:
    """``text`` in lines; a path that is too long for one is broken behind a ``/``."""
    lines: list[str] = []
    for paragraph in text.split("\n"):
        words = [
            piece
            for word in paragraph.split(" ")
            for piece in ([word] if len(word) <= width else _pieces(word, width))
        ]
        line = ""
        for word in words:
            together = f"{line} {word}" if line else word
            if line and len(together) > width:
                lines.append(line)
                together = word
            line = together
        lines.append(line)
    return lines


def _pieces(word: str, width: int) -> list[str]:
    pieces = [""]
    for part in re.findall(r"[^/]*/|[^/]+", word):
        if pieces[-1] and len(pieces[-1] + part) > width:
            pieces.append("")
        pieces[-1] += part
    return pieces


def table(
    rows: Iterable[Iterable[object]], head: Iterable[str] = (), indent: str = "", width: int = 0
) -> str:
    """Plain aligned columns, for people and for ``cut``.

    Args:
        width: of a whole line, at which the last column is wrapped; 0 for lines of any length.
    """
    body = [[plain(str(cell)) for cell in row] for row in rows]
    heads = list(head)
    grid = ([heads] if heads else []) + body
    if not grid:
        return ""
    widths = [max(map(len, column)) for column in itertools.zip_longest(*grid, fillvalue="")]
    if width:
        left = len(indent) + sum(widths[:-1]) + 2 * len(widths[:-1])
        grid = [
            [*([""] * (len(row) - 1) if more else row[:-1]), line]
            for row in grid
            for more, line in enumerate(wrap(row[-1], max(width - left, 20)))
        ]
    lines = []
    for row in grid:
        cells = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=False))
        lines.append(f"{indent}{cells.rstrip()}")
    if heads:
        lines[0] = click.style(lines[0], bold=True)
    return "\n".join(lines)


def progress(as_json: bool = False) -> Progress:
    """The right progress display: bars on a terminal, a line a stage elsewhere."""
    return _Display(bars=sys.stderr.isatty() and not as_json)


SILENCE_S = 9.0  # between two lines of one stage, where there is no terminal


class _LineStage:
    """A stage without a bar.

    Attributes:
        words: of the closing line.
        well: what the closing line says of the stage.
        now: what it is at.
    """

    words, well, now = "", True, ""

    def __init__(self, title: str, total: float | None, unit: str):
        self.title, self.whole, self.unit = title, total, unit
        self.done, self.begun = 0.0, time.monotonic()

    def result(self, text: str) -> None:
        self.words = text

    def failed(self, text: str) -> None:
        self.words, self.well = text, False

    def advance(self, amount: float) -> None:
        self.done += amount
        self.now = _amount(self.done, self.whole, self.unit)

    def total(self, amount: float) -> None:
        self.whole = amount

    def note(self, text: str) -> None:
        self.now = text


class _Lines:
    """A line when a stage ends, and one whenever there was none for a while, for logs and those who watch them."""

    def __init__(self) -> None:
        self._stages: list[_LineStage] = []
        self._last = 0.0
        self.muted = False

    @contextmanager
    def open(self, stage: _LineStage) -> Iterator[None]:
        """Shows signs of life of ``stage``, whatever it does, until it ends."""
        self._stages.append(stage)
        first, ended = len(self._stages) == 1, threading.Event()
        thread = threading.Thread(target=self._watch, args=(ended,), daemon=True)
        if first:
            self._last = time.monotonic()
            thread.start()
        try:
            yield
        finally:
            if first:
                ended.set()
                thread.join()
            self._stages.remove(stage)

    def say(self, line: str) -> None:
        self._last = time.monotonic()
        click.echo(line, err=True)

    def _watch(self, ended: threading.Event) -> None:
        while not ended.wait(max(self._last + SILENCE_S - time.monotonic(), 0.01)):
            now = time.monotonic()
            if self.muted:
                self._last = now
            elif now - self._last >= SILENCE_S:
                stage = self._stages[-1]  # the innermost
                words = f"{stage.title}: {stage.now}" if stage.now else stage.title
                self.say(f"  ..    {words} ({now - stage.begun:.0f} s)")


_LINES = _Lines()  # of this process: stages of several displays are within each other


@contextmanager
def alive(title: str) -> Iterator[None]:
    """Where there is no terminal, shows signs of life of what is done within, also between its stages."""
    if sys.stderr.isatty():
        yield
        return
    with _LINES.open(_LineStage(title, None, "")):
        yield


def hand_over(to_ranks: bool) -> None:
    """While the screen is the ranks' own, there are no signs of life of fairlead's on it."""
    _LINES.muted = to_ranks


def _amount(done: float, whole: float | None, unit: str) -> str:
    if unit == "B":
        return human_bytes(done) + (f" of {human_bytes(whole)}" if whole else "")
    return f"{done:.0f}" + (f" of {whole:.0f}" if whole else "") + (f" {unit}" if unit else "")


class _BarStage(_LineStage):
    def __init__(self, bars: Any, title: str, total: float | None):
        self.bars, self.task = bars, bars.add_task(title, total=total, note="")

    def advance(self, amount: float) -> None:
        self.bars.advance(self.task, amount)

    def total(self, amount: float) -> None:
        self.bars.update(self.task, total=amount)

    def note(self, text: str) -> None:
        self.bars.update(self.task, note=text)


def _bars(unit: str) -> Any:
    """A display of rich: where it is, how fast, and for how long still."""
    from rich import progress as parts
    from rich.console import Console

    columns: list[Any] = [
        parts.SpinnerColumn(),
        parts.TextColumn("{task.description}"),
        parts.BarColumn(24),
    ]
    if unit == "B":
        columns += [parts.DownloadColumn(), parts.TransferSpeedColumn()]
    elif unit:
        columns.append(parts.MofNCompleteColumn())
    columns += [
        parts.TimeElapsedColumn(),
        parts.TimeRemainingColumn(),
        parts.TextColumn("[dim]{task.fields[note]}"),
    ]
    return parts.Progress(*columns, console=Console(stderr=True), transient=True)


class _Display:
    """Each stage with a bar while it lasts, or without, and one line when it ends."""

    def __init__(self, bars: bool):
        self.bars = bars

    @contextmanager
    def stage(self, title: str, total: float | None = None, unit: str = "") -> Iterator[Stage]:
        begun, failed = time.monotonic(), click.style("FAIL", fg="red", bold=True)
        stage: _LineStage
        try:
            if self.bars:
                with _bars(unit) as bars:
                    yield (stage := _BarStage(bars, title, total))
            else:
                stage = _LineStage(title, total, unit)
                with _LINES.open(stage):
                    yield stage
        except BaseException:
            _LINES.say(f"  {failed}  {title}")
            raise
        mark = click.style("ok", fg="green", bold=True) + "  " if stage.well else failed
        words = f"{title}: {stage.words}" if stage.words else title
        _LINES.say(f"  {mark}  {words} ({time.monotonic() - begun:.1f} s)")


def show_schema(kind: str, text: str, output: Path | None, as_json: bool) -> None:
    """A JSON Schema where it is wanted: in a file, on the screen, or within the answer of ``--json``.

    Raises:
        FairleadError: the file cannot be written.
    """
    if output is not None:
        unwritable = os_error_as("output-unwritable-schema", output=output)
        with unwritable, atomic_write(output, "w") as out:
            out.write(text)
    if as_json:
        print_json(kind, {"path": output, "json_schema": json.loads(text)})
    elif output is None:
        click.echo(text, nl=False)
