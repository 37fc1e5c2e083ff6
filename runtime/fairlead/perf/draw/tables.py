"""A validation's lines as rows: for the page's tables, for its verdict by reasons, and as CSV."""

from __future__ import annotations

import csv
import io
import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fairlead.base.errors import Severity
from fairlead.perf import stats
from fairlead.perf.draw import charts
from fairlead.perf.draw.wording import (
    amount,
    between,
    count,
    digits,
    label,
    model_title,
    name_of,
    subject,
    where,
)
from fairlead.perf.judge import faults
from fairlead.perf.records.validation import (
    Expected,
    Measurement,
    State,
    Validation,
    Verdict,
    Way,
    What,
)

_STRIPS = 200  # of lines beyond that, the page would become heavy
_PAIRS = 3  # of ranks that have a table each
_OF = (What.TRAIN, What.ALLREDUCE, What.BROADCAST)  # a table for each subject
# The worst first.
WORD = {State.WRONG: "error", State.SLOW: "warning", State.UNKNOWN: "unknown", State.NORMAL: "ok"}
ORDER = tuple(WORD)
_TITLES = {
    What.TRAIN: "Training",
    What.ALLREDUCE: "Allreduce",
    What.BROADCAST: "Broadcast",
    What.PINGPONG: "Pingpong, one way",
    What.INPUT: "Input",
    What.CHECKPOINT: "Checkpoint",
    What.START: "Start",
}


@dataclass(frozen=True)
class Group:
    """Lines of the same state, for the same reason."""

    word: str
    state: str
    because: str
    remedy: str
    lines: tuple[tuple[str, str], ...]
    more: int


@dataclass(frozen=True)
class Table:
    """Rows of one thing, each the words of its cells by name.

    Attributes:
        basis: where what is normal comes from in rows that do not say it themselves.
        counts: (CSS class, state, how many rows), the worst first.
        opened: a row is slow or wrong, or has changed, so that it is shown at once.
    """

    title: str
    basis: str
    rows: tuple[dict[str, str], ...]
    counts: tuple[tuple[str, str, int], ...]
    opened: bool


def broken(validation: Validation) -> Iterator[Group]:
    """What broke, and what else is wrong, as :func:`fairlead.perf.judge.faults.ranked` has it."""
    for fault in validation.faults:
        error = fault.severity is Severity.ERROR
        word, state = ("error", "broken") if error else ("warning", "to check")
        because = f"{faults.words(fault)}{'; ' if fault.why else ''}{fault.why}"
        yield Group(word, state, because, fault.remedy, (), 0)


def groups(validation: Validation) -> Iterator[Group]:
    """All that is not normal, or is so with a word to say, by its reason; the worst first."""
    by_reason: dict[tuple[State, str, str], list[tuple[Measurement, Verdict]]] = {}
    for m, v in zip(validation.measurements, validation.verdicts, strict=True):
        if v.state is not State.NORMAL:
            by_reason.setdefault((v.state, v.because, v.remedy), []).append((m, v))
    for reason in sorted(by_reason, key=lambda r: (ORDER.index(r[0]), -len(by_reason[r]))):
        state, because, remedy = reason
        pairs = sorted(by_reason[reason], key=lambda p: -(p[1].times or 0))
        lines = tuple(
            (label(m), slower(v.times) if v.times and state is State.SLOW else "")
            for m, v in pairs[:6]
        )
        yield Group(WORD[state], state.value, because, remedy, lines, len(pairs) - len(lines))


def tables(validation: Validation) -> tuple[Table, ...]:
    """All lines, by what was measured."""
    verdicts = dict(zip(validation.measurements, validation.verdicts, strict=True))
    number = itertools.count()
    return tuple(
        _table(title, [_row(m, verdicts[m], titled, next(number) < _STRIPS) for m in lines])
        for title, titled, lines in sorted_by_title(validation.measurements)
    )


def sorted_by_title(
    measurements: Sequence[Measurement],
) -> list[tuple[str, bool, list[Measurement]]]:
    """Lines of one table each: its title, whether that names their subject, and the lines in order."""
    titles: dict[str, tuple[bool, list[Measurement]]] = {}
    kinds, ways = list(_TITLES), list(Way)
    few = len({m.subject for m in measurements if m.what is What.PINGPONG}) <= _PAIRS

    def place(m: Measurement) -> tuple[object, ...]:
        kind, subject_ = kinds.index(m.what), m.subject if m.what in _OF else ""
        return kind, subject_, m.nodes, m.ranks, m.bytes or 0, ways.index(m.way)

    for m in sorted(measurements, key=place):
        titled = m.what in _OF or (m.what is What.PINGPONG and few)
        title = _title(m) if titled else _TITLES[m.what]
        title += f", under {m.launcher}" if m.launcher else ""
        titles.setdefault(title, (titled, []))[1].append(m)
    return [(title, titled, lines) for title, (titled, lines) in titles.items()]


