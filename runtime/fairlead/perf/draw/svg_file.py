"""Figures of :mod:`fairlead.perf.draw.charts` as an SVG file of their own, with colours for light and dark pages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from fairlead.perf.draw.charts import CHART_STYLE, Figure

_COLOURS = (
    "svg{background:#fff;--font:system-ui,sans-serif;--ink:#22262a;--soft:#5b636b;--line:#dde1e5;--fill:#eef1f5;"
    "--card:#fff;--a:#0b6e99;--b:#d1495b;--c:#e09f3e;--d:#6a994e;--e:#7768ae;--f:#555;--ref:#2e8b62;--p0:#b9bfc6;"
    "--error:#c0392b}@media(prefers-color-scheme:dark){svg{background:#16191c;--ink:#e8eaec;--soft:#a5adb5;"
    "--line:#343a40;--fill:#1e2731;--card:#16191c;--a:#3aa6d4;--f:#999;--p0:#5a636c}}"
    ".chart .title{font:600 16px var(--font);fill:var(--ink)}"
    + "".join(
        f".chart .line.{c}{{stroke:var(--{c});stroke-width:1.5}}.chart .dot.{c}{{fill:var(--{c});r:3px}}"
        for c in "bcdef"
    )
)
_SPANS = "".join(f".chart .span.{c}{{fill:var(--{c})}}" for c in "abcde")


def picture(figures: Sequence[Figure], title: str = "", columns: int = 2) -> str:
    """A file of its own: figures in rows of ``columns``, each below its title, above its legend."""
    cells, x, y, tall, wide = [], 16, 24 + 26 * bool(title), 0, 0
    for number, figure in enumerate(figures):
        if number and number % columns == 0:
            x, y, tall = 16, y + tall + 24, 0
        width, height = _size_of(figure.svg)
        words = f'<text x="{x}" y="{y + 18}" class="soft">{escape(figure.words)}</text>'
        cells.append(f'<text x="{x}" y="{y}" class="title">{escape(figure.title)}</text>{words}')
        placed = f'<svg x="{x}" y="{y + 34}" width="{width}" height="{height}"'
        cells.append(figure.svg.replace("<svg", placed, 1))
        legend = list(_legend(figure.legend, x, y + 34 + height + 18, width))
        cells += legend
        lines = len({cell.split('y="')[1].split('"')[0] for cell in legend if "<text" in cell})
        tall, wide = max(tall, height + 34 + 20 * lines), max(wide, x + width + 16)
        x += width + 32
    head = f'<text x="16" y="28" class="title">{escape(title)}</text>' if title else ""
    spans = _SPANS if any('class="span' in figure.svg for figure in figures) else ""
    style = f"<style>{CHART_STYLE.read_text(encoding='utf-8')}{_COLOURS}{spans}</style>"
    label = escape(title or ", ".join(figure.title for figure in figures))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="chart" viewBox="0 0 {wide} {y + tall + 14}" role="img"'
        f' aria-label="{label}">{style}\n{head}' + "\n".join(cells) + "</svg>\n"
    )


def _legend(entries: Sequence[tuple[str, str]], x: int, y: int, width: int) -> Iterator[str]:
    at = x
    for style, name in entries:
        room = 40 + int(6.8 * len(name))
        if at > x and at + room > x + width:
            at, y = x, y + 20
        yield f'<path class="line {style}" d="M{at} {y - 4}h22"/>'
        yield f'<text x="{at + 28}" y="{y}">{escape(name)}</text>'
        at += room


def _size_of(svg: str) -> tuple[int, int]:
    _, _, width, height = svg.split('viewBox="')[1].split('"')[0].split()
    return int(width), int(height)
