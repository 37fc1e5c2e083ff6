"""The report's figures, as SVG text that takes its colours and fonts from the page around it.

matplotlib draws with placeholder colours; they are replaced by the page's CSS variables, so that
one figure serves light, dark and print. Figures are small, so that their text stays legible on a
telephone.
"""

from __future__ import annotations

import io
import math
import re
import statistics
from collections.abc import Callable, Sequence
from typing import Any

from fairlead.ml.models.task import Gate
from fairlead.ml.train.model import LossPoint
from fairlead.ml.train.result import TrainResult

# placeholder -> CSS variable; no other colour may be used in a figure
_COLOURS = {
    "#010101": "var(--ink)",
    "#020202": "var(--soft)",
    "#030303": "var(--line)",
    "#040404": "var(--accent)",
    "#050505": "var(--other)",
}
_INK, _SOFT, _LINE, _ACCENT, _OTHER = _COLOURS
_WIDTH = 4.3  # inches; 1 inch is about 95 px on the narrowest screen


def loss_curve(training: TrainResult) -> str:
    """Loss against time: every step faint, the running mean strong."""
    points = training.all.loss
    outputs = training.task.network.outputs
    # What a network that knows nothing pays for classes; parameters have no such line.
    guessing = math.log(outputs) if training.gates[0].metric in ("auc", "accuracy") else None
    seconds = [point.seconds for point in points]
    smooth = _running_mean(points, 11)

    def draw(axes: Any) -> None:
        axes.plot(seconds, [p.loss for p in points], color=_LINE, linewidth=1.0)
        axes.plot(seconds, smooth, color=_ACCENT, linewidth=2.0)
        if guessing is not None:
            axes.axhline(guessing, color=_SOFT, linewidth=1, linestyle=(0, (4, 3)))
            axes.annotate(
                "guessing",
                (seconds[-1], guessing),
                (0, 3),
                textcoords="offset points",
                ha="right",
                va="bottom",
                color=_SOFT,
            )
        # a single wild step must not flatten the curve
        axes.set_ylim(0, 1.15 * max(*smooth, (guessing or 0.0) * 1.2))
        axes.set_xlim(0, seconds[-1] * 1.01)
        axes.set_xlabel("seconds of training")
        axes.set_ylabel("loss")

    return _svg("loss", 2.7, draw)


def scaling(training: TrainResult) -> str:
    """Samples per second on 1 rank and on all, beside what perfect scaling would give."""
    everyone = training.all.speed
    single = training.one.speed if training.one is not None else None
    assert everyone is not None  # the caller draws nothing without
    ranks, fast = training.all.ranks, everyone.samples_per_s
    rows = [(f"{ranks} ranks" if ranks > 1 else "1 rank", fast)]
    if single is not None:
        rows.append(("1 rank", single.samples_per_s))

    ideal = ranks * single.samples_per_s if single is not None else None
    most = max(ideal or 0.0, *(value for _, value in rows), 0.0)

    def draw(axes: Any) -> None:
        for place, (_, value) in enumerate(rows):
            axes.barh(place, value, 0.55, color=_ACCENT if place == 0 else _OTHER)
            _beside(axes, f"{value:.0f}", value, place, ideal if place == 0 else None, most)
        if ideal is not None:
            axes.plot([ideal, ideal], [-0.42, 0.42], color=_INK, linewidth=1.6)
            axes.annotate(
                "ideal",
                (ideal, 0.42),
                (0, 3),
                textcoords="offset points",
                ha="center",
                va="bottom",
                color=_SOFT,
            )
        axes.set_xlim(0, 1.15 * most)
        _rows(axes, [name for name, _ in rows])
        axes.set_xlabel("samples per second")

    return _svg("scaling", 1.75, draw)