def _table(title: str, rows: list[dict[str, str]]) -> Table:
    """What is normal by the same source in most rows is said once."""
    sources = Counter(row["basis"] for row in rows if row["basis"])
    (source, often), *_ = sources.most_common(1) or [("", 0)]
    if often < 2:
        source = ""
    for row in rows:
        row["basis"] = "" if row["basis"] == source else row["basis"]
    states = Counter(row["state"] for row in rows)
    counts = tuple((WORD[s], s.value, states[s.value]) for s in ORDER if states[s.value])
    opened = any(states[s.value] for s in (State.WRONG, State.SLOW))
    return Table(title, source, tuple(rows), counts, opened)


def _title(m: Measurement) -> str:
    """With what all lines of the table have in common."""
    if m.what is What.TRAIN:
        return f"Training of {model_title(m.subject)}"
    if m.what is What.PINGPONG:
        return _TITLES[m.what] + (f", {subject(m)}" if m.subject else "")
    return f"{_TITLES[m.what]} by {subject(m) or 'MPI itself'}"


def _row(m: Measurement, v: Verdict, titled: bool, draw: bool) -> dict[str, str]:
    """A line; what its table's title has ``titled`` is not said again."""
    median, interval, strip, note = "–", "", "", ""
    if m.samples:
        summary = stats.summarize(m.samples)
        median = amount(summary.median, m.unit)
        if summary.low is not None and summary.high is not None:
            interval = between(summary.low, summary.high, m.unit)
        normal = (v.expected.low, v.expected.high) if v.expected else None
        if draw:
            strip = charts.strip(m.samples, summary, normal)
        far = f", {count(len(summary.outliers), 'outlier')}" if summary.outliers else ""
        note = f"{count(summary.n, 'repeat')}{far}"
    return {
        "where": within(m, titled),
        "way": name_of(m.way),
        "median": median,
        "interval": interval,
        "expected": _expected(v.expected, m),
        "basis": v.expected.source if v.expected else "",
        "times": slower(v.times) if v.times else "",
        "word": WORD[v.state],
        "state": v.state.value,
        "strip": strip,
        "note": note,
    }


def within(m: Measurement, titled: bool) -> str:
    """A line of a table whose title has ``titled`` the subject, or has not."""
    return where(m) if titled or not m.subject else f"{subject(m)}, {where(m)}"


def _expected(e: Expected | None, m: Measurement) -> str:
    if e is None:
        return "–"
    far = e.high if m.smaller_is_better else e.low
    return f"{'≤' if m.smaller_is_better else '≥'} {amount(far, m.unit)}"


def slower(times: float) -> str:
    """Against what is normal: ``1.27 × slower``, ``1.69 × faster``, ``as usual`` within 2 %."""
    if 0.98 <= times <= 1.02:
        return "as usual"
    return f"{digits(times)} × slower" if times > 1 else f"{digits(1 / times)} × faster"


def as_csv(validation: Validation) -> str:
    """One row a measurement, in full precision; empty where there is nothing."""
    out = io.StringIO()
    rows = csv.writer(out, lineterminator="\n")
    rows.writerow(COLUMNS)
    for m, v in zip(validation.measurements, validation.verdicts, strict=True):
        summary = stats.summarize(m.samples) if m.samples else None
        e = v.expected
        rows.writerow(
            [
                m.key, m.what.value, m.way.value, m.subject, m.ranks, m.nodes, m.bytes, m.launcher, m.unit,
                len(m.samples), summary and summary.median, summary and summary.low, summary and summary.high,
                summary and len(summary.outliers), m.crowded, m.wrong, v.state.value, v.times,
                e and e.basis.value, e and e.value, e and e.low, e and e.high, e and e.source,
                v.because, v.remedy,
            ]
        )  # fmt: skip
    return out.getvalue()


COLUMNS = (
    "key", "what", "way", "subject", "ranks", "nodes", "bytes", "launcher", "unit",
    "repeats", "median", "low", "high", "outliers", "crowded", "wrong", "state", "times",
    "basis", "expected", "expected_low", "expected_high", "source", "because", "remedy",
)  # fmt: skip
