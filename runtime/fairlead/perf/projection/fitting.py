"""From small runs to a curve with its band: what the runs show, how sure it is, and what that makes of N nodes.

:func:`fit` makes :class:`Draw`\\ s, each a set of all parameters that could be the true one. The curve is their
median, the band their middle 95 %. What differs between draws:

* the mean and the two deviations of computing, and the form of its tail: :meth:`fairlead.perf.projection.spread.SpreadEstimate.draw`;
* communication, input and whole steps: a bootstrap over their samples (B. Efron, *Bootstrap methods*, Annals of
  Statistics 7, 1979), the costs being fitted again to each;
* bandwidth and latency of the fabric, lognormal within their declared uncertainty;
* how much longer a byte takes in an allreduce than in a pingpong, where no run had several nodes: 1 to 3 times, even
  in the logarithm;
* the overlap, where a validation has only rates: anything from none to all.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass

import numpy as np

from fairlead.base.errors import fail
from fairlead.perf.projection.cost_model import (
    Algorithm,
    Allreduce,
    Costs,
    Layout,
    allreduce_s,
    features,
    fit_overlap,
)
from fairlead.perf.projection.cost_model import fit as fit_costs
from fairlead.perf.projection.fabrics import Network
from fairlead.perf.projection.small_runs import SmallRun
from fairlead.perf.projection.spread import Spread, Tail, estimate_spread, excess
from fairlead.perf.projection.step_model import LINK_USE, Fabric, Step, Work, step
from fairlead.perf.stats import Floats

DRAWS = 200

Random = np.random.Generator


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
        _, *parts = np.median([astuple(s) for s in steps], axis=0).tolist()
        return Point(
            nodes,
            nodes * self.draws[0].fabric.ranks,
            band([s.step_s for s in steps]),
            band([s.efficiency for s in steps]),
            Step(nodes, *parts),
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
    last = len(ordered) - 1
    low, middle, high = (float(ordered[round(share * last)]) for share in (0.025, 0.5, 0.975))
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
    fitted, random = _Fitted(runs, target, batch), np.random.default_rng(seed)
    return Projection(tuple(fitted.draw(random) for _ in range(draws)), fitted.assumed)


class _Fitted:
    """What the runs show, from which parameters are drawn.

    Attributes:
        assumed: what no run shows, in words.
    """

    def __init__(self, runs: Sequence[SmallRun], target: Target, batch: int | None):
        batches = [run.local_batch for run in runs]
        self._batch = batch if batch in batches else max(sorted(set(batches)), key=batches.count)
        self._wanted, self._target = batch or self._batch, target
        self._usual = [run for run in runs if run.local_batch == self._batch]
        self._inputs = [t for run in self._usual for t in run.input_s]
        if not any(run.compute_s for run in self._usual):
            raise fail("project-runs-no-compute-time")
        self._reducing = [run for run in self._usual if run.ranks > 1]
        tables = [np.array(run.compute_s) for run in self._usual if _every_rank(run)]
        # From the ranks' own times, else from how long they wait, else from what steps take longer.
        own_times = not self._reducing or any(map(_every_rank, self._reducing))
        self._estimate = estimate_spread(tables) if own_times else None
        self._other_times: dict[int, list[float]] = {}
        for run in runs:
            if run.compute_s and run.local_batch != self._batch:
                self._other_times.setdefault(run.local_batch, []).extend(_flat(run.compute_s))
        if self._wanted != self._batch and not self._other_times:
            raise fail("project-runs-other-batch", batch=batch, seen_batch=self._batch)
        if target.ranks > 1 and not any(run.ranks > run.nodes for run in self._reducing):
            raise fail("project-runs-one-per-node", ranks=target.ranks)
        # Whole steps show the overlap where the slowest rank is known.
        whole = [run for run in self._reducing if run.step_s]
        self._timed = [run for run in whole if _every_rank(run) or (run.compute_s and run.wait_s)]
        self._rates_only = bool(whole) and not self._timed
        several_nodes = any(run.nodes > 1 for run in self._reducing)
        waits = any(run.wait_s for run in self._reducing)
        assumed = {
            "no rank is slower than others for long: one rank alone does not show it": (
                self._estimate and not self._estimate.between_free
            ),
            f"the spread of ranks is {'how long ranks wait' if waits else 'what steps take longer'} beyond computing and"
            " allreduce, none of it lasting; its tail is unknown": not self._estimate,
            "the runs of several nodes were on this very fabric": several_nodes,
            f"a byte of an allreduce between nodes takes {LINK_USE[0]:g} to {LINK_USE[1]:g} times as long as the bandwidth"
            " says: no run had several nodes": not several_nodes,
            "nothing of the allreduce is hidden: no run has `step_s`": not whole,
            "anything from none to all of the allreduce is hidden: rates do not show it": (
                self._rates_only
            ),
            "reading the input costs nothing: no run has `input_s`": not self._inputs,
        }
        self.assumed = tuple(words for words, holds in assumed.items() if holds)

    def draw(self, random: Random) -> Draw:
        """One set of parameters that could be the true one."""
        target, network = self._target, self._target.network
        assert network.bandwidth and network.latency_s  # fabrics.given refuses a network without
        bandwidth, latency = network.bandwidth.draw(random), network.latency_s.draw(random)
        costs, use = self._moving(bandwidth, latency, random)
        if use is None:
            use = float(np.exp(random.uniform(*np.log(LINK_USE))))
        overlap = self._overlap(random)
        compute, spread = (
            self._estimate.draw(random) if self._estimate else self._from_waiting(overlap, random)
        )
        fixed, sample = self._line(compute, random)
        work = Work(
            compute_s=compute,
            bytes=self._usual[0].bytes,
            batch=self._batch,
            fixed_s=fixed,
            sample_s=sample,
            input_s=_mean(self._inputs, random),
            overlap=overlap,
        )
        if self._wanted != self._batch:
            work = work.at(self._wanted)
        fabric = Fabric(
            bandwidth, latency, use, target.ranks, costs.node_latency, costs.node_byte, target.algorithm,
            target.shared_input,
        )  # fmt: skip
        return Draw(work, fabric, spread)

    def _from_waiting(self, overlap: float, random: Random) -> tuple[float, Spread]:
        """A deviation by least squares: the mean rank waits for the slowest as long as that exceeds the mean."""
        compute = _mean([t for run in self._usual for t in _flat(run.compute_s)], random)
        tail = Tail.GUMBEL if random.random() < 0.5 else Tail.LOGNORMAL
        points = []
        for run in self._reducing:
            if run.wait_s:
                rest = _mean(run.wait_s, random)
            elif run.step_s:
                moving = _mean(run.communicate_s, random)
                rest = _mean(run.step_s, random) - compute - moving + overlap * min(compute, moving)
            else:
                continue
            points.append((excess(0.01, run.ranks, tail) / 0.01 * compute, rest))
        return compute, Spread(0.0, _slope(points), tail)

    def _line(self, compute: float, random: Random) -> tuple[float | None, float | None]:
        """How computing grows with the local batch: a line through the draw's own value and the other batches."""
        if not self._other_times:
            return None, None
        others = sorted(self._other_times.items())
        slope = _slope((b - self._batch, _mean(times, random) - compute) for b, times in others)
        # Neither a sample nor the step itself can take less than nothing.
        sample = min(slope, compute / self._batch)
        return compute - sample * self._batch, sample

    def _overlap(self, random: Random) -> float:
        if self._rates_only:
            return float(random.uniform())
        moving = [_mean(run.communicate_s, random) for run in self._timed]
        if not any(moving):
            return 0.0
        steps = [_mean(run.step_s, random) for run in self._timed]
        return fit_overlap([_slowest(run, random) for run in self._timed], moving, steps)

    def _moving(
        self, bandwidth: float, latency_s: float, random: Random
    ) -> tuple[Costs, float | None]:
        """Costs within a node, and how much longer than its rate a link takes; None if no run shows it.

        From a bootstrap of each run's times. Between nodes only the link's use is fitted, the latency being the fabric's:
        with a single size, and few nodes, the two cannot be separated.
        """
        inside = [
            Allreduce(Layout(1, run.ranks, run.ranks), run.bytes, seconds)
            for run in self._reducing
            if run.nodes == 1 and (seconds := _mean(run.communicate_s, random)) > 0
        ]
        costs = fit_costs(inside) if inside else Costs(0.0, 0.0, 0.0, 0.0)
        known, points = costs._replace(link_latency=latency_s, link_use=0.0), []
        for run in self._reducing:
            if run.nodes > 1:
                ranks = run.ranks // run.nodes
                layout = Layout(run.nodes, ranks, ranks, bandwidth)
                rest = _mean(run.communicate_s, random) - allreduce_s(known, layout, run.bytes)
                points.append((features(layout, run.bytes)[3], rest))
        return costs, _slope(points) if points else None


def _slope(points: Iterable[tuple[float, float]]) -> float:
    """Of the line through the origin that is nearest to (x, y), by least squares; not below 0, and 0 of no points."""
    above = below = 0.0
    for x, y in points:
        above, below = above + x * y, below + x * x
    return max(above / below, 0.0) if below else 0.0


def _flat(times: Sequence[Sequence[float]]) -> list[float]:
    return [t for rank in times for t in rank]


def _every_rank(run: SmallRun) -> bool:
    """Whether the computing time of each of its ranks is known."""
    return len(run.compute_s) == run.ranks


def _slowest(run: SmallRun, random: Random) -> float:
    times = np.array(run.compute_s)
    if _every_rank(run):
        return _mean(times.max(axis=0), random)
    return _mean(times[0], random) + _mean(run.wait_s, random)


def _mean(values: Sequence[float] | Floats, random: Random) -> float:
    """Of a bootstrap sample; 0 of nothing."""
    if not len(values):
        return 0.0
    array = np.asarray(values, np.float64)
    return float(array[random.integers(0, len(array), len(array))].mean())
