"""Fewer bytes on a slow link: how long until a score is reached, and how much of the score that costs, over seeds.

HEP-CNN on 2 ranks, each on a host of its own. Steps are timed over a cable of limited rate, in turns, without the first,
which TensorFlow traces; then the same ranks learn without a limit, and the steps until a score are counted. A seed's ways
start from the same weights and see the same batches.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from tests.system.netns import two_hosts, unlimited

from benchmarks.bars.comm_link import job, limit
from benchmarks.bars.convergence import spread_bar
from benchmarks.result import Benchmark, Compared, Result, alternate, compare
from benchmarks.sides import Side, started
from benchmarks.tables import plain
from fairlead.perf.draw.charts import BarRow, Figure, bars, linear
from fairlead.perf.draw.svg_file import picture

TITLES = {"none": "float32", "fp16": "fp16", "bf16": "bf16", "powersgd": "PowerSGD of rank 2"}
_MODEL = "hep"
# A course is noisy: a score counts as reached where the one of float32, less what samples resolve, is.
_NOISE = 0.007


@dataclass(frozen=True)
class Effort:
    """How much is measured.

    Attributes:
        samples, epochs, marks: of a training that learns; scores are taken ``marks`` times.
        rounds, timed: of trainings that are timed, of so many samples.
        rate: of the cable, in bits a second.
    """

    seeds: int = 5
    samples: int = 2000
    epochs: int = 2
    marks: int = 8
    rounds: int = 5
    timed: int = 320
    rate: float = 100e6


@dataclass(frozen=True)
class Course:
    """One training: held-out scores, each with the number of steps before it."""

    steps: tuple[int, ...]
    scores: tuple[float, ...]

    def until(self, score: float) -> int | None:
        """The steps after which it is reached; None if it is not."""
        pairs = zip(self.steps, self.scores, strict=True)
        return next((steps for steps, own in pairs if own >= score), None)


def measure(effort: Effort = Effort()) -> Result:
    """Rows: seconds of a step, and until the score that float32 ends with, over float32's; the score lost."""
    if os.geteuid() != 0:
        raise RuntimeError("two hosts on one machine need root: they are namespaces")
    rows, notes = rows_of(*trained(effort))
    return Result(
        "compression",
        f"HEP-CNN on two hosts and a cable of {effort.rate / 1e6:g} Mbit/s, {effort.seeds} seeds of weights and order",
        "the same with gradients of float32",
        tuple(rows),
        {
            "training": f"{effort.samples} samples, {effort.epochs} epochs",
            "reached": f"the score that float32 ends with, of the same seed, less {_NOISE}",
            **notes,
        },
        timed=False,  # the bars are of scores
    )


def rows_of(
    step_s: Mapping[str, Sequence[float]], courses: Mapping[str, Sequence[Course]]
) -> tuple[list[Compared], dict[str, str]]:
    """The rows, and what has not come to its score.

    Args:
        step_s: seconds of a step by way, one a round.
        courses: by way, one a seed.
    """
    rows: list[Compared] = []
    notes: dict[str, str] = {}
    whole, whole_s = courses["none"], statistics.median(step_s["none"])
    ends = [course.scores[-1] for course in whole]
    for way in (way for way in courses if way != "none"):
        own, title, seconds = courses[way], TITLES[way], statistics.median(step_s[way])
        rows.append(compare(f"{title}: a step, over float32", step_s[way], step_s["none"], None))
        targets = [end - _NOISE for end in ends]
        reached = [(c.until(t), w.until(t)) for c, w, t in zip(own, whole, targets, strict=True)]
        both = [(c * seconds, w * whole_s) for c, w in reached if c is not None and w is not None]
        if late := sum(c is None for c, _ in reached):
            notes[title] = f"{late} of {len(own)} seeds have not reached it, and count for no time"
        if both:
            ours, theirs = zip(*both, strict=True)
            rows.append(compare(f"{title}: until the score, over float32", ours, theirs, None))
        lost = compare(
            f"{title}: AUC lost", ends, [c.scores[-1] for c in own], spread_bar(_MODEL, ends),
            kind="difference", unit="score",
        )  # fmt: skip
        rows.append(lost)
    return rows, notes


def trained(effort: Effort) -> tuple[dict[str, list[float]], dict[str, list[Course]]]:
    """Seconds of a step by way, one a round; and courses by way, one a seed.

    Raises:
        RuntimeError: ranks ended with different weights.
    """
    courses: dict[str, list[Course]] = {way: [] for way in TITLES}
    with two_hosts() as pair:
        jobs = {"learn": partial(job, "learn", pair[0], ("tf_converge.py",))}
        with started(jobs) as sides, sides["learn"].turn() as side:
            for host in pair:
                limit(host, effort.rate)
            ask = {"samples": effort.timed, "epochs": 1, "marks": 0}
            ways = {way: partial(_step_s, side, way, **ask) for way in TITLES}
            step_s = alternate(effort.rounds, ways)
            for host in pair:
                unlimited(host)
            print("  steps are timed", flush=True)
            for seed in range(effort.seeds):
                for way in TITLES:
                    courses[way].append(_course(side, effort, seed, way))
                print(f"  seed {seed + 1} of {effort.seeds}", flush=True)
    return step_s, courses


def _step_s(side: Side, way: str, **words: int) -> float:
    ranks = side.ask("train", model=_MODEL, mode="sync", seed=0, compression=way, **words)
    return float(max(rank["step_s"] for rank in ranks))


def _course(side: Side, effort: Effort, seed: int, way: str) -> Course:
    ranks = side.ask(
        "train", model=_MODEL, mode="sync", seed=seed, samples=effort.samples, epochs=effort.epochs,
        marks=effort.marks, compression=way,
    )  # fmt: skip
    if len({rank["digest"] for rank in ranks}) != 1:
        raise RuntimeError(f"{way}, seed {seed}: ranks hold different weights")
    return Course(*zip(*ranks[0]["course"], strict=True))


def _picture(result: Mapping[str, Any]) -> str:
    """Seconds until the score, a bar a way."""
    rows = [row for row in result["rows"] if "until the score" in row["name"]]
    medians = {"float32": statistics.median(rows[0]["baseline"])} if rows else {}
    for row in rows:
        medians[row["name"].partition(":")[0]] = statistics.median(row["samples"])
    shown = [
        BarRow(name, seconds, f"{seconds:.1f} s", "other" if name == "float32" else "a")
        for name, seconds in medians.items()
    ]
    title = "Until the score that float32 ends with"
    axis = linear(0, 1.1 * max(medians.values(), default=1.0), "s")
    return picture([Figure(title, "medians over seeds", bars(shown, axis, title))])


BENCHMARKS = (Benchmark("compression", 136, measure, plain, _picture),)
