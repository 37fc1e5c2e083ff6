"""Stragglers: how much longer than one rank's step is that of the slowest of many.

A synchronous step ends when its slowest rank does. Where the ranks' times are independent draws of one
distribution, that is the expected maximum of as many draws; it grows without end, but slowly. Two
distributions are known here, for the same mean and deviation: lognormal, whose maximum grows about as
``sqrt(2 ln N)``, and Gumbel, whose tail falls off more slowly, so that its maximum grows as ``ln N``. Which one it
is decides a factor of about two at 8,192 ranks; few samples do not show it.

A part of the spread stays with a rank (a slow node), the rest is new in every step. For a synchronous step
only their sum counts. Delayed gradients wait for the first part and smooth the second.

Sources: H. David and H. Nagaraja, *Order Statistics*, 3rd ed. (2003), section 4, for expected maxima; E. Gumbel,
*Statistics of Extremes* (1958): the maximum of N such variables is one more, moved by beta ln N.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from fairlead.base.errors import fail
from fairlead.perf.stats import Floats

# Midpoints of the quadrature: the expected maximum is then right to 0.2 % of the deviation.
_MIDDLES = (np.arange(256) + 0.5) / 256
_EULER = 0.5772156649015329


class Tail(enum.StrEnum):
    """The form of the distribution of a rank's step time."""

    LOGNORMAL = "lognormal"
    GUMBEL = "gumbel"


@dataclass(frozen=True)
class Spread:
    """Of the computing time of a step, relative to its mean: standard deviations.

    Attributes:
        lasting: of the ranks' own means: a rank that is slow stays slow.
        passing: of one rank from step to step.
    """

    lasting: float
    passing: float
    tail: Tail = Tail.LOGNORMAL

    def __post_init__(self) -> None:
        if not (self.lasting >= 0 and self.passing >= 0):
            raise ValueError(f"invalid spread {self}: deviations start at 0")

    @property
    def whole(self) -> float:
        """Of one rank's one step."""
        return math.hypot(self.lasting, self.passing)


def excess(deviation: float, ranks: int, tail: Tail = Tail.LOGNORMAL) -> float:
    """Expected maximum of ``ranks`` draws with mean 1 and this standard deviation, less 1.

    >>> round(excess(0.02, 8192), 3), round(excess(0.02, 8192, Tail.GUMBEL), 3)
    (0.079, 0.141)
    """
    if ranks < 2 or deviation <= 0:
        return 0.0
    if tail is Tail.GUMBEL:
        return deviation * math.sqrt(6) / math.pi * math.log(ranks)
    sigma = math.sqrt(math.log1p(deviation**2))
    return float(np.exp(sigma * _largest_normal(ranks) - sigma**2 / 2).mean() - 1)


@lru_cache(maxsize=1024)
def _largest_normal(ranks: int) -> Floats:
    """Quantiles of the largest of ``ranks`` standard normal values, shape (256,)."""
    # The logarithm of the probability to be above: written so that nothing is lost where it is 1e-9.
    above = np.log(-np.expm1(np.log(_MIDDLES) / ranks))
    logs, values = _normal_tail()
    return np.interp(above, logs, values)


@lru_cache(maxsize=1)
def _normal_tail() -> tuple[Floats, Floats]:
    """Logarithms of the probability to be above, growing, and the normal values for them; right to 1e-6."""
    values = np.linspace(10, -6, 8001)
    return np.array([math.log(math.erfc(z / math.sqrt(2)) / 2) for z in values]), values


@dataclass(frozen=True)
class SpreadEstimate:
    """What step times of ranks show of their spread, all relative to their mean.

    Attributes:
        mean: seconds.
        count: samples in all.
        between, within: mean squares of the analysis of variance, relative to ``mean**2``.
        between_free, within_free: their degrees of freedom.
        steps: samples a rank, the harmonic mean.
        heavier: of each sample, by how much a Gumbel explains it better than a lognormal, log likelihood.
    """

    mean: float
    count: int
    between: float
    within: float
    between_free: int
    within_free: int
    steps: float
    heavier: Floats

    def draw(self, random: np.random.Generator) -> tuple[float, Spread]:
        """A mean and a spread that could be the true ones.

        The variances are generalized pivots (S. Weerahandi, *Generalized confidence intervals*, JASA 88, 1993):
        a bootstrap over four ranks would understate what four ranks cannot show. The tail is that which explains a
        bootstrap sample better, so few samples give both.
        """
        passing = self.within * self.within_free / random.chisquare(self.within_free)
        lasting = 0.0
        if self.between_free:
            between = self.between * self.between_free / random.chisquare(self.between_free)
            lasting = max(0.0, (between - passing) / self.steps)
        ranks = self.count / self.steps
        error = math.sqrt(lasting / ranks + passing / self.count) * random.standard_normal()
        again = self.heavier[random.integers(0, self.count, self.count)].sum()
        tail = Tail.GUMBEL if again > 0 else Tail.LOGNORMAL
        return self.mean * (1 + error), Spread(math.sqrt(lasting), math.sqrt(passing), tail)


def estimate_spread(runs: Sequence[Floats]) -> SpreadEstimate:
    """The spread by one-way analysis of variance, ranks being the groups.

    Args:
        runs: computing seconds of each run, shape (ranks, steps) each.
    Raises:
        FairleadError: exit code 2; none has two steps.
    """
    runs = [run for run in runs if run.shape[1] > 1]
    if not runs:
        raise fail("project-runs-one-step")
    count, ranks = sum(run.size for run in runs), sum(len(run) for run in runs)
    mean = sum(run.sum() for run in runs) / count
    means = [run.mean(axis=1, keepdims=True) / mean for run in runs]
    around = [run / mean - own for run, own in zip(runs, means, strict=True)]
    squares = sum(
        run.shape[1] * ((own - own.mean()) ** 2).sum() for run, own in zip(runs, means, strict=True)
    )
    deviations = np.concatenate([part.ravel() for part in around])
    between_free, within_free = ranks - len(runs), count - ranks
    return SpreadEstimate(
        mean=float(mean),
        count=count,
        between=float(squares / between_free) if between_free else 0.0,
        within=float((deviations**2).sum() / within_free),
        between_free=between_free,
        within_free=within_free,
        steps=ranks / sum(len(run) / run.shape[1] for run in runs),
        heavier=_heavier(deviations),
    )


def _heavier(around: Floats) -> Floats:
    """Log likelihood of a Gumbel less that of a lognormal, both of the samples' own mean and deviation.

    Args:
        around: relative deviations from the mean, shape (count,).
    """
    deviation = float(around.std())
    if deviation == 0 or (around <= -1).any():
        return np.zeros_like(around)
    scale = deviation * math.sqrt(6) / math.pi
    z = (around + scale * _EULER) / scale
    gumbel = -z - np.exp(-z) - math.log(scale)
    sigma = math.sqrt(math.log1p(deviation**2))
    logs = np.log1p(around)
    normal = (
        -0.5 * ((logs + sigma**2 / 2) / sigma) ** 2
        - logs
        - math.log(sigma * math.sqrt(2 * math.pi))
    )
    difference: Floats = gumbel - normal
    return difference
