"""Statistics against what is known of them: exact tables, brute force, and coverage that is counted."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.perf.stats import (
    holm,
    outliers,
    rank_sum,
    ratio_of_medians,
    repeats_needed,
    smallest_p,
    summarize,
)

SIDE = st.lists(st.integers(0, 6).map(float), min_size=1, max_size=5)


@pytest.mark.parametrize(
    ("n", "low", "high"), [(5, 1, 5), (6, 1, 6), (8, 1, 8), (9, 2, 8), (10, 2, 9), (20, 6, 15), (50, 18, 33)]
)  # fmt: skip
def test_interval_is_that_of_the_tables(n: int, low: int, high: int) -> None:
    found = summarize([float(v) for v in range(n, 0, -1)])
    assert (found.low, found.high) == (low, high)
    assert found.median == (n + 1) / 2
    assert found.confidence >= (0.9375 if n == 5 else 0.95)


def test_interval_of_few_samples_is_none() -> None:
    found = summarize([1.0, 2.0, 3.0, 9.0])
    assert (found.low, found.high, found.confidence, found.outliers) == (None, None, 0.0, ())


def test_interval_covers_the_median_of_a_skewed_distribution() -> None:
    source = np.random.default_rng(1)
    for n in (5, 7, 20, 200, 1500):
        draws = source.lognormal(0, 1, (400, n))
        covered = sum(s.low <= 1 <= s.high for s in map(summarize, draws.tolist()))  # type: ignore[operator]
        assert covered / 400 > (0.90 if n == 5 else 0.925), n


@pytest.mark.parametrize("samples", [[], [1.0, math.nan], [math.inf]])
def test_summary_of_no_numbers_is_refused(samples: list[float]) -> None:
    with pytest.raises(ValueError, match="finite"):
        summarize(samples)


def test_outliers_are_those_beyond_the_fences_and_stay_in_the_median() -> None:
    samples = [10.0, 11.0, 10.5, 10.2, 30.0, 10.8, 1.0]
    assert outliers(samples) == (4, 6)
    assert summarize(samples).median == 10.5
    assert outliers([5.0] * 9 + [5.001]) == ()
    assert outliers([1.0, 1.0, 1.0, 900.0]) == ()


def test_ratio_interval_covers_the_true_ratio() -> None:
    source = np.random.default_rng(2)
    covered = 0
    for _ in range(150):
        found = ratio_of_medians(1.3 * source.lognormal(0, 0.2, 12), source.lognormal(0, 0.2, 9))
        assert found.low is not None and found.high is not None
        assert found.low <= found.value <= found.high
        covered += found.low <= 1.3 <= found.high
    assert covered / 150 > 0.9


def test_ratio_is_the_same_each_time_and_none_of_few() -> None:
    a, b = [1.0, 2.0, 3.0, 4.0, 5.0], [2.0, 2.5, 3.0, 3.5, 4.0]
    assert ratio_of_medians(a, b) == ratio_of_medians(a, b)
    assert ratio_of_medians(a[:4], b).low is None
    with pytest.raises(ValueError, match="positive"):
        ratio_of_medians([0.0, 1.0], [1.0])


@given(one=SIDE, other=SIDE)
def test_rank_sum_is_that_of_all_dealings(one: list[float], other: list[float]) -> None:
    every, n = one + other, len(one)
    ranks = [sum(v < x for v in every) + (sum(v == x for v in every) + 1) / 2 for x in every]
    mean = n * (len(every) + 1) / 2
    seen = abs(sum(ranks[:n]) - mean)
    sums = [abs(sum(c) - mean) for c in itertools.combinations(ranks, n)]
    expected = sum(s >= seen - 1e-9 for s in sums) / len(sums)
    assert rank_sum(one, other) == pytest.approx(expected)


def test_rank_sum_known_values_and_both_methods_agree() -> None:
    assert rank_sum([1, 2, 3, 4, 5], [6, 7, 8, 9, 10]) == pytest.approx(2 / 252)
    assert rank_sum([1.0] * 5, [1.0] * 7) == 1.0
    assert rank_sum([1.0] * 50, [1.0] * 70) == 1.0
    source = np.random.default_rng(3)
    a, b = source.normal(0, 1, 30), source.normal(0.7, 1, 30)
    exact = rank_sum(a, b)
    near = rank_sum(np.append(a, 100.0), np.append(b, -100.0))  # 62 values: the approximation
    assert 0.2 < exact / near < 5


def test_rank_sum_raises_few_false_alarms() -> None:
    source = np.random.default_rng(4)
    alarms = sum(
        rank_sum(source.lognormal(0, 1, 10), source.lognormal(0, 1, 10)) < 0.05 for _ in range(400)
    )
    assert alarms / 400 < 0.08


def test_holm_known_example_and_order() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx((0.03, 0.06, 0.06, 0.02))
    assert holm([]) == ()
    assert holm([0.9, 0.8]) == (1.0, 1.0)


def test_repeats_needed_grow_with_the_lines() -> None:
    assert smallest_p(5, 5) == pytest.approx(2 / 252)
    assert [repeats_needed(lines) for lines in (1, 6, 7, 40, 500)] == [5, 5, 6, 7, 9]
