"""The pictures next to the JSON files: ``python -m benchmarks.pictures`` draws them from what is kept.

A picture is made from the kept result alone, so that it can be drawn again without measuring.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.result import RESULTS, Benchmark, kept
from fairlead.perf.draw.charts import (
    WIDTH,
    Axis,
    BarRow,
    Figure,
    Series,
    bars,
    chart,
    decades,
    linear,
)
from fairlead.perf.draw.svg_file import picture
from fairlead.perf.draw.wording import percent, size

Row = Mapping[str, Any]


def draw(benchmark: Benchmark) -> Path | None:
    """Writes ``results/NAME.svg``, if the benchmark has a picture and a result."""
    path = RESULTS / f"{benchmark.name}.svg"
    if benchmark.picture is None or not path.with_suffix(".json").is_file():
        return None
    path.write_text(benchmark.picture(kept(benchmark.name)))
    return path


def efficiencies(
    rows: Sequence[Row],
    title: str,
    notes: Mapping[str, str] | None = None,
    width: int = WIDTH,
) -> Figure:
    """Steps without communication over those with it, in percent; a red mark is the bar.

    Args:
        rows: ratios of times; named ``MODEL: WAY`` or ``WAY``.
        notes: by name, a text at the right.
    """
    made = []
    for row in rows:
        name = row["name"].partition(": ")[2] or row["name"]
        made.append(
            BarRow(
                name,
                1 / row["value"],
                percent(1 / row["value"]),
                "a" if "fairlead" in name else "other",
                (1 / row["high"], 1 / row["low"]),
                None if row["bar"] is None else 1 / row["bar"],
                (notes or {}).get(row["name"], ""),
            )
        )
    top = max(1.0, *(1 / row["value"] for row in rows)) * 1.04
    svg = bars(made, linear(0, top, "efficiency", percent), title, width=width)
    return Figure(title, "a step without communication over one with it", svg)


def sweep(points: Mapping[str, Sequence[tuple[int, float]]]) -> str:
    """Seconds by bytes for each library, the first being fairlead; and the same relative to the first."""
    first = dict(next(iter(points.values())))
    styles = dict(zip(points, "abcdef", strict=False))
    relative = {
        name: [(bytes, s / first[bytes]) for bytes, s in own] for name, own in points.items()
    }
    legend = tuple((style, name) for name, style in styles.items())
    figures = []
    for title, words, every in (
        ("Time", "milliseconds of an allreduce", {k: [(b, 1e3 * s) for b, s in v] for k, v in points.items()}),
        ("Times as long as fairlead", "over the time of fairlead", relative),
    ):  # fmt: skip
        values = [value for own in every.values() for _, value in own]
        lines = [Series(name, tuple(own), styles[name]) for name, own in every.items()]
        svg = chart(_sizes([*first]), decades(values, ""), lines[::-1], title)
        figures.append(Figure(title, words, svg, legend))
    return picture(figures)


def _sizes(bytes: Sequence[int]) -> Axis:
    ticks = [1 << n for n in (2, 10, 16, 20, 24, 28) if min(bytes) <= 1 << n <= max(bytes)]
    labels = tuple((float(tick), size(tick)) for tick in ticks)
    return Axis("bytes", min(bytes) / 1.4, max(bytes) * 1.4, labels)


def milliseconds(rows: Sequence[BarRow], title: str, words: str, mark: float) -> Figure:
    """Bars in seconds; ``mark`` is drawn across: what cannot be beaten."""
    top = 1.04 * max(mark, *(row.value for row in rows))
    axis = linear(0, top, "ms", lambda seconds: f"{1e3 * seconds:g}")
    return Figure(title, words, bars(rows, axis, title, (mark, "bound")))


def medians(result: Mapping[str, Any], key: str) -> dict[str, float]:
    """Of every row, by name; ``key`` is ``samples`` or ``baseline``."""
    return {row["name"]: median(row[key]) for row in result["rows"]}


if __name__ == "__main__":
    from benchmarks import discover

    for benchmark in discover().values():
        if path := draw(benchmark):
            print(path)
