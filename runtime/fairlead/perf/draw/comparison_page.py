"""What changed between two validations, as one page that needs nothing else.

    from fairlead.perf.draw.comparison_page import write_comparison

    page = write_comparison(folder, before, after)

The change of a line is judged by :func:`fairlead.perf.judge.compare.compare`; ``comparison.html.j2`` sets it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from fairlead.base.paths import atomic_write
from fairlead.perf.draw import charts
from fairlead.perf.draw.pages import page
from fairlead.perf.draw.tables import Table, sorted_by_title, within
from fairlead.perf.draw.wording import amount, count, digits, label, name_of
from fairlead.perf.judge.compare import Change, Comparison, LineChange, compare
from fairlead.perf.records.validation import Measurement, Validation

PAGE = "comparison.html"
# In the order in which they are counted.
_WORD = {
    Change.SLOWER: "warning",
    Change.FASTER: "ok",
    Change.UNKNOWN: "unknown",
    Change.SAME: "same",
}
_SHORT = {Change.SAME: "the same"}  # in a column of a table
_REACH = (1.1, 1.25, 1.5, 2.0, 4.0, 10.0)  # what a page's scale ends at


def write_comparison(folder: Path, before: Validation, after: Validation) -> Path:
    """Writes ``comparison.html`` into ``folder``; returns its path.

    Raises:
        FairleadError: jinja2 is not installed.
        OSError: the folder cannot be written.
    """
    path, text = folder / PAGE, render(before, after)
    with atomic_write(path, "w") as stream:
        stream.write(text)
    return path


def render(before: Validation, after: Validation) -> str:
    """The HTML page."""
    comparison = compare(before, after)
    reach = _reach(comparison.lines)
    now = {m.key: m for m in after.measurements}
    then = {m.key: m for m in before.measurements}
    # The first of slower, faster and the same that there is.
    changes = {line.change for line in comparison.lines} - {Change.UNKNOWN}
    change = next((change for change in _WORD if change in changes), Change.UNKNOWN)
    gone = (
        ("Only before", then, comparison.only_before),
        ("Only after", now, comparison.only_after),
    )
    return page(
        "comparison",
        before=before,
        after=after,
        headline=headline(comparison, now),
        word="ok" if change is Change.SAME else _WORD[change],
        state=change.value,
        counts=_counts(comparison.lines),
        facts=comparison.facts,
        tables=list(_tables(comparison, now, reach)),
        reach=f"{reach:g}",
        gone=[(title, [label(of[key]) for key in keys]) for title, of, keys in gone if keys],
    )


def headline(comparison: Comparison, now: dict[str, Measurement]) -> str:
    """The comparison in a sentence or two: how many lines moved, and which the most."""
    if not comparison.lines:
        return "The two have no line in common."
    sentences = []
    for change, word in ((Change.SLOWER, "slower"), (Change.FASTER, "faster")):
        moved = comparison.of(change)
        if moved:
            most = max(moved, key=lambda line: _factor(line.times))
            of = f"{len(moved)} of {count(len(comparison.lines), 'line')} {'are' if len(moved) > 1 else 'is'} {word}"
            named = f"the most {label(now[most.key])}" if len(moved) > 1 else label(now[most.key])
            sentences.append(f"{of}, {named}: {digits(_factor(most.times))} ×.")
    lines = len(comparison.lines)
    same = lines - len(comparison.of(Change.UNKNOWN))
    return " ".join(sentences) or f"No significant change in {same} of {count(lines, 'line')}."


def _factor(times: float) -> float:
    return max(times, 1 / times)


def _reach(lines: Sequence[LineChange]) -> float:
    """The shortest scale that shows all that changed, and that is not shorter than the shortest there is."""
    far = max(
        (_factor(x.times) for x in lines if x.change in (Change.SLOWER, Change.FASTER)), default=1.0
    )
    return next((reach for reach in _REACH if far * 1.05 <= reach), _REACH[-1])


def _counts(lines: Sequence[LineChange]) -> tuple[tuple[str, str, int], ...]:
    counts = Counter(line.change for line in lines)
    return tuple((_WORD[c], _SHORT.get(c, c.value), counts[c]) for c in _WORD if counts[c])


def _tables(comparison: Comparison, now: dict[str, Measurement], reach: float) -> Iterator[Table]:
    lines = {line.key: line for line in comparison.lines}
    for title, titled, measurements in sorted_by_title([now[key] for key in lines]):
        mine = [lines[m.key] for m in measurements]
        rows = tuple(_row(m, lines[m.key], titled, reach) for m in measurements)
        changed = any(x.change in (Change.SLOWER, Change.FASTER) for x in mine)
        yield Table(title, "", rows, _counts(mine), changed)


def _row(m: Measurement, line: LineChange, titled: bool, reach: float) -> dict[str, str]:
    ends = (line.low, line.high) if line.low is not None and line.high is not None else None
    slower = line.times > 1
    interval = ""
    if ends:
        low, high = ends if slower else (1 / ends[1], 1 / ends[0])
        interval = f"{low:.2f} to {high:.2f}"
    p = "" if line.p is None else f"p {line.p:.1g}"
    return {
        "where": within(m, titled),
        "way": name_of(m.way),
        "before": amount(line.before, line.unit),
        "after": amount(line.after, line.unit),
        "strip": charts.ratio_strip(line.times, ends, reach, line.change.name.lower()),
        "times": f"{_factor(line.times):.2f} × {'slower' if slower else 'faster'}",
        "interval": interval,
        "word": _WORD[line.change],
        "change": _SHORT.get(line.change, line.change.value),
        "note": line.why or p,
    }
