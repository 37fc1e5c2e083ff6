"""What an allreduce costs on a machine that is not at hand: a model of few numbers, fitted to runs.

The allreduce of ``n`` bytes is a latency and a time a byte in each of two stages. Within a node every rank
copies, adds and copies ``n`` bytes, at once with the others as far as there are cores. Between nodes it
takes ``ceil(log2 N)`` messages there and back, and ``2 (N-1)/N n`` bytes through each node's link, the least that an
allreduce can move; other algorithms are in :class:`Algorithm`.

Sources: R. Hockney, *The communication challenge for MPP*, Parallel Computing 20 (1994), for latency and
bandwidth; A. Alexandrov et al., *LogGP*, SPAA 1995, for long messages; R. Thakur, R. Rabenseifner and W.
Gropp, *Optimization of Collective Communication Operations in MPICH*, IJHPCA 19 (2005), for the allreduce.

It knows nothing of contention between nodes, of stragglers, or of a network's topology: on many nodes it is
a bound from below. :mod:`fairlead.perf.projection` adds stragglers and says how sure it is.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fairlead.perf.stats import Floats

_ROUNDS = 50


class Algorithm(enum.StrEnum):
    """How the nodes add ``n`` bytes: messages one after the other, and bytes through each node's link.

    Sources: Thakur et al. 2005 for ``halving`` and ``doubling``; P. Patarasuk and X. Yuan, *Bandwidth optimal
    all-reduce algorithms for clusters of workstations*, JPDC 69 (2009), for ``ring``; P. Sanders, J. Speck and
    J. Träff, *Two-tree algorithms for full bandwidth broadcast, reduction and scan*, Parallel Computing 35
    (2009), for ``tree``.
    """

    # 2 ceil(log2 N) messages, 2 (N-1)/N n bytes: recursive halving, then doubling
    HALVING = "halving"
    RING = "ring"  # 2 (N-1) messages, 2 (N-1)/N n bytes
    DOUBLING = "doubling"  # ceil(log2 N) messages, ceil(log2 N) n bytes
    TREE = "tree"  # 2 ceil(log2 N) messages, 2 n bytes: two trees, in a pipeline

    def messages(self, nodes: int) -> int:
        """One after the other."""
        if nodes < 2:
            return 0
        doublings = math.ceil(math.log2(nodes))
        if self is Algorithm.RING:
            return 2 * (nodes - 1)
        return doublings if self is Algorithm.DOUBLING else 2 * doublings

    def moved(self, nodes: int) -> float:
        """Through each node's link, for each byte that is reduced."""
        if nodes < 2:
            return 0.0
        if self is Algorithm.DOUBLING:
            return float(math.ceil(math.log2(nodes)))
        return 2.0 if self is Algorithm.TREE else 2 * (nodes - 1) / nodes


@dataclass(frozen=True)
class Layout:
    """Where ranks are.

    Attributes:
        nodes, ranks, cores: ranks and cores are those of one node.
        link: bytes a second that a node can send; not looked at for one node.
        algorithm: between nodes.
    """

    nodes: int = 1
    ranks: int = 1
    cores: int = 1
    link: float = math.inf
    algorithm: Algorithm = Algorithm.HALVING

    def __post_init__(self) -> None:
        if min(self.nodes, self.ranks, self.cores) < 1 or not self.link > 0:
            raise ValueError(f"invalid layout {self}: counts start at 1, a link's rate is above 0")

    @property
    def crowd(self) -> float:
        """How many ranks share a core; 1 where each has one."""
        return max(1.0, self.ranks / self.cores)


class Costs(NamedTuple):
    """What the fit finds, in the order of :func:`features`.

    Attributes:
        node_latency: seconds until the ranks of a node have met, for each doubling of the ranks.
        node_byte: seconds a byte that a rank copies and adds.
        link_latency: seconds a message between nodes.
        link_use: times as long as the link's rate says that a byte takes on it.
    """

    node_latency: float
    node_byte: float
    link_latency: float
    link_use: float


@dataclass(frozen=True)
class Allreduce:
    """One that was measured: ``size`` in bytes, ``seconds`` the median."""

    layout: Layout
    size: int
    seconds: float


def features(layout: Layout, size: float) -> tuple[float, float, float, float]:
    """What each of :class:`Costs` is multiplied by for an allreduce of ``size`` bytes."""
    several = layout.ranks > 1
    doublings = math.ceil(math.log2(layout.ranks)) if several else 0
    return (
        layout.crowd * doublings,
        layout.crowd * size * several,
        float(layout.algorithm.messages(layout.nodes)),
        layout.algorithm.moved(layout.nodes) * size / layout.link,
    )


def allreduce_s(costs: Costs, layout: Layout, size: float) -> float:
    """Seconds of an allreduce of ``size`` bytes."""
    return sum(f * cost for f, cost in zip(features(layout, size), costs, strict=True))


def fit(runs: Sequence[Allreduce]) -> Costs:
    """Costs by least squares of logarithms, so that half and twice count alike; none is below zero.

    Raises:
        ValueError: nothing was measured.
    """
    if not runs:
        raise ValueError("there are no runs to fit costs to")
    rows = np.array([features(run.layout, run.size) for run in runs])
    measured = np.array([run.seconds for run in runs])
    weights = 1 / measured
    solution = np.full(rows.shape[1], math.inf)
    for _ in range(_ROUNDS):
        before, solution = solution, _nonnegative(rows * weights[:, None], measured * weights)
        if np.allclose(solution, before, rtol=1e-12, atol=0):
            break
        ratio = measured / np.maximum(rows @ solution, 1e-3 * measured)
        # What makes the difference weighted the difference of the logarithms.
        near = np.abs(ratio - 1) < 1e-6
        other = np.where(near, 1.0, ratio * np.log(ratio) / np.where(near, 1.0, ratio - 1))
        weights = other / measured
    return Costs(*map(float, solution))


def _nonnegative(rows: Floats, right: Floats) -> Floats:
    """Least squares; whatever would be below zero is left out, the worst first."""
    # What no run shows, such as links on a single node, stays 0.
    active = [i for i in range(rows.shape[1]) if rows[:, i].any()]
    solution = np.zeros(rows.shape[1])
    while active:
        scale = rows[:, active].max(axis=0)
        part = np.linalg.lstsq(rows[:, active] / scale, right, rcond=None)[0]
        if (part >= 0).all():
            solution[active] = part / scale
            break
        active.pop(int(np.argmin(part)))
    return solution


def fit_overlap(compute: Sequence[float], moving: Sequence[float], step: Sequence[float]) -> float:
    """How much of the shorter is hidden, by least squares of relative errors, within 0 and 1.

    Args:
        compute, moving, step: seconds of runs: computing alone, the allreduce alone, both in a step.
    """
    c, m, s = (np.asarray(values, np.float64) for values in (compute, moving, step))
    shorter = np.minimum(c, m) / s
    return float(np.clip(np.sum(shorter * (c + m - s) / s) / np.sum(shorter**2), 0.0, 1.0))
