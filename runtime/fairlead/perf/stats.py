"""Statistics of repeated measurements, without any assumption about how they are distributed.

Times on a shared machine have long tails: a mean says little, a normal distribution fits badly. So: medians; exact
intervals by order statistics; the rank-sum test with its exact null distribution; Holm's correction where many
lines are compared. Fewer than :data:`FEWEST` values say nothing that could be relied on: no 95 % interval of a
median exists below six, and five reach 93.75 %, which is then said.

Everything is deterministic: what is drawn at random is drawn from a fixed seed.

Sources: H. A. David, H. N. Nagaraja, *Order Statistics* (2003), §7.1; J. W. Tukey, *Exploratory Data Analysis*
(1977), for the fences; B. Efron, R. Tibshirani, *An Introduction to the Bootstrap* (1993), ch. 13; H. B. Mann, D. R. Whitney,
Ann. Math. Stat. 18 (1947); S. Holm, *A Simple Sequentially Rejective Multiple Test Procedure*, Scand. J. Stat. 6
(1979); T. Hoefler, R. Belli, *Scientific Benchmarking of Parallel Computing Systems*, SC15, for what to report.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

FEWEST = 5  # values; fewer say nothing
CONFIDENCE = 0.95
ALPHA = 1 - CONFIDENCE
_RESAMPLES = 2000
_SEED = 20180416
_EXACT = 60  # values of both sides, up to which the null distribution is counted out
_FENCE = 1.5  # interquartile ranges; Tukey's


@dataclass(frozen=True)
class Summary:
    """Of one measurement's samples.

    Attributes:
        low, high: the interval of the median; None with fewer than :data:`FEWEST` samples.
        confidence: what the interval reaches, at least 0.95 from six samples on; 0 where there is none.
        outliers: indices of samples beyond Tukey's fences; they stay in all that is computed.
    """

    n: int
    median: float
    low: float | None
    high: float | None
    confidence: float
    outliers: tuple[int, ...]


@dataclass(frozen=True)
class Ratio:
    """Of two medians, and its 95 % interval; None where a side has fewer than :data:`FEWEST` samples."""

    value: float
    low: float | None
    high: float | None


def summarize(samples: Sequence[float]) -> Summary:
    """
    Raises:
        ValueError: there are none, or one is not finite.
    """
    values = _sorted(samples)
    low, high, reached = _interval(values)
    return Summary(len(values), float(np.median(values)), low, high, reached, outliers(samples))


def interval(samples: Sequence[float]) -> tuple[float, float, float]:
    """The median, and the ends of its interval, of :data:`FEWEST` samples or more."""
    summary = summarize(samples)
    assert summary.low is not None and summary.high is not None
    return summary.median, summary.low, summary.high


def _sorted(samples: Sequence[float]) -> Floats:
    values = np.sort(np.asarray(samples, np.float64))
    if values.size == 0 or not np.isfinite(values).all():
        raise ValueError("samples must be finite numbers, at least one")
    return values


def _interval(values: Floats) -> tuple[float | None, float | None, float]:
    """By order statistics: the median lies between the k-th smallest and the k-th largest value with a
    probability that depends on nothing but how many there are."""
    n = len(values)
    if n < FEWEST:
        return None, None, 0.0
    if n >= 1000:  # 0.5**n would vanish; the normal approximation is exact enough here
        k, tail = math.floor(n / 2 - 1.959964 * math.sqrt(n) / 2), ALPHA / 2
    else:
        # P(k-th smallest <= median <= k-th largest) = 1 - 2 P(Binomial(n, 1/2) < k); the largest k that reaches it,
        # and of five values, smallest and largest.
        k, tail, term = 1, 0.5**n, n * 0.5**n
        while 2 * (tail + term) <= ALPHA:
            k, tail, term = k + 1, tail + term, term * (n - k) / (k + 1)
    return float(values[k - 1]), float(values[n - k]), 1 - 2 * tail


def outliers(samples: Sequence[float]) -> tuple[int, ...]:
    """Indices of samples beyond 1.5 interquartile ranges outside of the quartiles; none of fewer than five."""
    values = np.asarray(samples, np.float64)
    if len(values) < FEWEST:
        return ()
    first, third = np.quantile(values, (0.25, 0.75))
    # Where most values are equal, the last digit of a clock would be an outlier.
    fence = max(_FENCE * (third - first), 1e-3 * abs(float(np.median(values))))
    return tuple(map(int, np.flatnonzero((values < first - fence) | (values > third + fence))))


def ratio_of_medians(above: Sequence[float], below: Sequence[float]) -> Ratio:
    """``median(above) / median(below)`` with its percentile interval from resampling both sides.

    Raises:
        ValueError: a side is empty, or a value is not finite and positive.
    """
    a, b = _sorted(above), _sorted(below)
    if a[0] <= 0 or b[0] <= 0:
        raise ValueError("a ratio is of positive samples")
    value = float(np.median(a) / np.median(b))
    if min(len(a), len(b)) < FEWEST:
        return Ratio(value, None, None)
    source = np.random.default_rng(_SEED)
    drawn = _medians(a, source) / _medians(b, source)
    low, high = np.quantile(drawn, (ALPHA / 2, 1 - ALPHA / 2))
    # With few values the resampled medians can miss what was seen.
    return Ratio(value, min(float(low), value), max(float(high), value))


def _medians(values: Floats, source: np.random.Generator) -> Floats:
    """Medians of as many of the sorted values each, drawn with replacement; shape (resamples,)."""
    n = len(values)
    # The values are sorted, so their places can be sorted for them: small whole numbers, which is quick.
    places = source.integers(n, size=(_RESAMPLES, n), dtype=np.uint16 if n < 1 << 16 else np.uint32)
    places.partition(((n - 1) // 2, n // 2), axis=1)
    middle: Floats = (values[places[:, (n - 1) // 2]] + values[places[:, n // 2]]) / 2
    return middle


def rank_sum(left: Sequence[float], other: Sequence[float]) -> float:
    """p of the two-sided Mann-Whitney test that both are from one distribution; ties count half.

    Up to 60 values the null distribution is counted out over all ways in which these very values, ties
    and all, could have been dealt to the two sides; beyond, by its normal approximation.

    Raises:
        ValueError: a side is empty, or a value is not finite.
    """
    a, b = _sorted(left), _sorted(other)
    # Ranks from 1; equal values share the mean of theirs.
    _, inverse, counts = np.unique(np.concatenate([a, b]), return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[inverse]
    doubled = np.rint(2 * ranks).astype(np.int64)  # midranks are halves: twice them are whole
    observed = int(doubled[: len(a)].sum())
    if len(ranks) <= _EXACT:
        return _exact_p(doubled, len(a), observed)
    return _normal_p(ranks, len(a), observed / 2)


def _exact_p(doubled: npt.NDArray[np.int64], size: int, observed: int) -> float:
    """How many of all choices of ``size`` ranks have a sum at least as far from its mean."""
    total = int(doubled.sum())
    # ways[k, s]: of k ranks with the sum s. float64 holds the counts to 16 digits, which is enough for a p.
    ways = np.zeros((size + 1, total + 1))
    ways[0, 0] = 1
    for rank in map(int, doubled):
        ways[1:, rank:] += ways[:-1, : total + 1 - rank].copy()
    mean = size * total / len(doubled)
    far = np.abs(np.arange(total + 1) - mean) >= abs(observed - mean) - 1e-9
    return min(1.0, float(ways[size, far].sum() / ways[size].sum()))


def _normal_p(ranks: Floats, size: int, observed: float) -> float:
    n, rest = len(ranks), len(ranks) - size
    variance = size * rest / (n * (n - 1)) * float(((ranks - (n + 1) / 2) ** 2).sum())
    if variance == 0:
        return 1.0
    # 0.5: the sum moves in steps of one
    away = max(abs(observed - size * (n + 1) / 2) - 0.5, 0.0) / math.sqrt(variance)
    return math.erfc(away / math.sqrt(2))


def smallest_p(left: int, other: int) -> float:
    """The smallest p that :func:`rank_sum` can give for so many values: all of one side beyond all of the other."""
    return min(1.0, 2 / math.comb(left + other, left))


def repeats_needed(lines: int) -> int:
    """How many repeats a side must have so that a difference can be significant among so many lines."""
    n = FEWEST
    while smallest_p(n, n) * max(lines, 1) > ALPHA:
        n += 1
    return n


def holm(p: Sequence[float]) -> tuple[float, ...]:
    """p of each of several tests, raised so that the chance of *any* false alarm stays below alpha."""
    adjusted, worst = [1.0] * len(p), 0.0
    for place, index in enumerate(sorted(range(len(p)), key=lambda i: p[i])):
        worst = max(worst, min(1.0, (len(p) - place) * p[index]))
        adjusted[index] = worst
    return tuple(adjusted)
