"""All that fairlead prints: answers on stdout; progress, warnings and errors on stderr.

``--json`` prints one object with a schema name and version instead of the answer; errors are
objects too. Colour and moving bars appear on a terminal only, and ``NO_COLOR`` is honoured.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from fairlead.base.errors import FairleadError, Finding, Severity, error, fail
from fairlead.base.paths import atomic_write
from fairlead.base.progress import Progress, Stage
from fairlead.base.progress import human_bytes as human_bytes

SCHEMA_VERSION = 1

json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object instead of text."
)


def print_json(kind: str, payload: dict[str, Any]) -> None:
    """One object on stdout: ``{"schema": "fairlead/KIND", "version": 1, ...payload}``."""
    json.dump(
        {"schema": f"fairlead/{kind}", "version": SCHEMA_VERSION, **payload}, sys.stdout, indent=2
    )
    sys.stdout.write("\n")


def plain(text: str) -> str:
    """``text`` with what would steer a terminal, or turn its writing round, made visible: words of
    a file or a tool may come from any source."""
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in text
    )


def finding_lines(finding: Finding) -> str:
    """The four lines of a finding: what, where, why, next."""
    colour = {Severity.ERROR: "red", Severity.WARNING: "yellow", Severity.OK: "green"}
    name = f"[{finding.check}]" if finding.check else ""
    label = click.style(
        f"{finding.severity.value}{name}:", fg=colour.get(finding.severity), bold=True
    )
    lines = [f"{label} {plain(finding.what)}"]
    for name, text in (
        ("where:", finding.where),
        ("why:  ", finding.why),
        ("next: ", finding.remedy),
    ):
        if text:
            first, *rest = plain(text).split("\n")
            lines += [f"{name} {first}", *(f"       {line}" for line in rest)]
    return "\n".join(lines)


def say(text: str) -> None:
    """A line of fairlead's own among the ranks' output, on stderr."""
    click.echo(f"{click.style('fairlead:', bold=True)} {text}", err=True)


def print_findings(findings: Iterable[Finding], err: bool = True) -> None:
    """Findings, an empty line between them."""
    click.echo("\n\n".join(finding_lines(f) for f in findings), err=err)


def print_findings_error(exc: FairleadError, as_json: bool) -> None:
    """The end of a failed verb."""
    if as_json:
        print_json(
            "error", {"exit_code": int(exc.code), "findings": [f.to_json() for f in exc.findings]}
        )
    else:
        print_findings(exc.findings)


def print_usage_error(exc: click.UsageError, as_json: bool) -> None:
    """A command line that cannot be understood."""
    path = exc.ctx.command_path if exc.ctx else "fairlead"
    why = ""
    if isinstance(exc, click.NoSuchOption) and exc.ctx and exc.ctx.info_name in ("run", "explain"):
        why = "options of the launched command go after `--`"
    finding = error("usage-command-line", exc=exc.format_message().rstrip("."), path=path, why=why)
    if as_json:
        print_json("error", {"exit_code": 2, "findings": [finding.to_json()]})
    else:
        print_findings([finding])


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
    rows: Iterable[Iterable[str]], head: Iterable[str] = (), indent: str = "", width: int = 0
) -> str:
    """Plain aligned columns, for people and for ``cut``.

    Args:
        width: of a whole line, at which the last column is wrapped; 0 for lines of any length.
    """
    body = [[plain(str(cell)) for cell in row] for row in rows]
    heads = [str(cell) for cell in head]
    grid = ([heads] if heads else []) + body
    if not grid:
        return ""
    widths = [max(len(row[i]) for row in grid if i < len(row)) for i in range(max(map(len, grid)))]
    if width:
        left = len(indent) + sum(widths[:-1]) + 2 * len(widths[:-1])
        grid = [
            [*([""] * (len(row) - 1) if more else row[:-1]), line]
            for row in grid
            for more, line in enumerate(wrap(row[-1], max(width - left, 20)))
        ]
    out = []
    for number, row in enumerate(grid):
        line = (
            indent
            + "  ".join(
                cell.ljust(width) for cell, width in zip(row, widths, strict=False)
            ).rstrip()
        )
        out.append(click.style(line, bold=True) if heads and number == 0 else line)
    return "\n".join(out)


def progress(as_json: bool = False) -> Progress:
    """The right progress display: bars on a terminal, a line a stage elsewhere."""
    return _Bars() if sys.stderr.isatty() and not as_json else _Lines()


class _Ending:
    """What a stage's closing line will say of it."""

    words, well = "", True

    def result(self, text: str) -> None:
        self.words = text

    def failed(self, text: str) -> None:
        self.words, self.well = text, False


