"""A validation's lines as rows: for the page's tables, for its verdict by reasons, and as CSV."""

from __future__ import annotations

import csv
import io
from collections import Counter
from dataclasses import dataclass, replace

from fairlead.findings import Severity
from fairlead.report import charts
from fairlead.report.words import amount, count, label, name_of, where
from fairlead.validate import faults, stats
from fairlead.validate.model import (
    Basis,
    Expected,
    Measurement,
    State,
    Validation,
    Verdict,
    Way,
    What,
)

_STRIPS = 200  # of lines beyond that, the page would become heavy
WORD = {
    State.NORMAL: "ok",
    State.SLOW: "warning",
    State.WRONG: "error",
    State.UNKNOWN: "unknown",
}
ORDER = (State.WRONG, State.SLOW, State.UNKNOWN, State.NORMAL)
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
    """Lines that stand alike for the same reason."""

    word: str
    state: str
    because: str
    remedy: str
    lines: tuple[tuple[str, str], ...]
    more: int


@dataclass(frozen=True)
class Table:
    """Rows of one thing.

    Attributes:
        basis: where what is normal comes from in rows that do not say it themselves.
    """

    title: str
    basis: str
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class Row:
    """One measurement, in words."""

    where: str
    way: str
    median: str
    interval: str
    expected: str
    basis: str
    times: str
    word: str
    state: str
    strip: str
    note: str


def broken(validation: Validation) -> tuple[Group, ...]:
    """What broke, and what else is amiss, as :func:`fairlead.validate.faults.ranked` has it."""
    return tuple(
        Group(
            "error" if fault.severity is Severity.ERROR else "warning",
            "broken" if fault.severity is Severity.ERROR else "amiss",
            f"{faults.words(fault)}{'; ' if fault.why else ''}{fault.why}",
            fault.remedy,
            (),
            0,
        )
        for fault in validation.faults
    )


def groups(validation: Validation) -> tuple[Group, ...]:
    """All that is not normal, or is so with a word to say, by its reason; the worst first."""
    found: dict[tuple[State, str, str], list[tuple[Measurement, Verdict]]] = {}
    for m, v in zip(validation.measurements, validation.verdicts, strict=True):
        if v.state is not State.NORMAL:
            found.setdefault((v.state, v.because, v.remedy), []).append((m, v))
    order = sorted(found, key=lambda k: (ORDER.index(k[0]), -len(found[k])))
    made = []
    for state, because, remedy in order:
        pairs = sorted(found[state, because, remedy], key=lambda p: -(p[1].times or 0))
        lines = tuple(
            (label(m), f"{v.times:.2f} × slower" if v.times and state is State.SLOW else "")
            for m, v in pairs[:6]
        )
        made.append(
            Group(WORD[state], state.value, because, remedy, lines, len(pairs) - len(lines))
        )
    return tuple(made)


def tables(validation: Validation) -> tuple[Table, ...]:
    """All lines, by what was measured."""
    titles: dict[str, list[Row]] = {}
    kinds, ways = list(_TITLES), list(Way)
    pairs = sorted(
        zip(validation.measurements, validation.verdicts, strict=True),
        key=lambda pair: (
            kinds.index(pair[0].what),
            pair[0].subject if pair[0].what is What.TRAIN else "",
            pair[0].nodes,
            pair[0].ranks,
            pair[0].bytes or 0,
            ways.index(pair[0].way),
        ),
    )
    for number, (m, v) in enumerate(pairs):
        title = _TITLES[m.what] + (f" of {m.subject}" if m.what is What.TRAIN else "")
        title += f", by {m.launcher}" if m.launcher else ""
        titles.setdefault(title, []).append(_row(m, v, number < _STRIPS))
    return tuple(_table(title, rows) for title, rows in titles.items())


def _table(title: str, rows: list[Row]) -> Table:
    """What is normal by the same source in most rows is said once."""
    sources = Counter(row.basis for row in rows if row.basis)
    (source, often), *_ = sources.most_common(1) or [("", 0)]
    if often < 2:
        return Table(title, "", tuple(rows))
    kept = (replace(row, basis="" if row.basis == source else row.basis) for row in rows)
    return Table(title, source, tuple(kept))


def _row(m: Measurement, v: Verdict, draw: bool) -> Row:
    median, interval, strip, note = "–", "", "", ""
    if m.samples:
        seen = stats.summarize(m.samples)
        median = amount(seen.median, m.unit)
        between = None
        if seen.low is not None and seen.high is not None:
            between = (seen.low, seen.high)
            interval = f"{amount(seen.low, m.unit)} to {amount(seen.high, m.unit)}"
        normal = (v.expected.low, v.expected.high) if v.expected else None
        if draw:
            strip = charts.strip(m.samples, seen.outliers, between, normal, seen.median)
        far = f", {count(len(seen.outliers), 'outlier')}" if seen.outliers else ""
        note = f"{count(seen.n, 'repeat')}{far}"
    return Row(
        where=where(m) if m.what is What.TRAIN or not m.subject else f"{m.subject}, {where(m)}",
        way=name_of(m.way),
        median=median,
        interval=interval,
        expected=_expected(v.expected, m),
        basis=v.expected.source if v.expected else "",
        times=f"{v.times:.2f} ×" if v.times else "",
        word=WORD[v.state],
        state=v.state.value,
        strip=strip,
        note=note,
    )


def _expected(e: Expected | None, m: Measurement) -> str:
    if e is None:
        return "–"
    far = e.high if m.smaller_is_better else e.low
    words = {Basis.REFERENCE: "reference", Basis.BOUND: "bound", Basis.NATIVE: "native"}
    return f"{'≤' if m.smaller_is_better else '≥'} {amount(far, m.unit)} ({words.get(e.basis, '')})"


def as_csv(validation: Validation) -> str:
    """One row a measurement, in full precision; empty where there is nothing."""
    out = io.StringIO()
    rows = csv.writer(out, lineterminator="\n")
    rows.writerow(COLUMNS)
    for m, v in zip(validation.measurements, validation.verdicts, strict=True):
        seen = stats.summarize(m.samples) if m.samples else None
        e = v.expected
        rows.writerow(
            [
                m.key, m.what.value, m.way.value, m.subject, m.ranks, m.nodes, m.bytes, m.launcher, m.unit,
                len(m.samples), seen and seen.median, seen and seen.low, seen and seen.high,
                seen and len(seen.outliers), m.crowded, m.wrong, v.state.value, v.times,
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
