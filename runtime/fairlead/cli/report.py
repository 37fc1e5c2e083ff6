"""``fairlead report``: saved validations, listed, drawn again, and compared."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fairlead.base.errors import ExitCode, FairleadError, os_error_as
from fairlead.base.serde import to_json
from fairlead.cli.declare import FOLDER, JSON, argument, declared, option
from fairlead.cli.screen import answer, columns, print_json, table

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


@click.command(epilog=EPILOG)
@declared
def report(
    run: str | None = argument(required=False, metavar="[RUN]"),
    list_them: bool = option("--list", "List the saved validations, newest last."),
    compare: tuple[str, str] | None = option(
        "--compare",
        "Show what changed from validation A to B: facts, and each line with its significance.",
        nargs=2,
        metavar="A B",
    ),
    fail_if_slower: float | None = option(
        "--fail-if-slower PERCENT",
        "With --compare: exit with 125 if a line is significantly slower, by more than this.",
        type=click.FloatRange(0),
    ),
    output: Path | None = option(
        "-o --output",
        f"Folder for validation.html, .json and .csv ({_FOLDER});"
        " with --compare, for comparison.html, which is written only with -o.",
        type=FOLDER,
    ),
    as_json: bool = JSON,
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
    from fairlead.perf.draw.pages import require_tools

    writes_page = output or not (list_them or compare)
    require_tools("numpy", *(["jinja2"] if writes_page else []))
    if list_them:
        return _list(as_json)
    if compare:
        return _compare(*compare, fail_if_slower, output, as_json)
    return _draw(run or "last", output or Path(_FOLDER), as_json)


def _list(as_json: bool) -> int:
    from fairlead.perf.judge.verdict import headline, worst
    from fairlead.perf.records import history

    rows = []
    for name, path in history.files(os.environ).items():
        v, why = None, ""
        try:
            v = history.read(path)
        except FairleadError as exc:
            why = exc.findings[0].why
        rows.append(
            {
                "id": name,
                "file": str(path),
                "begun": v.begun if v else "",
                "site": v.machine.site if v else "",
                "verdict": worst(v.verdicts).value if v else "",
                "headline": headline(v) if v else f"cannot be read: {why}",
            }
        )
    if as_json:
        print_json("report-list", {"validations": rows})
    elif rows:
        cells = [(row["id"], row["verdict"] or "-", row["headline"]) for row in rows]
        click.echo(table(cells, ("id", "verdict", ""), width=columns()))
    else:
        click.echo("no validation is saved yet; next: fairlead validate", err=True)
    return ExitCode.DONE


def _draw(name: str, output: Path, as_json: bool) -> int:
    from fairlead.perf.draw.validation_page import write_validation
    from fairlead.perf.judge.verdict import headline, worst
    from fairlead.perf.records import history

    validation = history.find(name, os.environ)
    with os_error_as("output-unwritable-give", output=output):
        page, document, rows = write_validation(output.absolute(), validation)
    line = headline(validation)
    head = {"id": validation.id, "verdict": worst(validation.verdicts), "headline": line}
    files = {"page": page, "document": document, "rows": rows}
    text = f"{validation.id}: {line}\nreport: {page}\n        {document}\n        {rows}"
    answer(as_json, "report", head | files, text)
    return ExitCode.DONE


def _compare(a: str, b: str, percent: float | None, output: Path | None, as_json: bool) -> int:
    from fairlead.perf.judge.compare import compare as compared
    from fairlead.perf.records import history

    before, after = (history.find(name, os.environ) for name in (a, b))
    comparison = compared(before, after)
    worse = comparison.slower_by(percent) if percent is not None else ()
    page = None
    if output:
        from fairlead.perf.draw.comparison_page import write_comparison

        with os_error_as("output-unwritable-give", output=output):
            page = write_comparison(output.absolute(), before, after)
    if as_json:
        ended = {"fail_if_slower": percent, "failed": [line.key for line in worse], "page": page}
        print_json("report-compare", {**to_json(comparison), **ended})
    else:
        click.echo(_text(comparison, before, after))
        if page:
            click.echo(f"\nreport: {page}")
        if worse:
            what = f"{len(worse)} line{'s are' if len(worse) > 1 else ' is'}"
            click.echo(f"\n{what} slower by more than {percent:g} %", err=True)
    return ExitCode.BELOW_REFERENCE if worse else ExitCode.DONE


def _text(comparison: Comparison, before: Validation, after: Validation) -> str:
    """A comparison for the screen: what differs in the set-up, what became slower or faster, what stayed."""
    from fairlead.perf.judge.compare import Change

    def part(title: str, count: str, body: str = "", colour: str | None = None) -> str:
        return f"{click.style(title, fg=colour, bold=True)}{count}" + (f"\n{body}" if body else "")

    facts = [(f.name, f.before or "-", f.after or "-") for f in comparison.facts]
    differ = table(facts, ("fact", "before", "after"), indent="  ") if facts else "  none"
    parts = [
        f"before  {before.id}, {before.begun}\nafter   {after.id}, {after.begun}",
        part("Facts that differ", "", differ),
    ]
    for change, colour in ((Change.SLOWER, "red"), (Change.FASTER, "green")):
        if lines := comparison.of(change):
            body = table(map(_row, lines), ("line", "before", "after", "", "p"), indent="  ")
            parts.append(part(change.value.capitalize(), f": {len(lines)}", body, colour))
    same, unknown = comparison.of(Change.SAME), comparison.of(Change.UNKNOWN)
    parts.append(part("No significant change", f": {len(same)} of {len(comparison.lines)} lines"))
    if unknown:
        body = table([(line.key, line.why) for line in unknown], indent="  ", width=columns())
        parts.append(part("Cannot tell", f": {len(unknown)}", body))
    only = {"Only before": comparison.only_before, "Only after": comparison.only_after}
    for title, keys in only.items():
        if keys:
            parts.append(part(title, f": {len(keys)}", "\n".join(f"  {key}" for key in keys)))
    if comparison.lines:
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
