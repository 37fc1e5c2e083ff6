"""Small charts as SVG text, drawn by hand: they take colours and font from the page around them by CSS classes.

A line of the page is a few hundred bytes here, where a plotting library's would be thousands; and with classes one
drawing serves light, dark and print. Coordinates are those of a viewBox as wide as a telephone, so that text stays
legible there.
"""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

WIDTH, HEIGHT = 440, 284
_RIGHT, _TOP, _BOTTOM = 22, 14, 44
_UNIT = 20  # more at the top, where an axis says its unit
_LETTER = 7.6  # of a label, at most


@dataclass(frozen=True)
class Series:
    """A line with points.

    Attributes:
        points: (x, y), both above 0 on logarithmic axes.
        style: CSS class: ``a``, ``b`` for what was measured, ``ideal``, ``bound`` for what is drawn dashed.
        band: (x, low, high) around it, shaded.
        marks: also a dot at every point, with its words when pointed at.
    """

    name: str
    points: tuple[tuple[float, float], ...]
    style: str
    band: tuple[tuple[float, float, float], ...] = ()
    marks: bool = True


@dataclass(frozen=True)
class Axis:
    """One axis.

    Attributes:
        title: below a horizontal axis, above a vertical one: what it is, and its unit.
        ticks: (value, label); their first and last are not the axis' ends.
        low, high: its ends.
        words: a value of it for people.
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
class Shade:
    """What lies right of ``start`` is of another kind, and ``words`` tell which."""

    start: float
    words: str


def chart(
    x: Axis,
    y: Axis,
    series: Sequence[Series],
    words: str,
    shade: Shade | None = None,
    height: int = HEIGHT,
) -> str:
    """An ``<svg>`` of lines.

    Args:
        height: of the viewBox, which is :data:`WIDTH` wide.
        shade: a part of the field that is drawn darker, with words.
        words: what it shows, for those who do not see it.
    """

    left = max(34.0, 12 + _LETTER * max((len(label) for _, label in y.ticks), default=0))
    top = _TOP + (_UNIT if y.title else 0)
    right, bottom = WIDTH - _RIGHT, height - _BOTTOM

    def across(value: float) -> float:
        return left + x.place(value) * (right - left)

    def down(value: float) -> float:
        return bottom - y.place(value) * (bottom - top)

    def at(px: float, py: float) -> str:
        return f"{across(px):.1f} {down(py):.1f}"

    out = [
        f'<svg class="chart" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{_escaped(words)}">'
    ]
    if shade:
        edge = max(across(shade.start), left) if shade.start > x.low else left
        out.append(f'<path class="shade" d="M{edge:.1f} {top}H{right}V{bottom}H{edge:.1f}z"/>')
        out.append(
            f'<text x="{right - 6}" y="{bottom - 8}" class="end">{_escaped(shade.words)}</text>'
        )
    if y.title:
        out.append(f'<text x="0" y="{_TOP - 1}" class="unit">{_escaped(y.title)}</text>')
    for value, label in y.ticks:
        line = down(value)
        out.append(f'<path class="grid" d="M{left:.1f} {line:.1f}H{right}"/>')
        out.append(
            f'<text x="{left - 8:.1f}" y="{line + 4:.1f}" class="end">{_escaped(label)}</text>'
        )
    for value, label in x.ticks:
        out.append(f'<path class="grid" d="M{across(value):.1f} {bottom}v4"/>')
        out.append(
            f'<text x="{across(value):.1f}" y="{bottom + 19}" class="mid">{_escaped(label)}</text>'
        )
    out.append(f'<path class="axis" d="M{left:.1f} {bottom}H{right}"/>')
    out.append(
        f'<text x="{(left + right) / 2:.0f}" y="{height - 6}" class="mid">{_escaped(x.title)}</text>'
    )
    for one in series:
        if one.band:
            there = [at(px, high) for px, _, high in one.band]
            back = [at(px, low) for px, low, _ in reversed(one.band)]
            out.append(f'<path class="band {one.style}" d="M{"L".join(there + back)}Z"/>')
    for one in series:
        if one.points:
            line_ = "L".join(at(px, py) for px, py in one.points)
            out.append(f'<path class="line {one.style}" d="M{line_}"/>')
        if one.marks:
            size = 3 if one.style == "a" else 5
            for px, py in one.points:
                tip = f"{one.name}: {x.words(px)}, {y.words(py)}"
                out.append(
                    f'<circle class="dot {one.style}" cx="{across(px):.1f}" cy="{down(py):.1f}" r="{size}">'
                    f"<title>{_escaped(tip)}</title></circle>"
                )
    return "".join([*out, "</svg>"])


def _escaped(text: str) -> str:
    return html.escape(text)


def decades(
    values: Sequence[float], title: str, words: Callable[[float], str] | None = None
) -> Axis:
    """A logarithmic axis around ``values``, with ticks at powers of ten, and the finer the shorter it is.

    Args:
        words: a tick's label; by default short: ``0.001``, ``20``, ``5k``.
    """
    low, high = min(values) / 1.25, max(values) * 1.25
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    length = math.log10(high / low)
    steps: tuple[float, ...] = (1,)
    if length < 0.7:
        steps = (1, 1.5, 2, 2.5, 3, 4, 5, 6, 8)
    elif length < 2.2:
        steps = (1, 2, 5)
    ticks = [m * 10.0**e for e in range(first, last + 1) for m in steps]
    shown = [t for t in ticks if low <= t <= high]
    skip = max(1, math.ceil(len(shown) / 7))
    labels = tuple((t, (words or _short)(t)) for t in shown[::skip])
    return Axis(title, low, high, labels, words=words or "{:,.4g}".format)


def _short(value: float) -> str:
    """``0.001``, ``20``, ``5k``."""
    if value >= 1e6:
        return f"{value / 1e6:g}M"
    return f"{value / 1e3:g}k" if value >= 1e3 else f"{value:g}"


def strip(
    samples: Sequence[float],
    outliers: Sequence[int],
    interval: tuple[float, float] | None,
    normal: tuple[float, float] | None,
    median: float,
) -> str:
    """Every repeat as a dot, outliers hollow, those that are far at the edge; the interval of the median, and what is normal behind it."""
    far = set(outliers)
    near = [v for i, v in enumerate(samples) if i not in far]
    # Outliers that would squeeze the rest are drawn at the edge.
    shown = [*near, *(interval or ()), median]
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
        f"M{at(samples[i]) - 2.6:.1f} 9a2.6 2.6 0 1 0 5.2 0a2.6 2.6 0 1 0-5.2 0" for i in outliers
    )
    out.append(f'<path class="o" d="{hollow}"/>' if hollow else "")
    out.append(f'<path class="m" d="M{at(median):.1f} 3v12"/></svg>')
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
        for column in range(1, columns + 1):
            if column == columns or line[column] != line[start]:
                paths.setdefault(line[start], []).append(f"M{start} {row}.5h{column - start}")
                start = column
    drawn = "".join(
        f'<path class="h{level}" d="{"".join(parts)}"/>'
        for level, parts in sorted(paths.items())
        if level
    )
    return (
        f'<svg class="cells" viewBox="0 0 {columns} {rows}" preserveAspectRatio="none" role="img"'
        f' aria-label="{_escaped(words)}">{drawn}</svg>'
    )
