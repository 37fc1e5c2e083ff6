"""All drawings of fairlead: SVG text that takes its colours and fonts from the page around it, by CSS classes.

Written by hand: plotting libraries write thousands of bytes for a line, and fix colours, where classes let one drawing
serve light, dark and print. Coordinates are those of a viewBox as wide as a telephone, so that text stays legible there.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html import escape as escaped
from pathlib import Path
from typing import TYPE_CHECKING

from fairlead.base.text import plain

if TYPE_CHECKING:
    from fairlead.perf.stats import Summary  # imports NumPy

WIDTH, HEIGHT = 440, 284
_RIGHT, _TOP, _BOTTOM = 22, 14, 44
_UNIT = 20  # more at the top, where an axis names its unit
_LETTER = 7.6  # width of a label's letter, at most
_ROW = 26  # height of a bar's row
_LANE = 10  # height of a lane


def escape(words: str) -> str:
    """``words`` as text of a drawing, without characters that turn what stands around them."""
    return escaped(plain(words))


CHART_STYLE = Path(__file__).with_name("chart.css")


@dataclass(frozen=True)
class Figure:
    """A drawing with its legend; ``legend`` has (CSS class, name)."""

    title: str
    words: str
    svg: str
    legend: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Series:
    """A line with points.

    Attributes:
        points: (x, y), both above 0 on logarithmic axes.
        style: CSS class: ``a`` to ``f`` for what was measured, ``faint``, ``ideal`` and ``bound`` for dashed lines.
        band: (x, low, high) around it, shaded.
        marks: also a dot at every point, with a tooltip.
        line: the points are connected.
    """

    name: str
    points: tuple[tuple[float, float], ...]
    style: str
    band: tuple[tuple[float, float, float], ...] = ()
    marks: bool = True
    line: bool = True


@dataclass(frozen=True)
class Axis:
    """One axis.

    Attributes:
        title: below a horizontal axis, above a vertical one: quantity and unit.
        low, high: its ends.
        ticks: (value, label), not necessarily at the ends.
        words: formats a value.
    """

    title: str
    low: float
    high: float
    ticks: tuple[tuple[float, str], ...]
    log: bool = True
    words: Callable[[float], str] = "{:,.6g}".format

    def place(self, value: float) -> float:
        """0 at the low end, 1 at the high one."""
        if self.log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)


@dataclass(frozen=True)
class BarRow:
    """A horizontal bar.

    Attributes:
        text: its value in words, right of the field.
        style: CSS class: ``a`` for what is of interest, ``other``; "" draws no bar.
        interval: of the value.
        limit: where a mark is drawn across the bar; None for none.
        note: a second text, at the right edge.
    """

    name: str
    value: float
    text: str
    style: str = "other"
    interval: tuple[float, float] | None = None
    limit: float | None = None
    note: str = ""


def chart(
    x: Axis,
    y: Axis,
    series: Sequence[Series],
    words: str,
    shade: tuple[float, str] | None = None,
    height: int = HEIGHT,
) -> str:
    """An ``<svg>`` of lines.

    Args:
        words: describes it for readers who do not see it.
        shade: the field right of a value is of another kind, which the words name.
        height: of the viewBox, which is :data:`WIDTH` wide.
    """
    field = _Field(x, y, height)
    out = [*(field.shade(*shade) if shade else ()), *field.axes()]
    for line in series:
        if line.band:
            there = [field.at(px, high) for px, _, high in line.band]
            back = [field.at(px, low) for px, low, _ in reversed(line.band)]
            out.append(f'<path class="band {line.style}" d="M{"L".join(there + back)}Z"/>')
    for line in series:
        out += field.line(line)
    return _svg(WIDTH, height, out, words)


class _Field:
    """The rectangle between two axes."""

    def __init__(self, x: Axis, y: Axis, height: int):
        self.x, self.y, self.height = x, y, height
        self.left = max(34.0, 12 + _LETTER * max((len(label) for _, label in y.ticks), default=0))
        self.top = _TOP + (_UNIT if y.title else 0)
        self.right, self.bottom = WIDTH - _RIGHT, height - _BOTTOM

    def across(self, value: float) -> float:
        return self.left + self.x.place(value) * (self.right - self.left)

    def down(self, value: float) -> float:
        return self.bottom - self.y.place(value) * (self.bottom - self.top)

    def at(self, px: float, py: float) -> str:
        return f"{self.across(px):.1f} {self.down(py):.1f}"

    def shade(self, start: float, words: str) -> Iterator[str]:
        edge, right = self.across(max(start, self.x.low)), self.right
        yield f'<path class="shade" d="M{edge:.1f} {self.top}H{right}V{self.bottom}H{edge:.1f}z"/>'
        yield f'<text x="{right - 6}" y="{self.bottom - 8}" class="end">{escape(words)}</text>'

    def axes(self) -> Iterator[str]:
        left, right, bottom = self.left, self.right, self.bottom
        if self.y.title:
            yield f'<text x="0" y="{_TOP - 1}" class="unit">{escape(self.y.title)}</text>'
        for value, label in self.y.ticks:
            line = self.down(value)
            yield f'<path class="grid" d="M{left:.1f} {line:.1f}H{right}"/>'
            yield f'<text x="{left - 8:.1f}" y="{line + 4:.1f}" class="end">{escape(label)}</text>'
        for value, label in self.x.ticks:
            at = self.across(value)
            yield f'<path class="grid" d="M{at:.1f} {bottom}v4"/>'
            yield f'<text x="{at:.1f}" y="{bottom + 19}" class="mid">{escape(label)}</text>'
        yield f'<path class="axis" d="M{left:.1f} {bottom}H{right}"/>'
        middle = (left + right) / 2
        yield f'<text x="{middle:.0f}" y="{self.height - 6}" class="mid">{escape(self.x.title)}</text>'

    def line(self, line: Series) -> Iterator[str]:
        if line.points and line.line:
            points = "L".join(self.at(px, py) for px, py in line.points)
            yield f'<path class="line {line.style}" d="M{points}"/>'
        size = 3 if line.style == "a" else 5
        for px, py in line.points if line.marks else ():
            tip = f"{line.name}: {self.x.words(px)}, {self.y.words(py)}"
            yield (
                f'<circle class="dot {line.style}" cx="{self.across(px):.1f}" cy="{self.down(py):.1f}" r="{size}">'
                f"<title>{escape(tip)}</title></circle>"
            )


def bars(
    rows: Sequence[BarRow],
    axis: Axis,
    words: str,
    mark: tuple[float, str] | None = None,
    width: int = WIDTH,
) -> str:
    """An ``<svg>`` of horizontal bars, the first on top; its height follows from their number.

    An interval that reaches beyond the axis has no cap there.

    Args:
        axis: horizontal, linear; bars begin at its low end.
        mark: a value at which a line is drawn across all bars, and its name.
    """
    left = 14 + 6.8 * max(len(row.name) for row in rows)
    note = 6.6 * max(len(row.note) for row in rows)
    value = 8.4 * max((len(row.text) for row in rows if row.style), default=0)
    right = width - 14 - value - (note + 14 if note else 0)
    top = 22 if mark else 4
    bottom = top + _ROW * len(rows)

    def across(value: float) -> float:
        return left + min(max(axis.place(value), 0.0), 1.0) * (right - left)

    def text(at: str, y: int, style: str, words: str) -> str:
        return f'<text x="{at}" y="{y}" class="{style}">{escape(words)}</text>'

    out = []
    room = (right - left) / max(len(axis.ticks), 1)
    for value, label in axis.ticks[:: max(1, math.ceil(44 / room))]:
        out.append(f'<path class="grid" d="M{across(value):.1f} {top}V{bottom}"/>')
        out.append(text(f"{across(value):.1f}", bottom + 18, "mid", label))
    for number, row in enumerate(rows):
        y = top + _ROW * number
        out.append(text(f"{left - 8:.0f}", y + 18, "end", row.name))
        out += _bar(row, axis, across, y)
        at = right + 8 if row.style else left
        out.append(text(f"{at:.0f}", y + 18, "strong", row.text))
        out += [text(f"{width}", y + 18, "end", row.note)] if row.note else []
    if mark:
        out.append(f'<path class="limit" d="M{across(mark[0]):.1f} {top}V{bottom}"/>')
        out.append(text(f"{across(mark[0]):.1f}", 14, "mid", mark[1]))
    out.append(text(f"{(left + right) / 2:.0f}", bottom + 38, "mid", axis.title))
    return _svg(width, bottom + 44, out, words)


def _bar(row: BarRow, axis: Axis, across: Callable[[float], float], y: int) -> Iterator[str]:
    start, middle = across(axis.low), y + _ROW / 2
    if row.style:
        tip = f"{row.name}: {row.text}"
        yield (
            f'<path class="bar {row.style}" d="M{start:.1f} {y + 4}H{across(row.value):.1f}V{y + _ROW - 4}H{start:.1f}z">'
            f"<title>{escape(tip)}</title></path>"
        )
    if row.limit is not None:
        yield f'<path class="limit" d="M{across(row.limit):.1f} {y + 1}v{_ROW - 2}"/>'
    if row.interval:
        low, high = map(across, row.interval)
        cap = f"M{high:.1f} {middle - 4}v8" if row.interval[1] <= axis.high else ""
        yield f'<path class="whisker" d="M{low:.1f} {middle}H{high:.1f}M{low:.1f} {middle - 4}v8{cap}"/>'


@dataclass(frozen=True)
class LaneRow:
    """A row of what happened when.

    Attributes:
        lanes: one below the other, each with (begin, end, CSS class ``a`` to ``e``).
    """

    name: str
    lanes: tuple[tuple[tuple[float, float, str], ...], ...]


def lanes(rows: Sequence[LaneRow], axis: Axis, words: str, width: int = WIDTH) -> str:
    """An ``<svg>`` of rows along a time; its height follows from their number.

    Args:
        axis: horizontal, linear; what is beyond its ends is cut off.
    """
    left, right = 14 + 6.8 * max(len(row.name) for row in rows), width - _RIGHT
    top, tall = 4, max(_LANE * max(len(row.lanes) for row in rows), 16) + 6
    bottom = top + tall * len(rows)

    def across(value: float) -> float:
        return left + min(max(axis.place(value), 0.0), 1.0) * (right - left)

    out = []
    for value, label in axis.ticks:
        out.append(f'<path class="grid" d="M{across(value):.1f} {top}V{bottom}"/>')
        out.append(f'<text x="{across(value):.1f}" y="{bottom + 18}" class="mid">{label}</text>')
    for number, row in enumerate(rows):
        y = top + tall * number
        out.append(
            f'<text x="{left - 8:.0f}" y="{y + tall / 2 + 4:.0f}" class="end">{escape(row.name)}</text>'
        )
        for lane, pieces in enumerate(row.lanes):
            out += _pieces(pieces, across, y + 3 + _LANE * lane)
    out.append(
        f'<text x="{(left + right) / 2:.0f}" y="{bottom + 38}" class="mid">{escape(axis.title)}</text>'
    )
    return _svg(width, bottom + 44, out, words)


def _pieces(
    pieces: Sequence[tuple[float, float, str]], across: Callable[[float], float], y: float
) -> Iterator[str]:
    """A lane: neighbours of a class that the eye cannot part are drawn as one."""
    drawn: dict[str, list[list[float]]] = {}
    for begin, end, style in sorted(pieces):
        low, high = across(begin), max(across(end), across(begin) + 0.2)
        so_far = drawn.setdefault(style, [])
        if so_far and low - so_far[-1][1] < 0.2:
            so_far[-1][1] = max(high, so_far[-1][1])
        else:
            so_far.append([low, high])
    for style, parts in sorted(drawn.items()):
        path = "".join(f"M{low:.1f} {y}H{high:.1f}v{_LANE - 2}H{low:.1f}z" for low, high in parts)
        yield f'<path class="span {style}" d="{path}"/>'


def _svg(width: int, height: int, parts: Sequence[str], words: str) -> str:
    head = f'<svg class="chart" viewBox="0 0 {width} {height}" role="img" aria-label="{escape(words)}">'
    return "".join([head, *parts, "</svg>"])


def decades(
    values: Sequence[float], title: str, words: Callable[[float], str] | None = None
) -> Axis:
    """A logarithmic axis around ``values``, with ticks at powers of ten, and more of them the shorter it is.

    Args:
        words: a tick's label; by default short: ``0.001``, ``20``, ``5k``.
    """
    low, high = min(values) / 1.25, max(values) * 1.25
    length = math.log10(high / low)
    steps: tuple[float, ...] = (1,)
    if length < 0.7:
        steps = (1, 1.5, 2, 2.5, 3, 4, 5, 6, 8)
    elif length < 2.2:
        steps = (1, 2, 5)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [tick for e in powers for m in steps if low <= (tick := m * 10.0**e) <= high]
    labels = tuple((t, (words or _short)(t)) for t in ticks[:: max(1, math.ceil(len(ticks) / 7))])
    return Axis(title, low, high, labels, words=words or "{:,.4g}".format)


def _short(value: float) -> str:
    """``0.001``, ``20``, ``5k``."""
    if value >= 1e6:
        return f"{value / 1e6:g}M"
    return f"{value / 1e3:g}k" if value >= 1e3 else f"{value:g}"


def linear(
    low: float, high: float, title: str, words: Callable[[float], str] = "{:g}".format
) -> Axis:
    """A linear axis with about five round ticks.

    >>> [label for _, label in linear(0, 1.04, "", "{:.0%}".format).ticks]
    ['0%', '20%', '40%', '60%', '80%', '100%']
    """
    rough = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = power * min((1, 2, 5, 10), key=lambda m: abs(math.log(m * power / rough)))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    values = [round(number * step, 12) for number in range(first, last + 1)]
    ticks = tuple((value, words(value)) for value in values)
    return Axis(title, low, high, ticks, log=False, words=words)


def strip(samples: Sequence[float], summary: Summary, normal: tuple[float, float] | None) -> str:
    """Every repeat as a dot, outliers hollow, far ones at the edge; the interval of the median, and what is normal behind it."""
    far = set(summary.outliers)
    near = [v for i, v in enumerate(samples) if i not in far]
    interval = [end for end in (summary.low, summary.high) if end is not None]
    # Outliers that would squeeze the rest are drawn at the edge.
    shown = [*near, *interval, summary.median]
    low, high = min(shown), max(shown)
    if normal:  # of a bound, only the near end is of interest
        low, high = min(low, max(normal[0], low / 1.3)), max(high, min(normal[1], high * 1.3))
    room = (high - low) * 0.06 or high * 0.01 or 1.0
    low, high = low - room, high + room

    def at(value: float) -> float:
        return 4 + 132 * float(min(max((value - low) / (high - low), 0.0), 1.0))

    out = ['<svg class="strip" viewBox="0 0 140 18" aria-hidden="true">']
    if normal:
        left, right = at(normal[0]), at(normal[1])
        out.append(f'<path class="normal" d="M{left:.1f} 0H{right:.1f}V18H{left:.1f}z"/>')
    if interval:
        out.append(f'<path class="ci" d="M{at(interval[0]):.1f} 9H{at(interval[1]):.1f}"/>')
    out.append(f'<path class="s" d="{"".join(f"M{at(v):.1f} 9h0" for v in near[:60])}"/>')
    hollow = "".join(
        f"M{at(samples[i]) - 2.6:.1f} 9a2.6 2.6 0 1 0 5.2 0a2.6 2.6 0 1 0-5.2 0"
        for i in summary.outliers
    )
    out.append(f'<path class="o" d="{hollow}"/>' if hollow else "")
    out.append(f'<path class="m" d="M{at(summary.median):.1f} 3v12"/></svg>')
    return "".join(out)


def ratio_strip(
    times: float, interval: tuple[float, float] | None, reach: float, style: str
) -> str:
    """A ratio and its interval on a logarithmic scale, 1 in the middle; what is farther off is at the edge.

    Args:
        reach: the largest ratio, and one by it the smallest, that are shown.
        style: CSS class of the mark.
    """

    def at(value: float) -> float:
        far = math.log(max(value, 1e-9)) / math.log(reach)
        return 110 + 104 * min(max(far, -1.0), 1.0)

    out = ['<svg class="forest" viewBox="0 0 220 18" aria-hidden="true">']
    out.append(f'<path class="grid" d="M6 9H214"/><path class="one" d="M{at(1):.1f} 1v16"/>')
    if interval:
        low, high = (at(end) for end in interval)
        out.append(f'<path class="ci {style}" d="M{low:.1f} 9H{max(high, low + 0.5):.1f}"/>')
    out.append(f'<path class="m {style}" d="M{at(times):.1f} 9h0"/></svg>')
    return "".join(out)


def heat(levels: Sequence[Sequence[int]], words: str) -> str:
    """A field of cells, stretched to the room that it has; level 0 is left to what is behind.

    Args:
        levels: rows of equal length; a cell's level is its CSS class, ``h1``, ``h2``, …
    """
    rows, columns = len(levels), len(levels[0])
    paths: dict[int, list[str]] = {}
    for row, line in enumerate(levels):
        start = 0
        for level, cells in itertools.groupby(line):
            width = len([*cells])
            paths.setdefault(level, []).append(f"M{start} {row}.5h{width}")
            start += width
    drawn = "".join(
        f'<path class="h{level}" d="{"".join(parts)}"/>'
        for level, parts in sorted(paths.items())
        if level
    )
    return (
        f'<svg class="cells" viewBox="0 0 {columns} {rows}" preserveAspectRatio="none" role="img"'
        f' aria-label="{escape(words)}">{drawn}</svg>'
    )
