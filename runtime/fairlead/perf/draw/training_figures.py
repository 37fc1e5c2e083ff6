"""The figures of a training: speed, scores, loss, ROC."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from fairlead.ml.task import Gate
from fairlead.ml.train.model import LossPoint
from fairlead.ml.train.result import TrainResult, score_name
from fairlead.perf.draw.charts import BarRow, Figure, Series, bars, chart, linear
from fairlead.perf.draw.wording import count, percent

_AXES = {
    "auc": "area under the ROC curve; 0.5: guessing",
    "accuracy": "share of correct answers",
}


def figures(training: TrainResult) -> tuple[Figure, ...]:
    """Those that there are data for."""
    made = [_speed(training)] if training.all.speed is not None else []
    made += [_score(training, gate) for gate in training.gates]
    made.append(_loss(training))
    if training.all.evaluation is not None and training.all.evaluation.roc:
        made.append(_roc(training.all.evaluation.roc))
    return tuple(made)


def _speed(training: TrainResult) -> Figure:
    """Samples per second on 1 rank and on all, and what perfect scaling would give."""
    everyone = training.all.speed
    single = training.one.speed if training.one is not None else None
    assert everyone is not None  # the caller checks
    ranks, fast = training.all.ranks, everyone.samples_per_s
    rows = [BarRow(count(ranks, "rank"), fast, f"{fast:.0f}", "a")]
    most, mark = fast, None
    if single is not None:
        slow = single.samples_per_s
        rows.append(BarRow("1 rank", slow, f"{slow:.0f}"))
        most, mark = max(fast, ranks * slow), (ranks * slow, "ideal")
    words = _speed_words(training)
    svg = bars(rows, linear(0, 1.05 * most, "samples per second"), words, mark)
    return Figure("Speed", words, svg)


def _speed_words(training: TrainResult) -> str:
    everyone = training.all
    assert everyone.speed is not None
    words = f"{everyone.speed.samples_per_s:.0f} samples/s on {count(everyone.ranks, 'rank')}"
    if training.one is not None and training.one.speed is not None:
        words += (
            f", {training.one.speed.samples_per_s:.0f} on 1: {percent(training.efficiency)} of ideal,"
            f" each rank with a batch of {everyone.batch} and {count(everyone.threads, 'thread')}"
        )
        if training.efficiency > 1.02:
            words += "; more than ideal means that other work slowed the machine on 1 rank"
    return words


def _score(training: TrainResult, gate: Gate) -> Figure:
    """A score of the network and of the linear model, and the gate between them."""
    network, linear_model = training.scores[gate.metric], training.baseline.scores[gate.metric]
    # An AUC begins at chance; an error of 1 is that of always predicting the mean.
    low = 0.5 if gate.metric == "auc" else 0.0
    high = max(1.0, network, linear_model)
    title = _AXES.get(gate.metric, f"error of {gate.metric}; 1: always the mean")
    words = (
        f"{network:.3f}; a linear model has {linear_model:.3f} on the same"
        f" {training.baseline.val:,} {training.task.sample}s; wanted: {gate.words}"
    )
    rows = (
        BarRow(training.task.title, network, f"{network:.3f}", "a"),
        BarRow("linear model", linear_model, f"{linear_model:.3f}"),
    )
    svg = bars(rows, linear(low, high, title), words, (gate.value, f"wanted: {gate.words}"))
    return Figure(f"Held-out {score_name(gate.metric)}", words, svg)


def _loss(training: TrainResult) -> Figure:
    """Loss against time: every step faint, the running mean strong."""
    everyone, points = training.all, training.all.loss
    outputs = training.task.network.outputs
    # What a network that knows nothing pays for classes; regressed parameters have no such line.
    guessing = math.log(outputs) if training.gates[0].metric in ("auc", "accuracy") else None
    smooth = _running_mean(points, 11)
    # A single wild step must not flatten the curve.
    top, end = 1.15 * max(*smooth, (guessing or 0.0) * 1.2), 1.01 * points[-1].seconds
    seconds = [point.seconds for point in points]
    losses = [min(point.loss, top) for point in points]
    lines = [
        Series("each step", tuple(zip(seconds, losses, strict=True)), "faint", marks=False),
        Series("running mean", tuple(zip(seconds, smooth, strict=True)), "a", marks=False),
    ]
    if guessing is not None:
        lines.append(Series("guessing", ((0.0, guessing), (end, guessing)), "ideal", marks=False))
    last = statistics.fmean(point.loss for point in points[-11:])
    words = (
        f"from {points[0].loss:.2f} to {last:.2f} in {len(points)} steps of"
        f" {everyone.batch * everyone.ranks} {training.task.sample}s"
    )
    svg = chart(linear(0, end, "seconds of training"), linear(0, top, ""), lines, f"Loss {words}")
    return Figure("Loss", words, svg, tuple((line.style, line.name) for line in lines))


def _roc(pairs: Sequence[tuple[float, float]]) -> Figure:
    """Signal kept against background kept."""
    lines = (
        Series("guessing", ((0.0, 0.0), (1.0, 1.0)), "ideal", marks=False),
        Series("network", tuple(pairs), "a", marks=False),
    )
    words = "how much signal is kept for how much background, held-out events"
    x, y = linear(0, 1, "background kept"), linear(0, 1, "signal kept")
    return Figure(
        "ROC", words, chart(x, y, lines, words), (("a", "network"), ("ideal", "guessing"))
    )


def _running_mean(points: Sequence[LossPoint], width: int) -> list[float]:
    losses = [point.loss for point in points]
    half = width // 2
    return [statistics.fmean(losses[max(0, i - half) : i + half + 1]) for i in range(len(losses))]
