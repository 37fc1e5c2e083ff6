"""Published scaling curves, and what this model makes of them without having seen them.

Four figures are known by their own sources. None of them comes with all that the model needs, so the rest is
assumed: each :class:`Assumed` is a value, how far it may be off, and why it was taken. It is frozen here before anything
is fitted, and it is never moved to make a figure fit.

Three constants are left free, the same for all machines: the overlap of those who overlap, how much longer than its rate a
link takes, and the deviation of a rank's step. Two figures fit them, the other two are predicted; that is
done for all six choices of the two (:func:`blind`), so that no choice can have been the lucky one. The constants are not
single values but a grid with weights, by Bayes' rule: prior even on the grid, likelihood normal, an assumption of a case
averaged over where it may lie. A prediction therefore has a band, and two figures that say little leave it wide.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from fairlead.perf.projection.cost_model import Algorithm
from fairlead.perf.projection.spread import Spread, excess
from fairlead.perf.projection.step_model import LINK_USE, Fabric, Work, step
from fairlead.perf.stats import Floats


@dataclass(frozen=True)
class Assumed:
    """A value that its source does not give.

    Attributes:
        factor: 95 % of what it could be lies between ``value / factor`` and ``value * factor``.
        why: why this value and this factor.
    """

    value: float
    factor: float
    why: str


@dataclass(frozen=True)
class Case:
    """One published efficiency.

    Attributes:
        figure: cases of one figure are fitted or predicted together.
        what: network, machine, software.
        efficiency: as it was published.
        ranks: that work side by side, each with its own share of the spread.
        nodes: links of the allreduce; for a ring through all ranks, these.
        parameters: float32; those of Inception V3, ResNet-101 and VGG-16 as the table of ``keras.applications`` has them.
        compute_s: of a rank's step.
        bandwidth: bytes a second of a link.
        latency_s: of a message.
        overlaps: whether the software averages gradients while others are still computed.
        calls: allreduces of a step.
    """

    figure: str
    what: str
    efficiency: float
    source: str
    ranks: int
    nodes: int
    parameters: int
    compute_s: Assumed
    bandwidth: Assumed
    latency_s: Assumed
    algorithm: Algorithm
    algorithm_why: str
    overlaps: bool
    overlaps_why: str
    calls: int


_HOROVOD = (
    "Horovod, docs/benchmarks.rst: 128 servers with 4 Pascal GPUs each, RoCE-capable 25 Gbit/s"
)
_TF = "TensorFlow, performance/benchmarks (May 2017), one P100, batch 64"
_RING = (
    "NCCL 2 of 2017 knew rings only: one through all 512 GPUs, whose slowest link is the network's"
)
_ROCE = Assumed(3.125e9, 1.1, "25 Gbit/s of a server; each server has one such link in the ring")
_ROCE_US = Assumed(5e-6, 2.0, "no source; RoCE of that time, with NCCL's own hand-over")
_FUSED = "Horovod starts an allreduce while gradients are still computed"


def _horovod(
    figure: str,
    network: str,
    efficiency: float,
    parameters: int,
    images_s: float,
    why: str,
    calls: int,
) -> Case:
    """One of the figures on 512 Pascal GPUs; ``images_s`` of one GPU with a batch of 64."""
    return Case(
        figure, f"{network}, 512 Pascal GPUs, Horovod", efficiency, _HOROVOD, 512, 512, parameters,
        Assumed(64 / images_s, 1.25, why), _ROCE, _ROCE_US, Algorithm.RING, _RING, True, _FUSED, calls,
    )  # fmt: skip


CASES = (
    Case(
        figure="CosmoFlow",
        what="CosmoFlow, 8,192 Cori KNL nodes, Cray PE ML Plugin, synchronous",
        efficiency=0.77,
        source="arXiv:1808.04728, abstract",
        ranks=8192,
        nodes=8192,
        parameters=7_041_443,
        compute_s=Assumed(
            0.13,
            1.25,
            "the layers make 62 Gflop a sample, forward and backward (counted); the abstract's 3.5 Pflop/s on 8,192 nodes is "
            "then 0.146 s for a whole step at local batch 1; computing alone is somewhat less",
        ),
        bandwidth=Assumed(8e9, 1.2, "sitecfg/cori.toml: about 8 GB/s"),
        latency_s=Assumed(2.2e-6, 1.8, "sitecfg/cori.toml and sitecfg/piz-daint.toml: 1.3 to 3.7 us"),
        algorithm=Algorithm.HALVING,
        algorithm_why="the plugin's algorithm is not public; this one moves the fewest bytes with few messages",
        overlaps=False,
        overlaps_why="one call takes all gradients of a step, and it was run synchronous",
        calls=1,
    ),
    _horovod("Horovod 90 %", "Inception V3", 0.90, 23_851_784, 142, f"{_TF}: 142 images/s; the Pascal GPUs are not named", 2),
    _horovod(
        "Horovod 90 %", "ResNet-101", 0.90, 44_707_176, 129,
        f"{_TF}: ResNet-50 219, ResNet-152 91.8 images/s; half way in time. Horovod's own example has 104 a GPU on 16", 3,
    ),
    _horovod("Horovod 68 %", "VGG-16", 0.68, 138_357_544, 154, f"{_TF}: 154 images/s; the Pascal GPUs are not named", 9),
    Case(
        figure="ResNet-50 on Summit",
        what="ResNet-50, 1,024 Summit nodes, 6,144 V100 GPUs",
        efficiency=0.87,
        source="J. Yin et al., Strategies to Deploy and Scale Deep Learning on the Summit Supercomputer, 2019, abstract",
        ranks=6144,
        nodes=1024,
        parameters=25_557_032,
        compute_s=Assumed(
            0.18,
            2.0,
            "the abstract gives neither batch nor precision: 64 to 256 images at 350 to 1,000 a second are 0.1 to 0.4 s",
        ),
        bandwidth=Assumed(
            25e9,
            1.2,
            "two lines of InfiniBand EDR a node; what goes on within a node is taken to cost nothing",
        ),
        latency_s=Assumed(2e-6, 2.0, "no source; InfiniBand EDR"),
        algorithm=Algorithm.TREE,
        algorithm_why="the abstract names none; a ring through 6,144 GPUs would be latency alone",
        overlaps=True,
        overlaps_why="no source in the abstract; Horovod was the usual way there",
        calls=2,
    ),
)  # fmt: skip
FIGURES = tuple(dict.fromkeys(case.figure for case in CASES))

# What a published whole percentage of single runs may be off, standard deviation.
NOISE = 0.015
# The grid: even in the overlap, even in the logarithms of the other two.
OVERLAPS = np.linspace(0.0, 1.0, 11)
LINK_USES = np.geomspace(*LINK_USE, 9)
_GRADIENT = 4  # bytes of a float32
DEVIATIONS = np.geomspace(0.005, 0.12, 25)
# Places of an assumption between its ends: the middles of equally likely parts.
_PARTS = [NormalDist().inv_cdf((i + 0.5) / 5) / 1.96 for i in range(5)]


@dataclass(frozen=True)
class Constants:
    """What a fit finds: weighted means over the grid.

    Attributes:
        overlap, link_use, deviation: as in the module's introduction.
    """

    overlap: float
    link_use: float
    deviation: float


@dataclass(frozen=True)
class Predicted:
    """One case.

    Attributes:
        fitted: whether its figure was among those that fitted the constants.
        value, low, high: the efficiency, and its 95 %.
    """

    case: Case
    fitted: bool
    value: float
    low: float
    high: float

    @property
    def error(self) -> float:
        """In points of efficiency: above 0, the model is too hopeful."""
        return 100 * (self.value - self.case.efficiency)

    @property
    def within(self) -> bool:
        """Whether the published value lies in the band, the noise of its own included."""
        return self.low - 1.96 * NOISE <= self.case.efficiency <= self.high + 1.96 * NOISE


@dataclass(frozen=True)
class Fitted:
    """One choice of figures to fit, and what became of all."""

    figures: tuple[str, ...]
    constants: Constants
    predicted: tuple[Predicted, ...]

    @property
    def blind(self) -> tuple[Predicted, ...]:
        return tuple(one for one in self.predicted if not one.fitted)


@cache
def _efficiencies(case: Case) -> Floats:
    """Of all constants and assumptions; shape (overlaps, link uses, deviations, parts ** 3).

    This is :func:`efficiency` for arrays; a test holds one against the other.
    """
    found = []
    slow = np.array([excess(deviation, case.ranks) for deviation in DEVIATIONS])
    hidden = (OVERLAPS if case.overlaps else np.zeros_like(OVERLAPS)).reshape(-1, 1, 1)
    for parts in itertools.product(_PARTS, repeat=3):
        compute, bandwidth, latency = assumed(case, parts)
        moving = np.array(
            [
                _fabric(case, bandwidth, latency, use).allreduce_s(
                    case.nodes, _GRADIENT * case.parameters, case.calls
                )
                for use in LINK_USES
            ]
        ).reshape(1, -1, 1)
        step_s = compute * (1 + slow) + moving - hidden * np.minimum(compute, moving)
        found.append(compute / step_s)
    return np.stack(found, axis=-1)


@cache
def _order(case: Case) -> npt.NDArray[np.intp]:
    return np.argsort(_efficiencies(case), axis=None)


def assumed(case: Case, parts: Sequence[float]) -> tuple[float, float, float]:
    """Computing time, bandwidth and latency at a place between their ends, -1 to 1 for 95 %."""
    compute, bandwidth, latency = (
        one.value * math.exp(math.log(one.factor) * part)
        for one, part in zip((case.compute_s, case.bandwidth, case.latency_s), parts, strict=True)
    )
    return compute, bandwidth, latency


def efficiency(case: Case, parts: Sequence[float], constants: Constants) -> float:
    """Of one case by :func:`fairlead.perf.projection.step_model.step`; ``parts`` as in :func:`assumed`."""
    compute, bandwidth, latency = assumed(case, parts)
    overlap = constants.overlap if case.overlaps else 0.0
    work = Work(compute, _GRADIENT * case.parameters, overlap=overlap, calls=case.calls)
    fabric = _fabric(case, bandwidth, latency, constants.link_use)
    return step(work, fabric, Spread(0.0, constants.deviation), case.nodes).efficiency


def _fabric(case: Case, bandwidth: float, latency_s: float, link_use: float) -> Fabric:
    return Fabric(
        bandwidth, latency_s, link_use, case.ranks // case.nodes, algorithm=case.algorithm
    )


def fit(figures: Sequence[str]) -> Fitted:
    """The constants from these figures, and all figures from the constants; of no figures, the prior."""
    log = np.zeros((len(OVERLAPS), len(LINK_USES), len(DEVIATIONS)))
    for figure in figures:
        own = [case for case in CASES if case.figure == figure]
        for case in own:
            off = (_efficiencies(case) - case.efficiency) / NOISE
            # A figure counts once, however many networks list it.
            log += np.log(np.exp(-(off**2) / 2).mean(axis=-1) + 1e-300) / len(own)
    weights = np.exp(log - log.max())
    weights /= weights.sum()
    means = [
        float((weights * axis.reshape(shape)).sum())
        for axis, shape in (
            (OVERLAPS, (-1, 1, 1)),
            (LINK_USES, (1, -1, 1)),
            (DEVIATIONS, (1, 1, -1)),
        )
    ]
    predicted = tuple(_predicted(case, weights, case.figure in figures) for case in CASES)
    return Fitted(tuple(figures), Constants(*means), predicted)


def _predicted(case: Case, weights: Floats, fitted: bool) -> Predicted:
    values, order = _efficiencies(case), _order(case)
    parts = values.shape[-1]
    heights = np.cumsum(np.repeat(weights.ravel() / parts, parts)[order])
    low, middle, high = (
        float(values.ravel()[order[min(int(np.searchsorted(heights, p)), len(order) - 1)]])
        for p in (0.025, 0.5, 0.975)
    )
    return Predicted(case, fitted, middle, low, high)


@cache
def blind() -> tuple[Fitted, ...]:
    """All choices of two figures."""
    return tuple(fit(two) for two in itertools.combinations(FIGURES, 2))


def guesses() -> list[float]:
    """Errors, in points, of who predicts the mean of the two figures that were fitted: what a model must beat."""
    found = []
    for one in blind():
        known = [
            np.mean([c.efficiency for c in CASES if c.figure == figure]) for figure in one.figures
        ]
        found += [100 * (float(np.mean(known)) - p.case.efficiency) for p in one.blind]
    return found