def score_bars(training: TrainResult, gate: Gate) -> str:
    """A score of the network and of the linear model, and the gate between them."""
    network = training.task.title
    rows = [
        ("linear model", training.baseline.scores[gate.metric]),
        (network, training.scores[gate.metric]),
    ]
    # An AUC begins at chance; an error of 1 is that of always saying the mean.
    low = 0.5 if gate.metric == "auc" else 0.0
    high = max(1.0, *(value for _, value in rows))

    def draw(axes: Any) -> None:
        for place, (label, value) in enumerate(rows):
            colour = _ACCENT if label == network else _OTHER
            axes.barh(place, value - low, 0.55, left=low, color=colour)
            _beside(axes, f"{value:.3f}", value, place, gate.value, high - low)
        axes.plot([gate.value] * 2, [-0.42, 1.42], color=_INK, linewidth=1.6)
        axes.annotate(
            f"wanted: {gate.words}",
            (gate.value, 1.42),
            (0, 3),
            textcoords="offset points",
            ha="center" if gate.value < 0.8 * high else "right",
            va="bottom",
            color=_SOFT,
        )
        axes.set_xlim(low, high + 0.14 * (high - low))
        _rows(axes, [label for label, _ in rows])
        axes.set_xlabel(_AXES.get(gate.metric, f"error of {gate.metric}; 1: always the mean"))

    return _svg(f"score-{gate.metric}", 1.95, draw)


_AXES = {
    "auc": "area under the ROC curve; 0.5: guessing",
    "accuracy": "told right",
}


def roc_curve(training: TrainResult) -> str:
    """Signal kept against background kept."""
    assert training.all.evaluation is not None  # the caller draws nothing without
    pairs = training.all.evaluation.roc

    def draw(axes: Any) -> None:
        axes.plot([0, 1], [0, 1], color=_SOFT, linewidth=1, linestyle=(0, (4, 3)))
        axes.plot(*zip(*pairs, strict=True), color=_ACCENT, linewidth=2)
        axes.annotate("guessing", (0.62, 0.57), color=_SOFT, va="top")
        axes.set_xlim(0, 1)
        axes.set_ylim(0, 1.01)
        axes.set_xlabel("background kept")
        axes.set_ylabel("signal kept")

    return _svg("roc", 2.7, draw)


def _running_mean(points: Sequence[LossPoint], width: int) -> list[float]:
    losses = [point.loss for point in points]
    half = width // 2
    return [statistics.fmean(losses[max(0, i - half) : i + half + 1]) for i in range(len(losses))]


def _beside(
    axes: Any, words: str, value: float, place: int, line: float | None, length: float
) -> None:
    """A bar's number, right of its end: within, no colour suits every bar in light and dark.

    Args:
        line: where one is drawn across, which the number stays clear of.
        length: of the axis.
    """
    start = line if line is not None and value < line < value + 0.16 * length else value
    axes.annotate(
        words, (start, place), (5, 0), textcoords="offset points", ha="left", va="center",
        color=_INK, fontweight="bold",
    )  # fmt: skip


def _rows(axes: Any, names: Sequence[str]) -> None:
    """Horizontal bars: names at the left, no ticks."""
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(-0.6, len(names) - 0.4)
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False, axis="y")
    axes.spines["left"].set_visible(False)
    for label in axes.get_yticklabels():
        label.set_color(_INK)


def _svg(name: str, height: float, draw: Callable[[Any], None]) -> str:
    """An ``<svg>`` element, ``_WIDTH`` by ``height`` inches, without any fixed colour."""
    import matplotlib as mpl
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    style: dict[Any, Any] = {
        "svg.fonttype": "none",
        "svg.hashsalt": name,  # ids of figures on one page must differ
        "font.family": "sans-serif",
        "font.size": 10,
        "axes.edgecolor": _LINE,
        "axes.labelcolor": _SOFT,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "axes.axisbelow": True,
        "grid.color": _LINE,
        "grid.linewidth": 0.5,
        "text.color": _INK,
        "xtick.color": _LINE,
        "ytick.color": _LINE,
        "xtick.labelcolor": _SOFT,
        "ytick.labelcolor": _SOFT,
    }
    with mpl.rc_context(style):
        figure = Figure(figsize=(_WIDTH, height), layout="constrained", facecolor="none")
        axes = figure.add_subplot(facecolor="none")
        draw(axes)
        out = io.StringIO()
        canvas: Any = FigureCanvasSVG(figure)
        canvas.print_svg(out, metadata={"Date": None, "Creator": None})
    text = out.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'<svg [^>]*viewBox="([^"]*)"[^>]*>', r'<svg viewBox="\1">', text, count=1)
    # the page's own font; sizes stay
    text = re.sub(r"font:\s*([^;\"]*?)(\d+(?:\.\d+)?px)[^;\"]*", r"font: \1\2 var(--font)", text)
    for placeholder, variable in _COLOURS.items():
        text = text.replace(placeholder, variable)
    return text
