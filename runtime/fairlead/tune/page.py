"""A search as one page that needs nothing else: history, parallel coordinates, importance, Pareto front."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from fairlead.base.paths import atomic_write
from fairlead.perf.draw.charts import Axis, BarRow, Figure, Series, bars, chart, decades, linear
from fairlead.perf.draw.pages import page
from fairlead.perf.draw.wording import duration
from fairlead.tune.result import TuneResult, seconds_of, short
from fairlead.tune.study import Trial

PAGE = "report.html"
_ROWS = 200
_LINES = 150
_COLUMNS, _LABEL = 6, 8  # of parallel coordinates, and letters of a column's name


def write_page(folder: Path, result: TuneResult) -> Path:
    """Writes ``report.html``; returns its path.

    Raises:
        FairleadError: jinja2 is not installed.
    """
    path = folder / PAGE
    with atomic_write(path, "w") as stream:
        stream.write(render(result))
    return path


def render(result: TuneResult) -> str:
    """The HTML page."""
    first, goal = next(iter(result.objectives.items()))
    sign = 1 if goal == "minimize" else -1
    ordered = sorted(
        result.trials,
        key=lambda t: (
            t.number not in result.best,
            sign * t.values.get(first, sign * math.inf),
            t.number,
        ),
    )
    best = [t for t in ordered if t.number in result.best]
    return page(
        "tune",
        result=result,
        headline=_headline(result, best),
        word="ok" if best else "error",
        counts=result.counts,
        wanted=_count(result.wanted),
        spent=duration(seconds_of(result.trials)),
        figures=list(_figures(result)),
        best=best,
        rows=[(t, _each(t, result), _parameters(t), _outcome(t)) for t in ordered[:_ROWS]],
        hidden=max(len(ordered) - _ROWS, 0),
    )


def _headline(result: TuneResult, best: Sequence[Trial]) -> str:
    if not best:
        return "No trial has come to a value."
    if len(result.objectives) > 1:
        return f"{len(best)} of {len(result.trials)} trials are on the Pareto front."
    return f"Trial {best[0].number} is best: {_values(best[0], result)}."


def _values(trial: Trial, result: TuneResult) -> str:
    return ", ".join(_each(trial, result))


def _each(trial: Trial, result: TuneResult) -> list[str]:
    return [f"{n} {trial.values[n]:.6g}" for n in result.objectives if n in trial.values]


def _parameters(trial: Trial) -> str:
    """The parameters, which best.toml and report.json have with all their digits."""
    return " ".join(f"{name}={short(value)}" for name, value in trial.parameters.items())


def _outcome(trial: Trial) -> str:
    """What was proved, or why there is no value; and what came of earlier attempts."""
    went_on = [] if trial.source is None else [f"went on from trial {trial.source}"]
    last = trial.why or trial.proof or "–"
    return "; ".join([last, *went_on, *(f"an earlier attempt: {why}" for why in trial.lost)])


def _figures(result: TuneResult) -> Iterator[Figure]:
    whole = [t for t in result.trials if t.state == "complete"]
    if not whole:
        return
    if len(whole) > 1:
        yield from (_history(result, whole, name) for name in result.objectives)
    if len(result.objectives) > 1:
        yield _front(result, whole)
    if figure := _parallel(result, whole):
        yield figure
    if result.importances:
        yield _importance(result)
    if any(len(t.reports) > 1 for t in result.trials):
        yield _curves(result)


def _history(result: TuneResult, whole: Sequence[Trial], name: str) -> Figure:
    """Each trial's value, and the best until then."""
    better = min if result.objectives[name] == "minimize" else max
    points = tuple((float(t.number), t.values[name]) for t in whole)
    best = itertools.accumulate((value for _, value in points), better)
    line = tuple((number, value) for (number, _), value in zip(points, best, strict=True))
    series = (
        Series("a trial", points, "b", line=False),
        Series("best so far", line, "a", marks=False),
    )
    x = linear(0, max(points[-1][0], 1), "trial")
    words = f"{name} of {len(points)} trials, and the best so far"
    svg = chart(x, _axis([v for _, v in points], name), series, words)
    return Figure(f"History: {name}", words, svg, (("b", "a trial"), ("a", "best so far")))


def _axis(values: Sequence[float], title: str) -> Axis:
    low, high = min(values), max(values)
    if low > 0 and high / low > 100:
        return decades(values, title)
    room = (high - low) * 0.05 or abs(high) * 0.1 or 1.0
    return linear(low - room, high + room, title)


def _front(result: TuneResult, whole: Sequence[Trial]) -> Figure:
    """Two objectives against each other."""
    first, two = list(result.objectives)[:2]
    points = tuple((t.values[first], t.values[two]) for t in whole)
    front = tuple(
        sorted((t.values[first], t.values[two]) for t in whole if t.number in result.best)
    )
    series = (Series("a trial", points, "b", line=False), Series("Pareto front", front, "a"))
    words = f"{first} and {two} of {len(points)} trials; {len(front)} are not worse in both than another"
    svg = chart(
        _axis([p[0] for p in points], first), _axis([p[1] for p in points], two), series, words
    )
    return Figure("Pareto front", words, svg, (("b", "a trial"), ("a", "Pareto front")))


