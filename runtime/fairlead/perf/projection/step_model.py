"""A training step on N nodes, from what its parts cost: nothing here is fitted or random.

Synchronous, with `C` the mean computing time of a rank, `x(P)` how much the slowest of P ranks exceeds it
(:mod:`fairlead.perf.projection.spread`), `M(N)` the allreduce (:mod:`fairlead.perf.projection.cost_model`) and `h` the overlap::

    step = max( C (1 + x(P)) + M(N) - h min(C, M(N)),  input )

Delayed by one step, the allreduce of a step overlaps the computing of the next. A rank then waits only
for what was computed a step earlier, so a straggler of one step is caught up in others. The critical path is L
steps of one rank and one allreduce, which together pass L+1 steps; the slowest of P sums of L independent steps
exceeds its mean by about `sqrt(L)` times what one step does. Hence, with `p` the lasting and `a` the passing
part of the spread's excess::

    step = max( max over L of (L C (1 + p) + sqrt(L) C a + M) / (L + 1),  M,  input )

That is never more than the synchronous step. A simulation of the ranks' waiting agrees to a few percent
(``tests/unit/runtime/perf/test_projection.py``). What reads the input works ahead, so it costs only where it is the slowest of all.

Efficiency is what one rank alone does in the same time: `max(C, input) / step`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from fairlead.perf.projection.cost_model import Algorithm, Costs, Layout, allreduce_s
from fairlead.perf.projection.spread import Spread, excess

# How many times as long as a pingpong's bandwidth says a byte may take in an allreduce, where it was not measured.
LINK_USE = (1.0, 3.0)
# Steps of one rank between two waits; the maximum is flat, so a coarse list is as good as all numbers.
_STRETCHES = np.unique(np.geomspace(1, 4096, 120).round())


@dataclass(frozen=True)
class Work:
    """What a rank does in a step.

    Attributes:
        compute_s: mean seconds of forward, backward and update at ``batch`` samples.
        bytes: of the gradients that are averaged.
        batch: samples a rank and step.
        fixed_s, sample_s: ``compute_s`` as a line, seconds and seconds a sample; None where only one batch was seen.
        input_s: seconds in which the input pipeline makes a batch, without a network.
        overlap: share of the shorter of computing and allreduce that is hidden, 0 to 1.
        calls: allreduces into which a step's gradients are divided; each has the latency.
    """

    compute_s: float
    bytes: float
    batch: int = 1
    fixed_s: float | None = None
    sample_s: float | None = None
    input_s: float = 0.0
    overlap: float = 0.0
    calls: int = 1

    def at(self, batch: int) -> Work:
        """The same with another local batch.

        Raises:
            ValueError: how computing grows with the batch is not known.
        """
        if self.fixed_s is None or self.sample_s is None:
            raise ValueError("how computing grows with the batch is not known")
        return replace(
            self,
            batch=batch,
            compute_s=self.fixed_s + self.sample_s * batch,
            input_s=self.input_s * batch / self.batch,
        )


@dataclass(frozen=True)
class Fabric:
    """A machine's nodes and what is between them.

    Attributes:
        bandwidth: bytes a second that a node can send.
        latency_s: of a message between nodes.
        link_use: times as long as ``bandwidth`` says that a byte takes in an allreduce, 1 and more.
        ranks: of a node.
        node_latency_s, node_byte_s: of the stage within a node, as in :class:`fairlead.perf.projection.cost_model.Costs`.
        shared_input: samples a second that the shared storage gives all ranks together.
    """

    bandwidth: float
    latency_s: float
    link_use: float = 1.0
    ranks: int = 1
    node_latency_s: float = 0.0
    node_byte_s: float = 0.0
    algorithm: Algorithm = Algorithm.HALVING
    shared_input: float = math.inf

    def allreduce_s(self, nodes: int, size: float, calls: int = 1) -> float:
        """Seconds to average ``size`` bytes over all ranks, in ``calls`` parts."""
        costs = Costs(self.node_latency_s, self.node_byte_s, self.latency_s, self.link_use)
        # A node of the projection has a core for every rank.
        layout = Layout(nodes, self.ranks, self.ranks, self.bandwidth, self.algorithm)
        return calls * allreduce_s(costs, layout, size / calls)


@dataclass(frozen=True)
class Step:
    """A step and its parts, seconds.

    Attributes:
        compute_s: mean of a rank.
        straggle_s: by how much the slowest exceeds it, as far as it is waited for.
        exposed_s: of the allreduce, what nothing hides.
        input_s: by how much the input is slower than all the rest.
        allreduce_s: hidden or not.
    """

    nodes: int
    step_s: float
    efficiency: float
    compute_s: float
    straggle_s: float
    exposed_s: float
    input_s: float
    allreduce_s: float

    @property
    def dominant(self) -> str:
        """What costs most, of all that is not computing; ``computing`` where all else is below 1 %."""
        parts = {"stragglers": self.straggle_s, "allreduce": self.exposed_s, "input": self.input_s}
        name = max(parts, key=parts.__getitem__)
        return name if parts[name] > 0.01 * self.step_s else "computing"


def step(work: Work, fabric: Fabric, spread: Spread, nodes: int, delayed: bool = False) -> Step:
    """A step on ``nodes`` nodes.

    Raises:
        ValueError: a number of nodes below 1, or an overlap outside of 0 to 1.
    """
    if nodes < 1 or not 0 <= work.overlap <= 1:
        raise ValueError(
            f"{nodes} nodes, overlap {work.overlap}: the first starts at 1, the other ends there"
        )
    ranks, compute = nodes * fabric.ranks, work.compute_s
    moving = fabric.allreduce_s(nodes, work.bytes, work.calls)
    slowest = excess(spread.whole, ranks, spread.tail) * compute
    if delayed and ranks > 1:
        lasting = min(excess(spread.lasting, ranks, spread.tail) * compute, slowest)
        passing = min(excess(spread.passing, ranks, spread.tail) * compute, slowest - lasting)
        paths = _STRETCHES * (compute + lasting) + np.sqrt(_STRETCHES) * passing + moving
        # With nothing to wait for, a stretch has no end, and computing is all there is.
        straggle = max(float((paths / (_STRETCHES + 1)).max()) - compute, lasting)
        whole = max(compute + straggle, moving)
        straggle = min(straggle, slowest)
        exposed = whole - compute - straggle
    else:
        straggle = slowest
        exposed = moving - work.overlap * min(compute, moving)
        whole = compute + straggle + exposed
    fed = max(work.input_s, ranks * work.batch / fabric.shared_input)
    input_s = max(0.0, fed - whole)
    alone = max(compute, work.input_s, work.batch / fabric.shared_input)
    total = whole + input_s
    efficiency = min(1.0, alone / total) if total else 1.0  # of runs whose steps took no time
    return Step(nodes, total, efficiency, compute, straggle, max(exposed, 0.0), input_s, moving)
