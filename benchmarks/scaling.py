"""More ranks than cores: are they right, and how long do they take? A cost model is fitted, and tried.

Ranks from 2 to 32 share this machine's cores, and two ranks a cable of limited rate. Each sums arrays whose
sums are known, and trains by least squares against one process with all samples. The cost model
(:mod:`fairlead.perf.projection.cost_model`) sees a part of these runs; its error is published on the others: a number of ranks, a size
and a rate of the cable that it has not seen, and the training steps of ``comm-link``.
"""

from __future__ import annotations

import os
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.system.netns import two_hosts

from benchmarks import link, plots
from benchmarks.measure import Compared, Result, compare
from benchmarks.sides import Side, image
from fairlead.perf.projection.cost_model import (
    Allreduce,
    Costs,
    Layout,
    fit,
    fit_overlap,
    relative_errors,
    step_s,
)

SIZES = (4096, 65536, 1048576, 2376704, 13107200, 33554432)
# What the fit does not see: these ranks at every size, this size at all ranks, this rate of the cable.
HELD_RANKS, HELD_SIZE, HELD_RATE = 8, 2376704, 5e8
_SUM, _WEIGHTS = 1e-6, 1e-4  # of float32


@dataclass(frozen=True)
class Effort:
    """``inputs``: rows of the trained matrix of 64 columns."""

    ranks: tuple[int, ...] = (2, 4, 8, 16, 32)
    sizes: tuple[int, ...] = SIZES
    rates: tuple[float, ...] = (1e9, HELD_RATE, 2e9)
    rounds: int = 5
    inputs: int = 4096
    steps: int = 6


@dataclass(frozen=True)
class Run:
    """One configuration of ranks and what was found there."""

    layout: Layout
    size: int
    samples: tuple[float, ...]

    @property
    def held(self) -> bool:
        one = self.layout
        return one.ranks == HELD_RANKS or self.size == HELD_SIZE or one.link * 8 == HELD_RATE

    @property
    def median(self) -> Allreduce:
        return Allreduce(self.layout, self.size, statistics.median(self.samples))


