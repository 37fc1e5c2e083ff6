"""From small runs to a curve with its band: what the runs show, how sure it is, and what that makes of N nodes.

:func:`fit` makes :class:`Draw`\\ s, each a set of all parameters that could be the true one. The curve is their
median, the band their middle 95 %. What differs between draws:

* the mean and the two deviations of computing, and the form of its tail: :meth:`fairlead.perf.projection.spread.Seen.draw`;
* communication, input and whole steps: a bootstrap over their samples (B. Efron, *Bootstrap methods*, Annals of
  Statistics 7, 1979), the costs being fitted anew to each;
* bandwidth and latency of the fabric, lognormal within their declared uncertainty;
* how much longer a byte takes in an allreduce than in a pingpong, where no run had several nodes: 1 to 3 times, even
  in the logarithm;
* the overlap, where a validation has only rates: anything from none to all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fairlead.base.errors import fail
from fairlead.perf.projection.cost_model import (
    Algorithm,
    Allreduce,
    Costs,
    Layout,
    allreduce_s,
    fit_overlap,
)
from fairlead.perf.projection.cost_model import fit as fit_costs
from fairlead.perf.projection.fabrics import Network
from fairlead.perf.projection.small_runs import SmallRun
from fairlead.perf.projection.spread import Floats, Spread, Tail, excess, seen
from fairlead.perf.projection.step_model import LINK_USE, Fabric, Step, Work, step

DRAWS = 200
_BAND = (2.5, 97.5)


@dataclass(frozen=True)
class Target:
    """The machine that is projected to.

    Attributes:
        network: its numbers; bandwidth and latency are known.
        ranks: of a node.
        shared_input: samples a second that its storage gives all ranks together.
    """

    network: Network
    ranks: int = 1
    algorithm: Algorithm = Algorithm.HALVING
    shared_input: float = math.inf


@dataclass(frozen=True)
class Draw:
    """One set of parameters that could be the true one."""

    work: Work
    fabric: Fabric
    spread: Spread


@dataclass(frozen=True)
class Band:
    """A value and between what it is, 95 %."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Point:
    """A place of the curve.

    Attributes:
        step: its parts are medians, each its own: they add up nearly.
        dominant: the part that costs most, other than computing, in most draws.
    """

    nodes: int
    ranks: int
    step_s: Band
    efficiency: Band
    step: Step
    dominant: str


@dataclass(frozen=True)
class Projection:
    """What was fitted.

    Attributes:
        draws: shape (draws,).
        assumed: what no run shows, in words.
    """

    draws: tuple[Draw, ...]
    assumed: tuple[str, ...]

    def point(self, nodes: int, delayed: bool = False) -> Point:
        """``nodes`` nodes."""
        steps = [step(d.work, d.fabric, d.spread, nodes, delayed) for d in self.draws]
        names = [s.dominant for s in steps]
        middle = {
            name: float(np.median([getattr(s, name) for s in steps]))
            for name in (
                "step_s", "efficiency", "compute_s", "straggle_s", "exposed_s", "input_s", "allreduce_s",
            )
        }  # fmt: skip
        return Point(
            nodes,
            nodes * self.draws[0].fabric.ranks,
            band([s.step_s for s in steps]),
            band([s.efficiency for s in steps]),
            Step(nodes=nodes, **middle),
            max(sorted(set(names)), key=names.count),
        )

    def curve(self, nodes: int, delayed: bool = False) -> tuple[Point, ...]:
        """1, 2, 4, … up to ``nodes``, which is among them."""
        places = sorted({*(2**i for i in range(nodes.bit_length()) if 2**i < nodes), nodes})
        return tuple(self.point(n, delayed) for n in places)


def band(values: Sequence[float]) -> Band:
    """Median and the middle 95 %; of infinite values, as of what never comes, infinite ones."""
    ordered = np.sort(np.asarray(values, np.float64))
    # By rank, not between two: an infinite neighbour must not make NaN of a finite value.
    low, middle, high = (
        float(ordered[round(p / 100 * (len(ordered) - 1))]) for p in (_BAND[0], 50, _BAND[1])
    )
    return Band(middle, low, high)


