"""Do ranks learn what one process learns? HEP-CNN and CosmoFlow to their held-out score, by seed.

Single process, 2 ranks synchronous, 2 ranks delayed with the guardrails on (a synchronous warm-up of a tenth, then the
learning rate times ``Delayed.scale``): one global batch, one data set, five seeds of weights and order. A seed's modes
start from the same weights and see the same batches.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from benchmarks.result import Benchmark, Compared, Result, compare
from benchmarks.sides import Job, image, started
from benchmarks.tables import plain
from fairlead.perf.draw.charts import Axis, Figure, Series, chart, linear
from fairlead.perf.draw.svg_file import picture

SCORES = {"hep": "HEP-CNN: AUC", "cosmo": "CosmoFlow: skill"}
_MODES = {"alone": "one process", "sync": "2 ranks", "delayed": "2 ranks, delayed"}
# The least difference of scores that matters: the standard error of a score on the held-out samples.
_NOISE = {"hep": 0.007, "cosmo": 0.02}


@dataclass(frozen=True)
class Effort:
    """How much is measured; ``samples`` has (model, samples, epochs)."""

    seeds: int = 5
    samples: tuple[tuple[str, int, int], ...] = (("hep", 3000, 2), ("cosmo", 1200, 4))


def measure(effort: Effort = Effort()) -> Result:
    """Rows: how much less than one process each mode scores, by seed; the bar is what noise explains."""
    by_mode = scores(effort)
    rows = [
        lost(model, mode, by_mode[model, "alone"], by_mode[model, mode])
        for model, _, _ in effort.samples
        for mode in ("sync", "delayed")
    ]
    return Result(
        "convergence",
        f"held-out score of 2 ranks, over {effort.seeds} seeds of weights and order",
        "one process with the same global batch, data, weights and order",
        tuple(rows),
        {SCORES[m]: f"{n} samples, {e} epochs" for m, n, e in effort.samples},
    )


def lost(model: str, mode: str, alone: list[float], own: list[float]) -> Compared:
    """One process's score less a mode's."""
    name = f"{SCORES[model]} lost by {_MODES[mode]}"
    bar = spread_bar(model, alone)
    return compare(name, alone, own, bar, kind="difference", unit="score")


def spread_bar(model: str, scores: list[float]) -> float:
    """How much of a score may be lost: its spread over seeds, or what the test set resolves."""
    spread = statistics.stdev(scores) if len(scores) > 1 else 0.0
    return max(spread, _NOISE[model])


def scores(effort: Effort) -> dict[tuple[str, str], list[float]]:
    """Held-out scores by model and mode, one a seed.

    Raises:
        RuntimeError: ranks ended with different weights.
    """
    by_mode: dict[tuple[str, str], list[float]] = {}
    with started({f"learn{n}": partial(_job, n) for n in (1, 2)}) as sides:
        for model, samples, epochs in effort.samples:
            for seed in range(effort.seeds):
                for mode in _MODES:
                    with sides["learn1" if mode == "alone" else "learn2"].turn() as side:
                        ranks = side.ask(
                            "train", model=model, mode=mode, seed=seed, samples=samples, epochs=epochs
                        )  # fmt: skip
                    if len({rank["digest"] for rank in ranks}) != 1:
                        where = f"{model}, {mode}, seed {seed}"
                        raise RuntimeError(f"{where}: ranks hold different weights")
                    by_mode.setdefault((model, mode), []).append(ranks[0]["score"])
    return by_mode


def _job(ranks: int) -> Job:
    return Job(image("tensorflow"), ["tf_converge.py"], ranks)


def _picture(result: Mapping[str, Any]) -> str:
    """One point a seed for every way to train, a panel a model, with the mean as a line."""
    panels: dict[str, dict[str, list[float]]] = {}
    for row in result["rows"]:
        score, mode = row["name"].split(" lost by ")
        panel = panels.setdefault(score, {_MODES["alone"]: row["samples"]})
        panel[mode] = row["baseline"]
    return picture([_panel(title, values) for title, values in panels.items()])


def _panel(title: str, values: Mapping[str, list[float]]) -> Figure:
    every = [score for own in values.values() for score in own]
    room = 0.1 * (max(every) - min(every))
    names = tuple((float(at), name) for at, name in enumerate(values))
    across = Axis("", -0.6, len(values) - 0.4, names, log=False)
    series = []
    for at, (name, own) in enumerate(values.items()):
        mean = statistics.fmean(own)
        series.append(Series(name, tuple((float(at), score) for score in own), "a", line=False))
        series.append(Series("mean", ((at - 0.25, mean), (at + 0.25, mean)), "bound", marks=False))
    up = linear(min(every) - room, max(every) + room, "")
    words = "held-out score, a point a seed; dashed: the mean"
    return Figure(title, words, chart(across, up, series, title))


BENCHMARKS = (Benchmark("convergence", 135, measure, plain, _picture),)
