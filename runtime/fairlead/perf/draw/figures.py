"""What a validation's page draws: its measurements and steps as charts, bars and cells. Data in, values out."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from fairlead.ml.train.model import StepTimes
from fairlead.perf import stats
from fairlead.perf.draw.charts import Axis, Figure, Series, chart, decades, heat
from fairlead.perf.draw.wording import (
    amount,
    count,
    model_title,
    name_of,
    size,
    subject,
)
from fairlead.perf.judge.bounds import limit
from fairlead.perf.records.validation import (
    Basis,
    Bound,
    Expected,
    Measurement,
    Validation,
    Way,
    What,
)

_STYLE = {Way.NATIVE: "b", Way.CONTAINER: "a", Way.IMAGE: "c"}
_MOST_ROWS, _MOST_COLUMNS = 64, 160
_MOST_BARS = 12
# Of the median of all: from where on a cell is of the next level.
LEVELS = (1.1, 1.2, 1.35, 1.6, 2.0)


@dataclass(frozen=True)
class Bar:
    """A rank's or a node's median step: (part's number, name, ms, percent of the longest bar)."""

    name: str
    total_ms: float
    parts: tuple[tuple[int, str, float, float], ...]


@dataclass(frozen=True)
class HeatMap:
    """Ranks × steps.

    Attributes:
        rows: (label, how many rows of cells it spans, whether it stands out).
        ticks: (percent from the left, label).
        words: what it shows, and how it was thinned out.
        bounds: ms from which the levels above 0 are.
    """

    svg: str
    rows: tuple[tuple[str, int, bool], ...]
    ticks: tuple[tuple[float, str], ...]
    words: str
    bounds: tuple[float, ...]


def trained(validation: Validation) -> dict[str, dict[Way, list[Measurement]]]:
    """Trainings by model and way, on few ranks first; models that were trained on most ranks first."""
    models: dict[str, dict[Way, list[Measurement]]] = {}
    rows = (m for m in validation.measurements if m.what is What.TRAIN and m.samples)
    for m in sorted(rows, key=lambda m: m.ranks):
        models.setdefault(m.subject, {}).setdefault(m.way, []).append(m)
    most = {name: max(rows[-1].ranks for rows in ways.values()) for name, ways in models.items()}
    return {name: models[name] for name in sorted(models, key=lambda name: (-most[name], name))}


def scaling(model: str, rows: Mapping[Way, Sequence[Measurement]]) -> tuple[Figure, ...]:
    """Speed against ranks, and how much of ideal that is; nothing for a single number of ranks."""
    everything = [m for measured in rows.values() for m in measured]
    counts = sorted({m.ranks for m in everything})
    if len(counts) < 2:
        return ()
    speeds, shares, starts = [], [], []
    for way in sorted(rows, key=lambda w: w is not Way.NATIVE):
        summaries = [(m.ranks, stats.summarize(m.samples)) for m in rows[way]]
        starts.append(summaries[0][1].median / summaries[0][0])
        speeds.append(_series(way, summaries, lambda ranks, speed: speed))
        # Each way's efficiency is compared with its own start; of speeds there is one ideal line.
        shares.append(_series(way, summaries, partial(_share, starts[-1])))
    ends = {line.name: line.points[-1] for line in shares}
    most, share = ends.get(name_of(Way.CONTAINER)) or ends.get(name_of(Way.NATIVE)) or (0, 0)
    reached = f": {share:.0f} % of ideal on {counts[-1]} ranks" if most == counts[-1] else ""
    labels = tuple((float(c), str(c)) for c in _thinned(counts))
    ranks = Axis("ranks", counts[0] / 1.12, counts[-1] * 1.12, labels)

    def figure(kind: str, words: str, axis: Axis, ideal: Series, series: list[Series]) -> Figure:
        title = f"{kind} of {model_title(model)}"
        described = f"{title} against ranks{reached}"
        svg = chart(ranks, axis, [ideal, *series], described, _crowded(everything))
        return Figure(title, words, svg, legend([*series, ideal]))

    whose = f", from {name_of(Way.NATIVE)}" if len(rows) > 1 and Way.NATIVE in rows else ""
    points = tuple((float(c), starts[0] * c) for c in counts)
    line = Series(f"ideal{whose}", points, "ideal", marks=False)
    speed = decades([y for s in (*speeds, line) for _, y in s.points], "samples/s")
    full = Series("ideal", ((counts[0], 100.0), (counts[-1], 100.0)), "ideal", marks=False)
    top = max(105.0, *_heights(shares))
    ticks = tuple((float(v), f"{v} %") for v in range(0, int(top) + 1, 25 if top <= 130 else 50))
    up = Axis("", 0, top, ticks, log=False, words="{:.1f} %".format)
    shaded = "of all ranks together; shaded: 95 % interval of the median"
    often = f"of {count(counts[0], 'rank')}'s speed, as often as there are ranks"
    return (
        figure("Speed", shaded, speed, line, speeds),
        figure("Efficiency", often, up, full, shares),
    )


def _share(one_rank: float, ranks: int, speed: float) -> float:
    return 100 * speed / (one_rank * ranks)


def _series(
    way: Way, summaries: Sequence[tuple[int, stats.Summary]], of: Callable[[int, float], float]
) -> Series:
    """The medians at each x and their intervals, as ``of`` draws a value at an x."""
    points = tuple((float(x), of(x, s.median)) for x, s in summaries)
    ends = ((x, of(x, s.low), of(x, s.high)) for x, s in summaries if s.low and s.high)
    band = tuple((float(x), min(a, b), max(a, b)) for x, a, b in ends)
    return Series(name_of(way), points, _STYLE[way], band)


def legend(series: Sequence[Series]) -> tuple[tuple[str, str], ...]:
    return tuple((s.style, s.name) for s in series)


def _crowded(measured: Sequence[Measurement]) -> tuple[float, str] | None:
    """From where on ranks share cores."""
    shared = [m.ranks for m in measured if m.crowded]
    alone = [m.ranks for m in measured if not m.crowded]
    if not shared:
        return None
    return math.sqrt(max(alone) * min(shared)) if alone else 0.0, "ranks share cores"


def _thinned(counts: Sequence[int]) -> Sequence[int]:
    step = -(-len(counts) // 8)
    return [*counts[::-1][::step]][::-1]


def bandwidths(validation: Validation, what: What) -> tuple[Figure, ...]:
    """Bytes over time against size, with the expected values: a figure for each that carried them.

    Of the most ranks that have a core each; where all share cores, of the most. What has fewer than three sizes is left
    out.
    """
    measured = [m for m in validation.measurements if m.what is what and m.bytes and m.samples]
    if not measured:
        return ()

    def place(m: Measurement) -> tuple[bool, int, int, str]:
        return not m.crowded, m.nodes, m.ranks, m.launcher

    most = max(map(place, measured))
    groups: dict[str, list[Measurement]] = {}
    for m in measured:
        if place(m) == most:
            groups.setdefault(m.subject, []).append(m)
    drawn = (_bandwidth(validation, groups[name]) for name in sorted(groups))
    return tuple(figure for figure in drawn if figure)


def _bandwidth(validation: Validation, measured: Sequence[Measurement]) -> Figure | None:
    """Of measurements that differ in size and way only."""
    verdicts = dict(zip(validation.measurements, validation.verdicts, strict=True))
    first, sizes = measured[0], sorted({m.bytes for m in measured if m.bytes})
    if len(sizes) < 3:
        return None
    series, expected = [], []
    references: dict[Measurement, Expected] = {}
    limits: dict[int, float] = {}
    for way, rows in _by_way(measured):
        summaries = [(_bytes(m), stats.summarize(m.samples)) for m in rows]
        series.append(_series(way, summaries, lambda size, seconds: size / seconds))
        for m in rows:
            usual, known = verdicts[m].expected, limit(m, validation.bounds)
            if usual and usual.basis is Basis.REFERENCE:
                references[m] = usual
            if isinstance(known, Bound):
                limits[_bytes(m)] = _bytes(m) / known.value
    band = {_bytes(m): (_bytes(m) / e.high, _bytes(m) / e.low) for m, e in references.items()}
    if len(band) > 1:
        expected.append(_reference(band))
    if len(limits) > 1:
        points = tuple((float(b), limits[b]) for b in sorted(limits))
        expected.append(Series("bound of the hardware", points, "bound", marks=False))
    across = Axis(
        "bytes of a message" if first.what is What.PINGPONG else "bytes of a rank",
        sizes[0] / 1.4,
        sizes[-1] * 1.4,
        tuple((float(b), _tick(b)) for b in _thinned(sizes)),
        words=lambda value: size(int(value)),
    )
    by = f" by {subject(first)}" if first.what is not What.PINGPONG and subject(first) else ""
    where = f"{count(first.ranks, 'rank')} on {count(first.nodes, 'node')}"
    where += ", sharing cores" if first.crowded else ""
    title = f"{first.what.value.capitalize()}{by}, {where}"
    up = decades(_heights([*series, *expected]), "", lambda value: amount(value, "B/s"))
    up = replace(up, ticks=tuple((v, _round(words)) for v, words in up.ticks))
    # What is expected lies below what was measured.
    lines = [*reversed(expected), *series]
    svg = chart(across, up, lines, f"Bandwidth against size: {title}") + _against(
        references, across
    )
    words = "bandwidth: bytes over time; shaded: 95 % interval of the median"
    return Figure(title, words, svg, legend([*series, *expected]))


def _bytes(m: Measurement) -> int:
    return m.bytes or 0


def _by_way(measured: Iterable[Measurement]) -> Iterator[tuple[Way, list[Measurement]]]:
    """Those of each way that there is, by size."""
    ordered = sorted(measured, key=_bytes)
    for way in _STYLE:
        if rows := [m for m in ordered if m.way is way]:
            yield way, rows


def _reference(band: Mapping[int, tuple[float, float]]) -> Series:
    return Series(
        "this site's reference", (), "ref", tuple((float(b), *band[b]) for b in sorted(band))
    )


def _heights(lines: Sequence[Series]) -> list[float]:
    return [y for s in lines for _, *ys in (*s.points, *s.band) for y in ys]


def _against(references: Mapping[Measurement, Expected], across: Axis) -> str:
    """The same over its reference, where the band of what is normal can be seen; nothing without references."""
    lines = []
    band: dict[int, tuple[float, float]] = {}
    for way, rows in _by_way(references):
        points = []
        for m in rows:
            e = references[m]
            points.append((float(_bytes(m)), 100 * e.value / stats.summarize(m.samples).median))
            low, high = 100 * e.value / e.high, 100 * e.value / e.low
            before = band.get(_bytes(m), (low, high))
            band[_bytes(m)] = (min(low, before[0]), max(high, before[1]))
        lines.append(Series(name_of(way), tuple(points), _STYLE[way]))
    if len(band) < 2:
        return ""
    lines.insert(0, _reference(band))
    values = _heights(lines)
    low, high = min(80.0, *values) - 2, max(120.0, *values) + 2
    step = next(s for s in (20, 50, 100, 200, 500, 1000, 10**9) if (high - low) / s < 5)
    ticks = range(math.ceil(low / step) * step, int(high) + 1, step)
    title, labels = "of this site's reference", tuple((float(v), f"{v} %") for v in ticks)
    axis = Axis(title, low, high, labels, log=False, words="{:.1f} %".format)
    return chart(across, axis, lines, f"The same, in percent {title}", height=190)


def _round(words: str) -> str:
    """A tick is exact: ``10 MB/s`` for ``10.0 MB/s``."""
    value, _, unit = words.partition(" ")
    return f"{value.rstrip('0').rstrip('.') if '.' in value else value} {unit}"


def _tick(amount: int) -> str:
    return size(amount).replace("iB", "").replace(" ", "").removesuffix("B")


def split(steps: Sequence[StepTimes]) -> tuple[Bar, ...]:
    """Median step of every rank; of many ranks, of every node; of many nodes, of the slowest and a usual one."""
    if not steps:
        return ()
    groups: dict[str, list[StepTimes]] = {}
    for rank, host in zip(steps, short([rank.host for rank in steps]), strict=True):
        name = f"rank {rank.rank}" if len(steps) <= _MOST_BARS else host
        groups.setdefault(name, []).append(rank)
    medians = {name: _medians(group) for name, group in groups.items()}
    if len(medians) > _MOST_BARS:
        own = {n: sum(v for k, v in m.items() if k not in _WAITS) for n, m in medians.items()}
        order = sorted(medians, key=lambda name: own[name])
        fastest, usual = order[0], order[len(order) // 2]
        medians = {
            **{name: medians[name] for name in reversed(order[2 - _MOST_BARS :])},
            f"{usual}, a usual one": medians[usual],
            f"{fastest}, the fastest": medians[fastest],
        }
    longest = max(sum(parts.values()) for parts in medians.values()) or 1.0
    return tuple(
        Bar(
            name,
            1000 * sum(parts.values()),
            tuple((i, k, 1000 * v, 100 * v / longest) for i, (k, v) in enumerate(parts.items())),
        )
        for name, parts in medians.items()
    )


_WAITS = ("exposed communication", "idle")


def parts(steps: Sequence[StepTimes]) -> tuple[tuple[str, float], ...]:
    """Parts of a step and their medians over ranks and steps, ms."""
    return tuple((name, 1000 * s) for name, s in _medians(steps).items()) if steps else ()


def _medians(group: Sequence[StepTimes]) -> dict[str, float]:
    return {
        part: float(np.median([v for rank in group for v in rank.parts[part]]))
        for part in group[0].parts
    }


def heat_map(steps: Sequence[StepTimes]) -> HeatMap | None:
    """What each rank needed itself for each step, without waiting, against the median of all.

    Rows and columns beyond what can be seen are pooled by their largest: a single slow step stays visible.
    """
    if not steps or len(steps[0].input_s) < 2:
        return None
    ordered = sorted(steps, key=lambda rank: rank.rank)
    busy = np.array([rank.busy_s for rank in ordered])
    usual = float(np.median(busy)) or 1e-9
    ranks, total = busy.shape
    tall, wide = -(-ranks // _MOST_ROWS), -(-total // _MOST_COLUMNS)
    pooled = np.maximum.reduceat(busy, np.arange(0, ranks, tall), axis=0)
    pooled = np.maximum.reduceat(pooled, np.arange(0, total, wide), axis=1)
    levels = np.searchsorted(LEVELS, pooled / usual, side="right")
    names = _names(ordered)
    late = np.median(busy, axis=1) > LEVELS[0] * usual
    slow = set(itertools.compress(names, late))
    # Of the ranks of a row, one that is slow gives it its name.
    rows = [
        next((names[r] for r in range(i, min(i + tall, ranks)) if late[r]), names[i])
        for i in range(0, ranks, tall)
    ]
    words = f"What each of {ranks:,} ranks needed itself for each of {total:,} steps; all else is waiting for others."
    thinned = [f"{tall} ranks a row"] * (tall > 1) + [f"{wide} steps a column"] * (wide > 1)
    if thinned:
        words += f" Drawn with {'; '.join(thinned)}: the longest of them."
    marks = [round(i * (total - 1) / 4) for i in range(5)] if total > 8 else [0, total - 1]
    return HeatMap(
        heat(levels.tolist(), words),
        tuple(_labels(rows, slow)),
        tuple((100 * (m + 0.5) / total, f"{m + 1:,}") for m in marks),
        words,
        tuple(1000 * usual * level for level in LEVELS),
    )


def _names(ordered: Sequence[StepTimes]) -> list[str]:
    """Of rows: ranks where there are few on one host, else hosts."""
    hosts = short([rank.host for rank in ordered])
    if len(ordered) <= _MOST_BARS and len(set(hosts)) == 1:
        return [f"rank {rank.rank}" for rank in ordered]
    return hosts


def short(hosts: Sequence[str]) -> list[str]:
    """Without the domain, where all have the same."""
    if len({host.partition(".")[2] for host in hosts}) == 1:
        return [host.partition(".")[0] for host in hosts]
    return list(hosts)


def _labels(hosts: Sequence[str], slow: set[str]) -> list[tuple[str, int, bool]]:
    """Neighbouring rows of one host share a label; of more than 16 labels, only those that stand out are shown."""
    labels = [(host, len([*rows]), host in slow) for host, rows in itertools.groupby(hosts)]
    if len(labels) > 16:
        labels = [(name if out else "", rows, out) for name, rows, out in labels]
    return labels