def fit(
    runs: Sequence[SmallRun],
    target: Target,
    batch: int | None = None,
    draws: int = DRAWS,
    seed: int = 1,
) -> Projection:
    """What small runs show about a target.

    Args:
        runs: at the same bytes of gradients; at two local batches or more, if another batch is to be asked for.
        batch: local batch that is projected; that of most runs otherwise.
        seed: of the draws; the same seed gives the same curve.
    Raises:
        FairleadError: exit code 2; the runs do not have what the target needs.
    """
    batches = [run.local_batch for run in runs]
    seen_batch = batch if batch in batches else max(sorted(set(batches)), key=batches.count)
    usual = [run for run in runs if run.local_batch == seen_batch]
    computing = [run for run in runs if run.compute_s]
    if not any(run.local_batch == seen_batch for run in computing):
        raise fail("project-runs-no-compute-time")
    assumed: list[str] = []
    tell_spread = _spread_of(usual, assumed)
    line = _line(computing, seen_batch)
    if batch not in (None, seen_batch) and len({run.local_batch for run in computing}) == 1:
        raise fail("project-runs-other-batch", batch=batch, seen_batch=seen_batch)
    reducing = [run for run in usual if run.ranks > 1]
    if target.ranks > 1 and not any(run.ranks > run.nodes for run in reducing):
        raise fail("project-runs-one-per-node", ranks=target.ranks)
    if any(run.nodes > 1 for run in reducing):
        assumed.append("the runs of several nodes were on this very fabric")
    else:
        assumed.append(
            f"a byte of an allreduce between nodes takes {LINK_USE[0]:g} to {LINK_USE[1]:g} times as long as the bandwidth says: "
            "no run had several nodes"
        )
    tell_overlap = _overlap_of(reducing, assumed)
    if not any(run.input_s for run in usual):
        assumed.append("reading the input costs nothing: no run has `input_s`")
    numbers = [n for n in (target.network.bandwidth, target.network.latency_s) if n is not None]
    if len(numbers) < 2:
        raise ValueError(f"{target.network} is not known: fabrics.given fills it or refuses")
    random = np.random.default_rng(seed)
    made = []
    for _ in range(draws):
        bandwidth, latency = (known.draw(random) for known in numbers)
        moving = _moving(reducing, bandwidth, latency, random)
        use = moving.link_use
        if use is None:
            use = float(np.exp(random.uniform(*np.log(LINK_USE))))
        overlap = tell_overlap(random)
        compute, spread = tell_spread(random, overlap)
        fixed, sample = line(random, compute)
        work = Work(
            compute_s=compute,
            bytes=usual[0].bytes,
            batch=seen_batch,
            fixed_s=fixed,
            sample_s=sample,
            input_s=_mean([t for run in usual for t in run.input_s], random),
            overlap=overlap,
        )
        if batch is not None and batch != seen_batch:
            work = work.at(batch)
        fabric = Fabric(
            bandwidth,
            latency,
            use,
            target.ranks,
            moving.latency_s,
            moving.byte_s,
            target.algorithm,
            target.shared_input,
        )
        made.append(Draw(work, fabric, spread))
    return Projection(tuple(made), tuple(assumed))


Random = np.random.Generator


def _spread_of(
    runs: Sequence[SmallRun], assumed: list[str]
) -> Callable[[Random, float], tuple[float, Spread]]:
    """A function that draws computing time and spread: from the ranks' own times, else from how long they wait, else from
    what steps take longer."""
    tables = [np.array(run.compute_s) for run in runs if len(run.compute_s) == run.ranks]
    several = [run for run in runs if run.ranks > 1]
    if not several or any(len(run.compute_s) == run.ranks for run in several):
        if not any(table.shape[1] > 1 for table in tables):
            raise fail("project-runs-one-step")
        seen_spread = seen(tables)
        if not seen_spread.between_free:
            assumed.append(
                "no rank is slower than others for long: one rank alone tells nothing of that"
            )
        return lambda random, overlap: seen_spread.draw(random)
    what = "how long ranks wait" if any(run.wait_s for run in several) else "what steps take longer"
    assumed.append(
        f"the spread of ranks is {what} beyond computing and allreduce, none of it lasting; its tail is unknown"
    )
    return lambda random, overlap: _from_waiting(runs, overlap, random)


