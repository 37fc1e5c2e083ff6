"""What a validation's page draws: its measurements and steps as charts, bars and cells. Data in, values out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fairlead.ml.train.model import StepTimes
from fairlead.perf import stats
from fairlead.perf.draw.charts import Axis, Figure, Series, Shade, chart, decades, heat
from fairlead.perf.draw.wording import (
    amount,
    count,
    model_title,
    name_of,
    percent,
    size,
    subject,
)
from fairlead.perf.judge.bounds import limit
from fairlead.perf.judge.verdict import efficiency
from fairlead.perf.records.evidence import Bound
from fairlead.perf.records.validation import Basis, Measurement, Validation, Verdict, Way, What

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


def _trained(validation: Validation) -> dict[tuple[str, Way], list[Measurement]]:
    trained: dict[tuple[str, Way], list[Measurement]] = {}
    for m in validation.measurements:
        if m.what is What.TRAIN and m.samples:
            trained.setdefault((m.subject, m.way), []).append(m)
    return {key: sorted(rows, key=lambda m: m.ranks) for key, rows in trained.items()}


def models(validation: Validation) -> tuple[str, ...]:
    """That were trained, those on most ranks first."""
    most: dict[str, int] = {}
    for (model, _), rows in _trained(validation).items():
        most[model] = max(most.get(model, 0), rows[-1].ranks)
    return tuple(sorted(most, key=lambda name: (-most[name], name)))


def scaling(validation: Validation, model: str) -> tuple[Figure, ...]:
    """Speed against ranks, and how much of ideal that is; nothing for a single number of ranks."""
    rows = {
        way: measured for (name, way), measured in _trained(validation).items() if name == model
    }
    counts = sorted({m.ranks for measured in rows.values() for m in measured})
    if len(counts) < 2:
        return ()
    crowded = _crowded([m for measured in rows.values() for m in measured])
    lines, parts = [], []
    base = rows.get(Way.NATIVE) or next(iter(rows.values()))
    one = stats.summarize(base[0].samples).median / base[0].ranks
    for way in sorted(rows, key=lambda w: w is not Way.NATIVE):
        points, band, of_ideal, share_band = [], [], [], []
        start = stats.summarize(rows[way][0].samples).median / rows[way][0].ranks
        for m in rows[way]:
            seen = stats.summarize(m.samples)
            ideal = start * m.ranks
            points.append((float(m.ranks), seen.median))
            of_ideal.append((float(m.ranks), 100 * seen.median / ideal))
            if seen.low is not None and seen.high is not None:
                band.append((float(m.ranks), seen.low, seen.high))
                share_band.append((float(m.ranks), 100 * seen.low / ideal, 100 * seen.high / ideal))
        lines.append(Series(name_of(way), tuple(points), _STYLE[way], tuple(band)))
        parts.append(Series(name_of(way), tuple(of_ideal), _STYLE[way], tuple(share_band)))
    ranks = Axis(
        "ranks",
        counts[0] / 1.12,
        counts[-1] * 1.12,
        tuple((float(c), str(c)) for c in _thinned(counts)),
    )
    # Each way's efficiency is held against its own start; of speeds there is one line.
    whose = (
        f"ideal, from {name_of(Way.NATIVE)}" if len(rows) > 1 and Way.NATIVE in rows else "ideal"
    )
    ideal_line = Series(whose, tuple((float(c), one * c) for c in counts), "ideal", (), marks=False)
    every = [y for s in [*lines, ideal_line] for _, y in s.points]
    top = max(
        105.0,
        *(high for s in parts for _, _, high in s.band),
        *(y for s in parts for _, y in s.points),
    )
    step = 25 if top <= 130 else 50
    shares = tuple((float(v), f"{v} %") for v in range(0, int(top) + 1, step))
    axis = Axis("", 0, top, shares, log=False, words="{:.1f} %".format)
    full = Series("ideal", ((counts[0], 100.0), (counts[-1], 100.0)), "ideal", (), marks=False)
    legend = tuple((s.style, s.name) for s in lines)
    last = efficiency(validation, Way.CONTAINER) or efficiency(validation, Way.NATIVE)
    share = last.get((model, counts[-1]))
    share_words = f": {percent(share)} of ideal on {counts[-1]} ranks" if share else ""
    title, speed = model_title(model), decades(every, "samples/s")
    return (
        Figure(
            f"Speed of {title}",
            "of all ranks together; shaded: 95 % interval of the median",
            chart(
                ranks,
                speed,
                [ideal_line, *lines],
                f"Speed of {title} against ranks{share_words}",
                crowded,
            ),
            (*legend, ("ideal", whose)),
        ),
        Figure(
            f"Efficiency of {title}",
            f"of {count(counts[0], 'rank')}'s speed, as often as there are ranks",
            chart(
                ranks,
                axis,
                [full, *parts],
                f"Efficiency of {title} against ranks{share_words}",
                crowded,
            ),
            (*legend, ("ideal", "ideal")),
        ),
    )


def _crowded(measured: Sequence[Measurement]) -> Shade | None:
    """From where on ranks share cores."""
    shared = [m.ranks for m in measured if m.crowded]
    alone = [m.ranks for m in measured if not m.crowded]
    if not shared:
        return None
    return Shade(math.sqrt(max(alone) * min(shared)) if alone else 0.0, "ranks share cores")


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
    what, nodes, ranks = measured[0].what, measured[0].nodes, measured[0].ranks
    sizes = sorted({m.bytes for m in measured if m.bytes})
    if len(sizes) < 3:
        return None
    series: list[Series] = []
    references: dict[int, tuple[float, float]] = {}
    limits: dict[int, float] = {}
    for way in (Way.NATIVE, Way.CONTAINER, Way.IMAGE):
        points, band = [], []
        for m in sorted((m for m in measured if m.way is way), key=lambda m: m.bytes or 0):
            assert m.bytes
            seen, expected = stats.summarize(m.samples), verdicts[m].expected
            points.append((float(m.bytes), m.bytes / seen.median))
            if seen.low and seen.high:
                band.append((float(m.bytes), m.bytes / seen.high, m.bytes / seen.low))
            if expected and expected.basis is Basis.REFERENCE:
                references[m.bytes] = (m.bytes / expected.high, m.bytes / expected.low)
            known = limit(m, validation.bounds)
            if isinstance(known, Bound):
                limits[m.bytes] = m.bytes / known.value
        if points:
            series.append(Series(name_of(way), tuple(points), _STYLE[way], tuple(band)))
    legend = [(s.style, s.name) for s in series]
    usual = Series(
        "reference", (), "ref", tuple((float(b), *references[b]) for b in sorted(references))
    )
    bound = Series(
        "bound", tuple((float(b), limits[b]) for b in sorted(limits)), "bound", (), marks=False
    )
    if len(references) > 1:
        series.insert(0, usual)
        legend.append(("ref", "this site's reference"))
    if len(limits) > 1:
        series.insert(0, bound)
        legend.append(("bound", "bound of the hardware"))
    heights = [y for s in series for _, y in s.points] + [
        v for s in series for _, a, b in s.band for v in (a, b)
    ]
    across = Axis(
        "bytes of a message" if what is What.PINGPONG else "bytes of a rank",
        sizes[0] / 1.4,
        sizes[-1] * 1.4,
        tuple((float(b), _tick(b)) for b in _thinned(sizes)),
        words=lambda value: size(int(value)),
    )
    by = subject(measured[0]) if what is not What.PINGPONG else ""
    where = f"{count(ranks, 'rank')} on {count(nodes, 'node')}"
    where += ", sharing cores" if measured[0].crowded else ""
    title = f"{what.value.capitalize()}{f' by {by}' if by else ''}, {where}"
    up = decades(heights, "", lambda value: amount(value, "B/s"))
    up = replace(up, ticks=tuple((v, _round(words)) for v, words in up.ticks))
    drawn = chart(across, up, series, f"Bandwidth against size: {title}")
    return Figure(
        title,
        "bandwidth: bytes over time; shaded: 95 % interval of the median",
        drawn + _against(measured, verdicts, across),
        tuple(legend),
    )


def _against(
    measured: Sequence[Measurement], verdicts: Mapping[Measurement, Verdict], across: Axis
) -> str:
    """The same over its reference, where the band of what is normal can be seen; nothing without references."""
    series: list[Series] = []
    band: dict[int, tuple[float, float]] = {}
    for way in (Way.NATIVE, Way.CONTAINER, Way.IMAGE):
        points = []
        for m in sorted((m for m in measured if m.way is way), key=lambda m: m.bytes or 0):
            e = verdicts[m].expected
            if e and e.basis is Basis.REFERENCE and m.bytes:
                points.append((float(m.bytes), 100 * e.value / stats.summarize(m.samples).median))
                low, high = 100 * e.value / e.high, 100 * e.value / e.low
                before = band.get(m.bytes, (low, high))
                band[m.bytes] = (min(low, before[0]), max(high, before[1]))
        if points:
            series.append(Series(name_of(way), tuple(points), _STYLE[way]))
    if len(band) < 2:
        return ""
    usual = Series("reference", (), "ref", tuple((float(b), *band[b]) for b in sorted(band)))
    values = [y for s in series for _, y in s.points] + [y for pair in band.values() for y in pair]
    low, high = min(80.0, *values) - 2, max(120.0, *values) + 2
    step = next(s for s in (20, 50, 100, 200, 500, 1000, 10**9) if (high - low) / s < 5)
    ticks = range(math.ceil(low / step) * step, int(high) + 1, step)
    title, labels = "of this site's reference", tuple((float(v), f"{v} %") for v in ticks)
    axis = Axis(title, low, high, labels, log=False, words="{:.1f} %".format)
    return chart(across, axis, [usual, *series], f"The same, in percent {title}", height=190)


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
    for one, host in zip(steps, short([one.host for one in steps]), strict=True):
        name = f"rank {one.rank}" if len(steps) <= _MOST_BARS else host
        groups.setdefault(name, []).append(one)
    parts_by_name = {name: _medians(group) for name, group in groups.items()}
    if len(parts_by_name) > _MOST_BARS:
        own = {
            name: sum(v for k, v in m.items() if k not in _WAITS)
            for name, m in parts_by_name.items()
        }
        order = sorted(parts_by_name, key=lambda name: own[name])
        usual = order[len(order) // 2]
        parts_by_name = {
            **{name: parts_by_name[name] for name in reversed(order[-(_MOST_BARS - 2) :])},
            f"{usual}, a usual one": parts_by_name[usual],
            f"{order[0]}, the fastest": parts_by_name[order[0]],
        }
    longest = max(sum(parts.values()) for parts in parts_by_name.values()) or 1.0
    return tuple(
        Bar(
            name,
            1000 * sum(parts.values()),
            tuple((i, k, 1000 * v, 100 * v / longest) for i, (k, v) in enumerate(parts.items())),
        )
        for name, parts in parts_by_name.items()
    )


_WAITS = ("exposed communication", "idle")


def parts(steps: Sequence[StepTimes]) -> tuple[tuple[str, float], ...]:
    """Parts of a step and their medians over ranks and steps, ms."""
    return tuple((name, 1000 * s) for name, s in _medians(steps).items()) if steps else ()


def _medians(group: Sequence[StepTimes]) -> dict[str, float]:
    return {
        part: float(np.median([v for one in group for v in one.parts[part]]))
        for part in group[0].parts
    }


def heat_map(steps: Sequence[StepTimes]) -> HeatMap | None:
    """What each rank needed itself for each step, without waiting, against the median of all.

    Rows and columns beyond what can be seen are pooled by their largest: a single slow step stays visible.
    """
    if not steps or len(steps[0].input_s) < 2:
        return None
    ordered = sorted(steps, key=lambda one: one.rank)
    busy = np.array([one.busy_s for one in ordered])
    usual = float(np.median(busy)) or 1e-9
    ranks, total = busy.shape
    tall, wide = -(-ranks // _MOST_ROWS), -(-total // _MOST_COLUMNS)
    pooled = np.maximum.reduceat(busy, np.arange(0, ranks, tall), axis=0)
    pooled = np.maximum.reduceat(pooled, np.arange(0, total, wide), axis=1)
    levels = np.searchsorted(LEVELS, pooled / usual, side="right")
    names = _names(ordered)
    late = np.median(busy, axis=1) > LEVELS[0] * usual
    slow = {name for name, so in zip(names, late, strict=True) if so}
    # Of the ranks of a row, one that is slow gives it its name.
    rows = [
        next((names[r] for r in range(i, min(i + tall, ranks)) if late[r]), names[i])
        for i in range(0, ranks, tall)
    ]
    thinned = [
        f"{tall} ranks a row" if tall > 1 else "",
        f"{wide} steps a column" if wide > 1 else "",
    ]
    how = "; ".join(filter(None, thinned))
    words = f"What each of {ranks:,} ranks needed itself for each of {total:,} steps; all else is waiting for others."
    if how:
        words += f" Drawn with {how}: the longest of them."
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
    hosts = short([one.host for one in ordered])
    if len(ordered) <= _MOST_BARS and len(set(hosts)) == 1:
        return [f"rank {one.rank}" for one in ordered]
    return hosts


def short(hosts: Sequence[str]) -> list[str]:
    """Without the domain, where all have the same."""
    if len({host.partition(".")[2] for host in hosts}) == 1:
        return [host.partition(".")[0] for host in hosts]
    return list(hosts)


def _labels(hosts: Sequence[str], slow: set[str]) -> list[tuple[str, int, bool]]:
    """Neighbouring rows of one host share a label; of more than 16 labels, only those that stand out are shown."""
    labels: list[tuple[str, int, bool]] = []
    for host in hosts:
        if labels and labels[-1][0] == host:
            labels[-1] = (host, labels[-1][1] + 1, host in slow)
        else:
            labels.append((host, 1, host in slow))
    if len(labels) > 16:
        labels = [(name if out else "", rows, out) for name, rows, out in labels]
    return labels