def _parallel(result: TuneResult, whole: Sequence[Trial]) -> Figure | None:
    """A line for each trial through its parameters and its first value; the best fifth stands out."""
    names = _by_importance(result, whole)
    first, goal = next(iter(result.objectives.items()))
    if not names or len(whole) < 2:
        return None
    columns = [*names, first]
    values = {name: [t.chosen[name] for t in whole if name in t.chosen] for name in names}
    values[first] = [t.values[first] for t in whole]
    places = {name: _places(values[name]) for name in columns}
    ordered = sorted(whole, key=lambda t: t.values[first], reverse=goal == "maximize")
    good = {t.number for t in ordered[: max(len(ordered) // 5, 1)]}
    shown = [*reversed(ordered[:_LINES])]
    series = []
    for trial in shown:
        at = {**trial.chosen, first: trial.values[first]}
        line = tuple(
            (float(i), places[name][at[name]]) for i, name in enumerate(columns) if name in at
        )
        style = "a" if trial.number in good else "faint"
        series.append(Series(f"trial {trial.number}", line, style, marks=False))
    x = Axis(
        "parameters, each from its smallest value to its largest", -0.15, len(columns) - 0.85,
        tuple((float(i), _label(name)) for i, name in enumerate(columns)), log=False,
    )  # fmt: skip
    y = Axis("", 0, 1, ((0.0, "low"), (1.0, "high")), log=False)
    words = f"{', '.join(names)} of {len(shown)} trials, and their {first}"
    return Figure(
        "Parallel coordinates",
        words,
        chart(x, y, series, words),
        (("a", "best fifth"), ("faint", "others")),
    )


def _by_importance(result: TuneResult, whole: Sequence[Trial]) -> list[str]:
    """The parameters that have room in a figure: the most important, then those that most trials have."""
    count = Counter(name for t in whole for name in t.chosen)
    return sorted(count, key=lambda n: (-result.importances.get(n, 0.0), -count[n]))[:_COLUMNS]


def _label(name: str) -> str:
    """A name as it fits under a column: an element of a list by its number."""
    head, _, number = name.partition("[")
    tail = f" {number.rstrip(']')}" if number else ""
    most = _LABEL - len(tail)
    return (head if len(head) <= most else f"{head[: most - 1]}…") + tail


def _places(values: Sequence[object]) -> dict[object, float]:
    """Where each value stands, from 0 to 1; on a logarithmic scale where the values have several orders of magnitude."""
    numbers = [v for v in values if isinstance(v, int | float) and not isinstance(v, bool)]
    if len(numbers) < len(values):
        names = sorted({str(v) for v in values})
        return {v: names.index(str(v)) / max(len(names) - 1, 1) for v in values}
    low, high = min(numbers), max(numbers)
    log = low > 0 and high / low > 50
    scaled = {v: math.log(v) if log else float(v) for v in numbers}
    least, most = min(scaled.values()), max(scaled.values())
    return {v: (place - least) / ((most - least) or 1.0) for v, place in scaled.items()}


def _importance(result: TuneResult) -> Figure:
    rows = [
        BarRow(name, share, f"{100 * share:.0f} %", "a")
        for name, share in result.importances.items()
    ]
    words = "how much of what tells good trials from others each parameter explains (PED-ANOVA)"
    return Figure("Importance", words, bars(rows, linear(0, 1, ""), words))


def _curves(result: TuneResult) -> Figure:
    """What trials reported on their way."""
    several = [t for t in result.trials if len(t.reports) > 1]
    best = [t for t in several if t.number in result.best]
    shown = [*several[-_LINES:], *(t for t in best if t not in several[-_LINES:])]
    series = []
    for trial in shown:
        points = tuple(
            (float(step), value) for step, value in trial.reports if math.isfinite(value)
        )
        style = "a" if trial.number in result.best else "c" if trial.state == "pruned" else "faint"
        series.append(Series(f"trial {trial.number}", points, style, marks=False))
    series.sort(key=lambda line: line.style == "a")
    steps = [x for line in series for x, _ in line.points] or [0.0]
    values = [y for line in series for _, y in line.points] or [0.0]
    words = f"what {_count(len(shown))} reported"
    x = linear(min(steps), max(max(steps), min(steps) + 1), "step")
    svg = chart(x, _axis(values, "reported value"), series, words)
    styles = {line.style for line in series}
    legend = (("a", "best"), ("c", "ended early"), ("faint", "others"))
    return Figure("On the way", words, svg, tuple(item for item in legend if item[0] in styles))


def _count(trials: int) -> str:
    return f"{trials} trial" if trials == 1 else f"{trials} trials"