def measure(effort: Effort = Effort()) -> Result:
    """Rows: errors of sums and of weights, with bars; measured over predicted, held out."""
    rows: list[Compared] = []
    runs: list[Run] = []
    with tempfile.TemporaryDirectory(prefix="fairlead-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        for ranks in effort.ranks:
            with _start(ranks, folder) as side:
                runs += _reduced(side, ranks, effort, rows)
                rows += _trained(side, ranks, effort)
        if os.geteuid() == 0 and effort.rates:
            runs += _linked(folder, effort)
    costs = fit([run.median for run in runs if not run.held])
    rows += judged(costs, runs)
    overlaps: Mapping[str, float] = {}
    if effort == Effort():
        overlaps, more = _steps(costs)
        rows += more
        _plot(costs, runs)
    return Result(
        "comm-scaling",
        "allreduce and training steps of 2 to 32 ranks on this machine's cores, and over a cable",
        "sums and weights: one process with all samples; times: the cost model, on runs it has not seen",
        tuple(rows),
        {
            **{f"fitted {k}": f"{v:.4g}" for k, v in asdict(costs).items()},
            **{f"overlap {k}": f"{v:.2f}" for k, v in overlaps.items()},
        },
    )


def judged(costs: Costs, runs: Sequence[Run]) -> list[Compared]:
    """Each held-out run over its prediction; then how far off they are in the middle, as are the fitted."""
    rows = []
    for run in runs:
        one = run.layout
        where = (
            f"{one.ranks} ranks" if one.nodes == 1 else f"2 nodes, {one.link * 8 / 1e9:g} Gbit/s"
        )
        (error,) = relative_errors(costs, [run.median])
        foretold = [(1 + error) * run.median.seconds] * len(run.samples)
        label = "held out" if run.held else "fitted"
        name = f"{label}: {where}, {run.size} B: measured over the model"
        rows.append(compare(name, run.samples, foretold, None))
    for label, held in (("held-out", True), ("fitted", False)):
        own = [run.median for run in runs if run.held is held]
        errors = [abs(error) for error in relative_errors(costs, own)]
        if errors:
            name = f"the model's error on {len(own)} {label} runs, median"
            rows.append(
                compare(name, errors, [0.0] * len(errors), None, kind="difference", unit="relative")
            )
    return rows


def _reduced(side: Side, ranks: int, effort: Effort, rows: list[Compared]) -> list[Run]:
    layout = Layout(1, ranks, len(os.sched_getaffinity(0)))
    runs, off = [], []
    for size in effort.sizes:
        said = side.ask("reduce", count=size // 4, repeats=effort.rounds + 1)
        slowest = [max(each) for each in zip(*(one["seconds"] for one in said), strict=True)][1:]
        runs.append(Run(layout, size, tuple(slowest)))
        off.append(max(one["off"] for one in said))
    rows.append(_right(f"{ranks} ranks: error of means, relative", off, _SUM))
    return runs


def _trained(side: Side, ranks: int, effort: Effort) -> list[Compared]:
    rows = []
    for mode, title in (("sync", "synchronous"), ("delayed", "delayed")):
        said = side.ask("train", inputs=effort.inputs, steps=effort.steps, mode=mode)
        if len({one["digest"] for one in said}) != 1:
            raise RuntimeError(f"{ranks} ranks, {title}: they hold other weights")
        off = [said[0]["off"]]
        rows.append(_right(f"{ranks} ranks, {title}: weights off one process's", off, _WEIGHTS))
    return rows


def _right(name: str, off: Sequence[float], bar: float) -> Compared:
    # The worst, not the middle.
    return compare(name, [max(off)], [0.0], bar, kind="difference", unit="relative")


def _linked(folder: Path, effort: Effort) -> list[Run]:
    with ExitStack() as stack:
        pair = stack.enter_context(two_hosts())
        side = stack.enter_context(link.start("many", "", folder, pair[0], ("many_ranks.py",)))
        side.ready()
        found = []
        for rate in effort.rates:
            for host in pair:
                link.limit(host, rate)
            for size in effort.sizes[:-1]:
                said = side.ask("reduce", count=size // 4, repeats=effort.rounds + 1)
                pairs = zip(*(one["seconds"] for one in said), strict=True)
                slowest = [max(each) for each in pairs][1:]
                found.append(Run(Layout(2, 1, 1, rate / 8), size, tuple(slowest)))
    return found


def _steps(costs: Costs) -> tuple[dict[str, float], list[Compared]]:
    """The training steps of ``comm-link``, of which the model has seen none: what it makes of them.

    The overlap of a mode is fitted to one network and tried on the other.
    """
    try:
        rows = plots.kept("comm-link")["rows"]
    except FileNotFoundError:
        return {}, []
    found: dict[str, dict[str, list[float]]] = {}
    for row in rows:
        title, what = row["name"].split(": ")
        if "communication)" in what:
            found.setdefault(title, {})["delayed"] = row["samples"]
        elif what.startswith("synchronous"):
            found.setdefault(title, {})["synchronous"] = row["samples"]
        elif what.startswith("communication alone"):
            found.setdefault(title, {}).update(none=row["baseline"], only=row["samples"])
    titles = {f"{link.TITLES[m]}, {r / 1e9:g} Gbit/s": (r, link.WEIGHTS[m]) for m, r in link.RATES.items()}  # fmt: skip
    overlaps, more = {}, []
    for mode in ("synchronous", "delayed"):
        for fitted in found:
            for other in found:
                if other == fitted:
                    continue
                middle = {k: statistics.median(v) for k, v in found[fitted].items()}
                overlap = fit_overlap([middle["none"]], [middle["only"]], [middle[mode]])
                overlaps[f"{mode}, {fitted}"] = overlap
                rate, size = titles[other]
                compute = statistics.median(found[other]["none"])
                layout = Layout(2, 1, 1, rate / 8)
                foretold = step_s(costs, layout, compute, 4 * size, overlap)
                samples = found[other][mode]
                name = f"held out: step of {other}, {mode}: measured over the model"
                more.append(compare(name, samples, [foretold] * len(samples), None))
    return overlaps, more


def _plot(costs: Costs, runs: Sequence[Run]) -> None:
    points = []
    for run in runs:
        one = run.median
        (error,) = relative_errors(costs, [one])
        points.append((one.seconds, (1 + error) * one.seconds, not run.held))
    plots.predicted(points, "comm-scaling")


def _start(ranks: int, folder: Path) -> Side:
    side = Side(f"many{ranks}", image("mpi-base"), ["many_ranks.py"], folder, ranks=ranks)
    return side.ready()
