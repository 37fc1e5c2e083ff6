"""fairlead.comm.powersgd on one rank; the mean over ranks is Comm.aggregate's own."""

from __future__ import annotations

import numpy as np
import pytest

from fairlead.base.errors import FairleadError
from fairlead.comm.core import Comm
from fairlead.comm.mpi import Alone
from fairlead.comm.powersgd import PowerSGD, _orthonormal


def low_rank(random: np.random.Generator, rank: int, shape: tuple[int, int]) -> np.ndarray:
    return random.normal(size=(shape[0], rank)) @ random.normal(size=(rank, shape[1]))


@pytest.mark.parametrize("rank", [1, 2, 4])
def test_gradient_of_that_rank_is_exact_from_the_second_step(rank: int) -> None:
    random = np.random.default_rng(rank)
    compressed = PowerSGD(Comm(Alone()), rank=rank)
    for step in range(4):
        given = low_rank(random, rank, (40, 60))
        (mean,) = compressed.aggregate([given])
        # One rank, so the column space of M Q is that of M, and its projection is M.
        np.testing.assert_allclose(
            mean, given, rtol=0, atol=1e-10 * np.abs(given).max(), err_msg=str(step)
        )


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_what_is_left_out_is_made_up_for(dtype: str) -> None:
    """After any number of steps: all that was given, and the error of the last step, is all that was handed in."""
    random = np.random.default_rng(3)
    compressed = PowerSGD(Comm(Alone()), rank=2)
    handed_in, given_out = np.zeros((30, 50)), np.zeros((30, 50))
    for _ in range(25):
        gradient = random.normal(size=(30, 50)).astype(dtype)
        handed_in += gradient
        given_out += compressed.aggregate([gradient])[0]
        np.testing.assert_allclose(
            given_out + compressed._kept[0].error,
            handed_in,
            rtol=0,
            atol=1e-3 if dtype == "f4" else 1e-11,
        )


def test_error_is_at_most_that_of_the_best_projection_it_had() -> None:
    """The approximation is a projection: it never makes a gradient larger, so the error is bounded by it."""
    random = np.random.default_rng(5)
    compressed = PowerSGD(Comm(Alone()), rank=2)
    matrix = random.normal(size=(64, 64))
    (mean,) = compressed.aggregate([matrix])
    assert np.linalg.norm(mean) <= np.linalg.norm(matrix) * (1 + 1e-12)
    error = np.linalg.norm(compressed._kept[0].error)
    assert error**2 == pytest.approx(np.linalg.norm(matrix) ** 2 - np.linalg.norm(mean) ** 2)
    assert error < np.linalg.norm(matrix)


def test_small_and_flat_arrays_go_as_they_are_and_all_keep_their_order() -> None:
    random = np.random.default_rng(7)
    arrays = [
        random.normal(size=5),
        random.normal(size=(3, 3)),
        random.normal(size=(8, 4, 50)),
        np.zeros((0, 4)),
    ]
    compressed = PowerSGD(Comm(Alone()), rank=1)
    means = compressed.aggregate(arrays)
    assert [m.shape for m in means] == [a.shape for a in arrays]
    np.testing.assert_array_equal(means[0], arrays[0])
    np.testing.assert_array_equal(means[1], arrays[1])
    assert not np.array_equal(means[2], arrays[2])
    assert compressed.sent == 5 + 9 + (32 + 50) and compressed.whole == 5 + 9 + 1600


def test_other_shape_than_before_is_refused() -> None:
    compressed = PowerSGD(Comm(Alone()), rank=1)
    compressed.aggregate([np.ones((40, 40))])
    with pytest.raises(FairleadError) as caught:
        compressed.aggregate([np.ones((40, 41))])
    assert caught.value.findings[0].check == "comm-powersgd"
    with pytest.raises(FairleadError):
        PowerSGD(Comm(Alone()), rank=0)


def test_gradient_of_zeros_and_parallel_columns_give_no_nan() -> None:
    compressed = PowerSGD(Comm(Alone()), rank=2)
    for gradient in (np.zeros((20, 20)), np.ones((20, 20)), np.zeros((20, 20))):
        (mean,) = compressed.aggregate([gradient])
        np.testing.assert_allclose(mean, gradient, atol=1e-12)
    columns = _orthonormal(np.ones((6, 3)))
    assert np.isfinite(columns).all() and not columns[:, 1:].any()
