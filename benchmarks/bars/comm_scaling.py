"""More ranks than cores: are they right, and how long do they take? A cost model is fitted, and tested.

Ranks from 2 to 32 share this machine's cores, and two ranks a cable of limited rate. Each sums arrays whose sums are
known, and trains by least squares against one process with all samples. The cost model
(:mod:`fairlead.perf.projection.cost_model`) sees a part of these runs; its error is published on the others: a number of
ranks, a size and a rate of the cable that it has not seen, and the training steps of ``comm-link``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

from tests.system.netns import two_hosts

from benchmarks.bars import comm_link as link
from benchmarks.result import Benchmark, Compared, Result, absolute, compare, kept
from benchmarks.sides import Job, Side, image, scratch, slowest, started
from benchmarks.tables import plain
from fairlead.perf.draw.charts import Figure, Series, chart, decades
from fairlead.perf.draw.svg_file import picture
from fairlead.perf.projection.cost_model import (
    Allreduce,
    Costs,
    Layout,
    allreduce_s,
    fit,
    fit_overlap,
)

SIZES = (4096, 65536, 1048576, 2376704, 13107200, 33554432)
# What the fit does not see: these ranks at every size, this size at all ranks, this rate of the cable.
HELD_RANKS, HELD_SIZE, HELD_RATE = 8, 2376704, 5e8
_SUM, _WEIGHTS = 1e-6, 1e-4  # of float32


@dataclass(frozen=True)
class Effort:
    """How much is measured; ``inputs``: rows of the trained matrix of 64 columns."""

    ranks: tuple[int, ...] = (2, 4, 8, 16, 32)
    sizes: tuple[int, ...] = SIZES
    rates: tuple[float, ...] = (1e9, HELD_RATE, 2e9)
    rounds: int = 5
    inputs: int = 4096
    steps: int = 6


@dataclass(frozen=True)
class Run:
    """The seconds of one configuration."""

    layout: Layout
    size: int
    samples: tuple[float, ...]

    @property
    def held(self) -> bool:
        """Whether it is held out of the fit."""
        layout = self.layout
        return layout.ranks == HELD_RANKS or self.size == HELD_SIZE or layout.link * 8 == HELD_RATE

    @property
    def median(self) -> Allreduce:
        return Allreduce(self.layout, self.size, median(self.samples))


def measure(effort: Effort = Effort()) -> Result:
    """Rows: errors of sums and of weights, with bars; measured over predicted, held out."""
    rows: list[Compared] = []
    runs: list[Run] = []
    with scratch() as folder:
        for ranks in effort.ranks:
            with Side(f"many{ranks}", _job(ranks), folder).ready() as side:
                runs += _reduced(side, ranks, effort, rows)
                rows += _trained(side, ranks, effort)
    if os.geteuid() == 0 and effort.rates:
        runs += _linked(effort)
    costs = fit([run.median for run in runs if not run.held])
    rows += judged(costs, runs)
    overlaps: Mapping[str, float] = {}
    if effort == Effort():
        overlaps, more = _steps(costs)
        rows += more
    return Result(
        "comm-scaling",
        "allreduce and training steps of 2 to 32 ranks on this machine's cores, and over a cable",
        "sums and weights: one process with all samples; times: the cost model, on runs it has not seen",
        tuple(rows),
        {
            **{f"fitted {k}": f"{v:.4g}" for k, v in costs._asdict().items()},
            **{f"overlap {k}": f"{v:.2f}" for k, v in overlaps.items()},
        },
    )


def _job(ranks: int) -> Job:
    return Job(image("mpi-base"), ["many_ranks.py"], ranks)


def relative_errors(costs: Costs, runs: Sequence[Allreduce]) -> list[float]:
    """Of each run: predicted over measured, less one."""
    return [allreduce_s(costs, run.layout, run.size) / run.seconds - 1 for run in runs]


def step_s(
    costs: Costs, layout: Layout, compute_s: float, size: float, overlap: float = 0.0
) -> float:
    """Seconds of a training step: computing plus allreduce, less what of the shorter overlaps the longer.

    Args:
        compute_s: of one rank that has a core for itself.
        size: bytes of gradients.
        overlap: 0, communication begins when computing ends; 1, the shorter is hidden whole.
    """
    if not 0 <= overlap <= 1:
        raise ValueError(f"an overlap of {overlap} is not in [0, 1]")
    compute, moving = compute_s * layout.crowd, allreduce_s(costs, layout, size)
    return compute + moving - overlap * min(compute, moving)


def judged(costs: Costs, runs: Sequence[Run]) -> list[Compared]:
    """Each run over its prediction; then the median errors of held-out and of fitted runs."""
    rows = []
    for run in runs:
        layout = run.layout
        where = f"2 nodes, {layout.link * 8 / 1e9:g} Gbit/s"
        if layout.nodes == 1:
            where = f"{layout.ranks} ranks"
        (error,) = relative_errors(costs, [run.median])
        predicted = [(1 + error) * run.median.seconds] * len(run.samples)
        label = "held out" if run.held else "fitted"
        name = f"{label}: {where}, {run.size} B: measured over the model"
        rows.append(compare(name, run.samples, predicted, None))
    for label, held in (("held-out", True), ("fitted", False)):
        own = [run.median for run in runs if run.held is held]
        errors = [abs(error) for error in relative_errors(costs, own)]
        if errors:
            name = f"the model's error on {len(own)} {label} runs, median"
            rows.append(absolute(name, errors, None, "relative"))
    return rows


def _reduced(side: Side, ranks: int, effort: Effort, rows: list[Compared]) -> list[Run]:
    layout = Layout(1, ranks, len(os.sched_getaffinity(0)))
    runs, off = [], []
    for size in effort.sizes:
        samples, error = _reduce(side, size, effort)
        runs.append(Run(layout, size, samples))
        off.append(error)
    rows.append(absolute(f"{ranks} ranks: error of means, relative", [max(off)], _SUM, "relative"))
    return runs


def _reduce(side: Side, size: int, effort: Effort) -> tuple[tuple[float, ...], float]:
    """Seconds of the slowest rank, shape (rounds,), and the largest error of a mean."""
    answers = side.ask("reduce", count=size // 4, repeats=effort.rounds + 1)
    seconds = slowest([rank["seconds"] for rank in answers])[1:]
    return tuple(seconds), max(rank["off"] for rank in answers)


def _trained(side: Side, ranks: int, effort: Effort) -> list[Compared]:
    rows = []
    for mode, title in (("sync", "synchronous"), ("delayed", "delayed")):
        answers = side.ask("train", inputs=effort.inputs, steps=effort.steps, mode=mode)
        if len({rank["digest"] for rank in answers}) != 1:
            raise RuntimeError(f"{ranks} ranks, {title}: they hold different weights")
        name = f"{ranks} ranks, {title}: weights off one process's"
        rows.append(absolute(name, [answers[0]["off"]], _WEIGHTS, "relative"))
    return rows


def _linked(effort: Effort) -> list[Run]:
    runs = []
    with two_hosts() as pair:
        jobs = {"many": partial(link.job, "many", pair[0], ("many_ranks.py",))}
        with started(jobs) as sides, sides["many"].turn() as side:
            for rate in effort.rates:
                for host in pair:
                    link.limit(host, rate)
                for size in effort.sizes[:-1]:
                    layout = Layout(2, 1, 1, rate / 8)
                    runs.append(Run(layout, size, _reduce(side, size, effort)[0]))
    return runs


def _steps(costs: Costs) -> tuple[dict[str, float], list[Compared]]:
    """The training steps of ``comm-link``, of which the model has seen none.

    The overlap of a mode is fitted to one network and tested on the other.
    """
    try:
        steps = _kept_steps()
    except FileNotFoundError:
        return {}, []
    titles = {link.title_of(m): (rate, link.WEIGHTS[m]) for m, rate in link.RATES.items()}
    overlaps, rows = {}, []
    for mode in ("synchronous", "delayed"):
        for fitted, other in ((a, b) for a in steps for b in steps if a != b):
            middle = {k: median(v) for k, v in steps[fitted].items()}
            overlap = fit_overlap([middle["none"]], [middle["only"]], [middle[mode]])
            overlaps[f"{mode}, {fitted}"] = overlap
            rate, weights = titles[other]
            layout = Layout(2, 1, 1, rate / 8)
            predicted = step_s(costs, layout, median(steps[other]["none"]), 4 * weights, overlap)
            samples = steps[other][mode]
            name = f"held out: step of {other}, {mode}: measured over the model"
            rows.append(compare(name, samples, [predicted] * len(samples), None))
    return overlaps, rows


def _kept_steps() -> dict[str, dict[str, list[float]]]:
    """Seconds of ``comm-link``'s steps by model and mode."""
    steps: dict[str, dict[str, list[float]]] = {}
    for row in kept("comm-link")["rows"]:
        title, what = row["name"].split(": ")
        own = steps.setdefault(title, {})
        if "communication)" in what:
            own["delayed"] = row["samples"]
        elif what.startswith("synchronous"):
            own["synchronous"] = row["samples"]
        elif what.startswith("communication alone"):
            own.update(none=row["baseline"], only=row["samples"])
    return steps