class _LineStage(_Ending):
    """One line when a stage ends; a sign of life every 15 s meanwhile."""

    def __init__(self, title: str, total: float | None, unit: str):
        self.title, self.whole, self.unit = title, total, unit
        self.done, self.last = 0.0, time.monotonic()

    def advance(self, amount: float) -> None:
        self.done += amount
        self._sign_of_life(_amount(self.done, self.whole, self.unit))

    def total(self, amount: float) -> None:
        self.whole = amount

    def note(self, text: str) -> None:
        self._sign_of_life(text)

    def _sign_of_life(self, text: str) -> None:
        now = time.monotonic()
        if now - self.last > 15:
            self.last = now
            click.echo(f"  ..    {self.title}: {text}", err=True)


def _amount(done: float, whole: float | None, unit: str) -> str:
    if unit == "B":
        return human_bytes(done) + (f" of {human_bytes(whole)}" if whole else "")
    return f"{done:.0f}" + (f" of {whole:.0f}" if whole else "") + (f" {unit}" if unit else "")


def _words(result: str, begun: float) -> str:
    """What a closing line says behind the title."""
    return f"{f': {result}' if result else ''} ({time.monotonic() - begun:.1f} s)"


_FAIL = click.style("FAIL", fg="red", bold=True)


class _Lines:
    @contextmanager
    def stage(self, title: str, total: float | None = None, unit: str = "") -> Iterator[Stage]:
        begun = time.monotonic()
        stage = _LineStage(title, total, unit)
        try:
            yield stage
        except BaseException:
            click.echo(f"  FAIL  {title}", err=True)
            raise
        mark = "ok  " if stage.well else "FAIL"
        click.echo(f"  {mark}  {title}{_words(stage.words, begun)}", err=True)


class _BarStage(_Ending):
    def __init__(self, bars: Any, task: Any):
        self.bars, self.task = bars, task

    def advance(self, amount: float) -> None:
        self.bars.advance(self.task, amount)

    def total(self, amount: float) -> None:
        self.bars.update(self.task, total=amount)

    def note(self, text: str) -> None:
        self.bars.update(self.task, note=text)


class _Bars:
    @contextmanager
    def stage(self, title: str, total: float | None = None, unit: str = "") -> Iterator[Stage]:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            MofNCompleteColumn,
            SpinnerColumn,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
            TransferSpeedColumn,
        )
        from rich.progress import (
            Progress as RichProgress,
        )

        console = Console(stderr=True)
        columns: list[Any] = [SpinnerColumn(), TextColumn("{task.description}"), BarColumn(24)]
        if unit == "B":
            columns += [DownloadColumn(), TransferSpeedColumn()]
        elif unit:
            columns.append(MofNCompleteColumn())
        columns += [
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("[dim]{task.fields[note]}"),
        ]
        begun = time.monotonic()
        bars = RichProgress(*columns, console=console, transient=True)
        task = bars.add_task(title, total=total, note="")
        stage = _BarStage(bars, task)
        try:
            with bars:
                yield stage
        except BaseException:
            click.echo(f"  {_FAIL}  {title}", err=True)
            raise
        mark = click.style("ok", fg="green", bold=True) + "  " if stage.well else _FAIL
        click.echo(f"  {mark}  {title}{_words(stage.words, begun)}", err=True)


def show_schema(kind: str, text: str, output: Path | None, as_json: bool) -> None:
    """A JSON Schema where it is wanted: in a file, on the screen, or within the answer of ``--json``.

    Raises:
        FairleadError: the file cannot be written.
    """
    if output is not None:
        try:
            with atomic_write(output, "w") as out:
                out.write(text)
        except OSError as exc:
            raise fail(
                "output-unwritable-schema",
                output=output,
                reason=exc.strerror or str(exc),
            ) from None
    if as_json:
        path = str(output) if output else None
        print_json(kind, {"path": path, "json_schema": json.loads(text)})
    elif output is None:
        click.echo(text, nl=False)
