"""What changed between two validations, as one page that needs nothing else.

    from fairlead.perf.draw.comparison_page import write_comparison

    page = write_comparison(folder, before, after)

What is said of a line is :func:`fairlead.perf.judge.compare.compare`'s; ``comparison.html.j2`` sets it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fairlead.base.paths import atomic_write
from fairlead.perf.draw import charts
from fairlead.perf.draw.pages import page
from fairlead.perf.draw.tables import sorted_by_title, within
from fairlead.perf.draw.wording import amount, count, digits, label, name_of
from fairlead.perf.judge.compare import Change, Comparison, LineChange, compare
from fairlead.perf.records.validation import Measurement, Validation

PAGE = "comparison.html"
_ORDER = (Change.SLOWER, Change.FASTER, Change.UNKNOWN, Change.SAME)
_WORD = {
    Change.SLOWER: "warning",
    Change.FASTER: "ok",
    Change.UNKNOWN: "unknown",
    Change.SAME: "same",
}
_STYLE = {Change.SLOWER: "slower", Change.FASTER: "faster", Change.UNKNOWN: "unknown"}
_SHORT = {Change.SAME: "the same"}  # in a column of a table
_REACH = (1.1, 1.25, 1.5, 2.0, 4.0, 10.0)  # what a page's scale ends at


@dataclass(frozen=True)
class Row:
    """One line that both have, in words."""

    where: str
    way: str
    before: str
    after: str
    strip: str
    times: str
    interval: str
    word: str
    change: str
    note: str


@dataclass(frozen=True)
class Table:
    """Rows of one thing; ``changed`` where one of them is slower or faster."""

    title: str
    rows: tuple[Row, ...]
    counts: tuple[tuple[str, str, int], ...]
    changed: bool


def write_comparison(folder: Path, before: Validation, after: Validation) -> Path:
    """Writes ``comparison.html`` into ``folder``; returns its path.

    Raises:
        FairleadError: jinja2 is not installed.
        OSError: the folder cannot be written.
    """
    text = render(before, after)
    path = folder / PAGE
    with atomic_write(path, "w") as stream:
        stream.write(text)
    return path


def render(before: Validation, after: Validation) -> str:
    """The HTML page.

    Raises:
        FairleadError: jinja2 is not installed.
    """
    found = compare(before, after)
    reach = _reach(found.lines)
    now = {m.key: m for m in after.measurements}
    then = {m.key: m for m in before.measurements}
    lines = _tables(found, now, reach)
    change = _overall(found)
    return page(
        "comparison",
        before=before,
        after=after,
        headline=headline(found, now),
        word="ok" if change is Change.SAME else _WORD[change],
        state=change.value,
        counts=_counts(found.lines),
        facts=found.facts,
        tables=lines,
        reach=f"{reach:g}",
        gone=[(title, [label(of[k]) for k in keys]) for title, of, keys in (
            ("Only before", then, found.only_before), ("Only after", now, found.only_after)
        ) if keys],
    )  # fmt: skip


def headline(found: Comparison, now: dict[str, Measurement]) -> str:
    """The comparison in a sentence or two: how many lines moved, and which the most."""
    if not found.lines:
        return "The two have no line in common."
    said = []
    for change, word in ((Change.SLOWER, "slower"), (Change.FASTER, "faster")):
        moved = found.of(change)
        if moved:
            most = max(moved, key=lambda line: _factor(line.times))
            of = f"{len(moved)} of {count(len(found.lines), 'line')} {'are' if len(moved) > 1 else 'is'} {word}"
            named = f"the most {label(now[most.key])}" if len(moved) > 1 else label(now[most.key])
            said.append(f"{of}, {named}: {digits(_factor(most.times))} ×.")
    unknown = found.of(Change.UNKNOWN)
    if not said:
        same = len(found.lines) - len(unknown)
        said.append(f"No significant change in {same} of {count(len(found.lines), 'line')}.")
    return " ".join(said)


def _overall(found: Comparison) -> Change:
    """The first of slower, faster and the same that there is."""
    seen = {line.change for line in found.lines} - {Change.UNKNOWN}
    return next((change for change in _ORDER if change in seen), Change.UNKNOWN)


def _factor(times: float) -> float:
    return max(times, 1 / times)


def _reach(lines: Sequence[LineChange]) -> float:
    """The shortest scale that shows all that changed, and that is not shorter than the shortest there is."""
    far = max(
        (_factor(x.times) for x in lines if x.change in (Change.SLOWER, Change.FASTER)), default=1.0
    )
    return next((reach for reach in _REACH if far * 1.05 <= reach), _REACH[-1])


def _counts(lines: Sequence[LineChange]) -> tuple[tuple[str, str, int], ...]:
    found = Counter(line.change for line in lines)
    return tuple((_WORD[c], _SHORT.get(c, c.value), found[c]) for c in _ORDER if found[c])


def _tables(found: Comparison, now: dict[str, Measurement], reach: float) -> tuple[Table, ...]:
    lines = {line.key: line for line in found.lines}
    made = []
    for title, told, measurements in sorted_by_title([now[key] for key in lines]):
        mine = [lines[m.key] for m in measurements]
        rows = [_row(m, lines[m.key], told, reach) for m in measurements]
        changed = any(x.change in (Change.SLOWER, Change.FASTER) for x in mine)
        made.append(Table(title, tuple(rows), _counts(mine), changed))
    return tuple(made)


def _row(m: Measurement, line: LineChange, told: bool, reach: float) -> Row:
    ends = (line.low, line.high) if line.low is not None and line.high is not None else None
    slower = line.times > 1
    interval = ""
    if ends:
        low, high = ends if slower else (1 / ends[1], 1 / ends[0])
        interval = f"{low:.2f} to {high:.2f}"
    p = "" if line.p is None else f"p {line.p:.1g}"
    return Row(
        where=within(m, told),
        way=name_of(m.way),
        before=amount(line.before, line.unit),
        after=amount(line.after, line.unit),
        strip=charts.ratio_strip(line.times, ends, reach, _STYLE.get(line.change, "same")),
        times=f"{_factor(line.times):.2f} × {'slower' if slower else 'faster'}",
        interval=interval,
        word=_WORD[line.change],
        change=_SHORT.get(line.change, line.change.value),
        note=line.why or p,
    )
