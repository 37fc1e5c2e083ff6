"""``fairlead report``: kept validations, listed, drawn again, and compared."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fairlead.base.errors import ExitCode, fail
from fairlead.base.serde import to_json
from fairlead.cli.screen import columns, json_option, print_json, table

if TYPE_CHECKING:
    from fairlead.perf.judge.compare import Comparison, LineChange
    from fairlead.perf.records.validation import Validation

EPILOG = """\b
Examples:
  fairlead report
  fairlead report --list
  fairlead report 20260102T030405-laptop -o before
  fairlead report --compare last~1 last -o upgrade
  fairlead report --compare before/validation.json last --fail-if-slower 10
"""

_FOLDER = "fairlead-validation"


@click.command(epilog=EPILOG, short_help="Show or compare saved validations.")
@click.argument("run", required=False, metavar="[RUN]")
@click.option("--list", "list_them", is_flag=True, help="List the saved validations, newest last.")
@click.option(
    "--compare",
    nargs=2,
    metavar="A B",
    help="Show what changed from validation A to B: facts, and each line with its significance.",
)
@click.option(
    "--fail-if-slower",
    type=click.FloatRange(0),
    metavar="PERCENT",
    help="With --compare: exit with 125 if a line is significantly slower, by more than this.",
)
@click.option(
    "-o",
    "--output",
    help=f"Folder for validation.html, .json and .csv ({_FOLDER});"
    " with --compare, for comparison.html, which is written only with -o.",
    type=click.Path(file_okay=False, path_type=Path),
)
@json_option
def report(
    run: str | None,
    list_them: bool,
    compare: tuple[str, str] | None,
    fail_if_slower: float | None,
    output: Path | None,
    as_json: bool,
) -> int:
    """Show a saved validation, list them, or compare two.

    RUN, A and B are validation ids or prefixes of them, `last`, `last~1` for the one before, or files
    written by `fairlead validate`. RUN defaults to `last`.
    """
    if sum(map(bool, (run, list_them, compare))) > 1:
        raise click.UsageError("RUN, --list and --compare exclude each other")
    if fail_if_slower is not None and not compare:
        raise click.UsageError("--fail-if-slower needs --compare A B")
    if list_them and output:
        raise click.UsageError("--list writes no page, so -o has no effect")
    if list_them:
        return _list(as_json)
    if compare:
        return _compare(*compare, fail_if_slower, output, as_json)
    return _draw(run or "last", output or Path(_FOLDER), as_json)


def _list(as_json: bool) -> int:
    _needs("numpy")
    from fairlead.perf.judge.verdict import headline, worst
    from fairlead.perf.records import history

    kept = history.entries(os.environ)
    rows = [
        {
            "id": e.id,
            "file": str(e.path),
            "begun": e.validation.begun if e.validation else "",
            "site": e.validation.machine.site if e.validation else "",
            "verdict": worst(e.validation.verdicts).value if e.validation else "",
            "headline": headline(e.validation) if e.validation else f"cannot be read: {e.why}",
        }
        for e in kept
    ]
    if as_json:
        print_json("report-list", {"validations": rows})
    elif rows:
        cells = [(row["id"], row["verdict"] or "-", row["headline"]) for row in rows]
        click.echo(table(cells, ("id", "verdict", ""), width=columns()))
    else:
        click.echo("no validation is saved yet; next: fairlead validate", err=True)
    return ExitCode.DONE


def _draw(name: str, output: Path, as_json: bool) -> int:
    _needs("numpy", "jinja2")
    from fairlead.perf.draw.validation_page import write_validation
    from fairlead.perf.judge.verdict import headline, worst
    from fairlead.perf.records import history

    validation = history.find(name, os.environ)
    with _into(output) as folder:
        page, document, rows = write_validation(folder, validation)
    if as_json:
        payload: dict[str, Any] = {
            "id": validation.id,
            "verdict": worst(validation.verdicts).value,
            "headline": headline(validation),
            "page": str(page),
            "document": str(document),
            "rows": str(rows),
        }
        print_json("report", payload)
    else:
        click.echo(f"{validation.id}: {headline(validation)}")
        click.echo(f"report: {page}\n        {document}\n        {rows}")
    return ExitCode.DONE


@contextmanager
def _into(output: Path) -> Iterator[Path]:
    """The folder, made where there is none."""
    try:
        output.mkdir(parents=True, exist_ok=True)
        yield output.absolute()
    except OSError as exc:
        raise fail(
            "output-unwritable-give", output=output, reason=exc.strerror or str(exc)
        ) from None


def _compare(a: str, b: str, percent: float | None, output: Path | None, as_json: bool) -> int:
    _needs("numpy", *(("jinja2",) if output else ()))
    from fairlead.perf.judge.compare import compare as compared
    from fairlead.perf.records import history

    before, after = (history.find(name, os.environ) for name in (a, b))
    found = compared(before, after)
    worse = found.slower_by(percent) if percent is not None else ()
    page = None
    if output:
        from fairlead.perf.draw.comparison_page import write_comparison

        with _into(output) as folder:
            page = write_comparison(folder, before, after)
    if as_json:
        payload = {
            **to_json(found),
            "fail_if_slower": percent,
            "failed": [x.key for x in worse],
            "page": str(page) if page else None,
        }
        print_json("report-compare", payload)
    else:
        click.echo(comparison_text(found, before, after))
        if page:
            click.echo(f"\nreport: {page}")
        if worse:
            what = f"{len(worse)} line{'s are' if len(worse) > 1 else ' is'}"
            click.echo(f"\n{what} slower by more than {percent:g} %", err=True)
    return ExitCode.BELOW_REFERENCE if worse else ExitCode.DONE


def comparison_text(found: Comparison, before: Validation, after: Validation) -> str:
    """A comparison for the screen: what differs in the set-up, what became slower or faster, what stayed."""
    from fairlead.perf.judge.compare import Change

    parts = [f"before  {before.id}, {before.begun}\nafter   {after.id}, {after.begun}"]
    facts = [(f.name, f.before or "-", f.after or "-") for f in found.facts]
    differ = table(facts, ("fact", "before", "after"), indent="  ") if facts else "  none"
    parts.append(click.style("Facts that differ", bold=True) + f"\n{differ}")
    for change, title, colour in (
        (Change.SLOWER, "Slower", "red"),
        (Change.FASTER, "Faster", "green"),
    ):
        lines = found.of(change)
        if lines:
            rows = [_row(line) for line in lines]
            body = table(rows, ("line", "before", "after", "", "p"), indent="  ")
            parts.append(f"{click.style(title, fg=colour, bold=True)}: {len(lines)}\n{body}")
    same, unknown = found.of(Change.SAME), found.of(Change.UNKNOWN)
    parts.append(
        f"{click.style('No significant change', bold=True)}: {len(same)} of {len(found.lines)} lines"
    )
    if unknown:
        rows = [(line.key, line.why) for line in unknown]
        body = table(rows, indent="  ", width=columns())
        parts.append(f"{click.style('Cannot tell', bold=True)}: {len(unknown)}\n{body}")
    for title, keys in (("Only before", found.only_before), ("Only after", found.only_after)):
        if keys:
            shown = "\n".join(f"  {key}" for key in keys)
            parts.append(f"{click.style(title, bold=True)}: {len(keys)}\n{shown}")
    if found.lines:
        parts.append(
            "p: Mann-Whitney, corrected by Holm for all lines. Two runs of the same set-up show how much this machine"
            " itself changes from one to the next."
        )
    return "\n\n".join(parts)


def _row(line: LineChange) -> tuple[str, ...]:
    from fairlead.perf.draw.wording import amount

    slower = line.times > 1
    times = line.times if slower else 1 / line.times
    text = f"{times:.2f} × {'slower' if slower else 'faster'}"
    if line.low is not None and line.high is not None:
        low, high = (line.low, line.high) if slower else (1 / line.high, 1 / line.low)
        text += f" [{low:.2f}, {high:.2f}]"
    p = "" if line.p is None else f"{line.p:.1g}"
    return (line.key, amount(line.before, line.unit), amount(line.after, line.unit), text, p)


def _needs(*packages: str) -> None:
    """Says at once what is not installed; the page needs jinja2, statistics NumPy."""
    from fairlead.perf.draw.pages import require_tools

    require_tools(*packages)