def _from_waiting(runs: Sequence[SmallRun], overlap: float, random: Random) -> tuple[float, Spread]:
    """A deviation by least squares: the mean rank waits for the slowest as long as that exceeds the mean."""
    compute = _mean([t for run in runs for rank in run.compute_s for t in rank], random)
    tail = Tail.GUMBEL if random.random() < 0.5 else Tail.LOGNORMAL
    above, below = 0.0, 0.0
    for run in runs:
        if run.ranks == 1 or not (run.wait_s or run.step_s):
            continue
        if run.wait_s:
            rest = _mean(run.wait_s, random)
        else:
            moving = _mean(run.communicate_s, random)
            rest = _mean(run.step_s, random) - compute - moving + overlap * min(compute, moving)
        unit = excess(0.01, run.ranks, tail) / 0.01 * compute
        above, below = above + rest * unit, below + unit**2
    return compute, Spread(0.0, max(0.0, above / below) if below else 0.0, tail)


def _line(
    runs: Sequence[SmallRun], batch: int
) -> Callable[[Random, float], tuple[float | None, float | None]]:
    """How computing grows with the local batch: a line through the draw's own value and the other batches."""
    others = sorted({run.local_batch for run in runs} - {batch})
    if not others:
        return lambda random, compute: (None, None)

    def draw_line(random: Random, compute: float) -> tuple[float, float]:
        above, below = 0.0, 0.0
        for other in others:
            times = [
                t for r in runs if r.local_batch == other for rank in r.compute_s for t in rank
            ]
            above += (_mean(times, random) - compute) * (other - batch)
            below += (other - batch) ** 2
        # Neither a sample nor the step itself can take less than nothing.
        sample = min(max(above / below, 0.0), compute / batch)
        return compute - sample * batch, sample

    return draw_line


def _overlap_of(runs: Sequence[SmallRun], assumed: list[str]) -> Callable[[Random], float]:
    """A function that draws the overlap, from whole steps of runs whose slowest rank is known."""
    whole = [run for run in runs if run.step_s]
    timed = [
        run for run in whole if len(run.compute_s) == run.ranks or (run.compute_s and run.wait_s)
    ]
    if not whole:
        assumed.append("nothing of the allreduce is hidden: no run has `step_s`")
        return lambda random: 0.0
    if not timed:
        assumed.append("anything from none to all of the allreduce is hidden: rates do not tell")
        return lambda random: float(random.uniform())

    def slowest(run: SmallRun, random: Random) -> float:
        times = np.array(run.compute_s)
        if len(times) == run.ranks:
            return _mean(times.max(axis=0), random)
        return _mean(times[0], random) + _mean(run.wait_s, random)

    def overlap(random: Random) -> float:
        moving = [_mean(run.communicate_s, random) for run in timed]
        if not any(moving):
            return 0.0
        steps = [_mean(run.step_s, random) for run in timed]
        return fit_overlap([slowest(run, random) for run in timed], moving, steps)

    return overlap


@dataclass(frozen=True)
class _Moving:
    """Of the allreduce: the stage within a node, and how much longer than its rate a link takes; None if unseen."""

    latency_s: float
    byte_s: float
    link_use: float | None


def _moving(
    runs: Sequence[SmallRun], bandwidth: float, latency_s: float, random: Random
) -> _Moving:
    """From a bootstrap of each run's times. Between nodes only the link's use is fitted, the latency being the fabric's:
    with a single size, and few nodes, the two cannot be separated."""
    inside = [
        Allreduce(Layout(1, run.ranks, run.ranks), run.bytes, seconds)
        for run in runs
        if run.nodes == 1 and (seconds := _mean(run.communicate_s, random)) > 0
    ]
    costs = fit_costs(inside) if inside else Costs(0.0, 0.0, 0.0, 0.0)
    above, below = 0.0, 0.0
    for run in runs:
        if run.nodes > 1:
            ranks = run.ranks // run.nodes
            known = replace(costs, link_latency=latency_s, link_use=0.0)
            layout = Layout(run.nodes, ranks, ranks, bandwidth)
            rest = _mean(run.communicate_s, random) - allreduce_s(known, layout, run.bytes)
            unit = allreduce_s(Costs(0.0, 0.0, 0.0, 1.0), layout, run.bytes)
            above, below = above + rest * unit, below + unit**2
    use = max(above / below, 0.0) if below else None
    return _Moving(costs.node_latency, costs.node_byte, use)


def _mean(values: Sequence[float] | Floats, random: Random) -> float:
    """Of a bootstrap sample; 0 of nothing."""
    if not len(values):
        return 0.0
    array = np.asarray(values, np.float64)
    return float(array[random.integers(0, len(array), len(array))].mean())