def _table(result: Mapping[str, Any]) -> str:
    """What is right and the model's errors; each held-out run is in the JSON."""
    rows = [
        row
        for row in result["rows"]
        if not row["name"].startswith(("held out: ", "fitted: ")) or "step of" in row["name"]
    ]
    fitted = ", ".join(f"{k[7:]} {v}" for k, v in result["versions"].items() if "fitted" in k)
    table = plain({**result, "rows": _worst_of_ranks(rows)})
    return f"{table}\nFitted, in seconds, and as a multiple of the link's rate: {fitted}.\n"


def _worst_of_ranks(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Rows that differ in their number of ranks alone as one: the largest value of them."""
    worst: dict[str, Mapping[str, Any]] = {}
    for row in rows:
        name = re.sub(r"^\d+ ranks", "2 to 32 ranks, worst", row["name"])
        if name not in worst or row["value"] > worst[name]["value"]:
            worst[name] = {**row, "name": name}
    return list(worst.values())


def _picture(result: Mapping[str, Any]) -> str:
    """Measured against predicted milliseconds; runs that the model has not seen stand out."""
    points: dict[str, list[tuple[float, float]]] = {"fitted": [], "held out": []}
    for row in result["rows"]:
        label = row["name"].partition(": ")[0]
        if label in points and "step of" not in row["name"]:
            points[label].append((1e3 * median(row["samples"]), 1e3 * median(row["baseline"])))
    values = [value for own in points.values() for pair in own for value in pair]
    ends = (min(values), max(values))
    series = (
        Series("equal", ((ends[0], ends[0]), (ends[1], ends[1])), "ideal", marks=False),
        Series("fitted", tuple(points["fitted"]), "c", line=False),
        Series("held out", tuple(points["held out"]), "a", line=False),
    )
    svg = chart(decades(values, "measured, ms"), decades(values, "model, ms"), series, "Cost model")
    words = "allreduces of all ranks, sizes and rates"
    legend = tuple((line.style, line.name) for line in series)
    return picture([Figure("Cost model", words, svg, legend)])


BENCHMARKS = (Benchmark("comm-scaling", 130, measure, _table, _picture),)
