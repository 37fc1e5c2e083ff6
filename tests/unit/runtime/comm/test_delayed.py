"""fairlead.comm.delayed on one rank: every mean once, the bounds, the way back. Two: tests/system/test_comm.py."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.base.errors import FairleadError
from fairlead.comm.core import Comm
from fairlead.comm.delayed import Delayed, Schedule, largest_stable
from fairlead.comm.mpi import Alone


def delayed(schedule: Schedule, **more: object) -> tuple[Delayed, list[str]]:
    said: list[str] = []
    more.setdefault("momentum", 0.0)
    return Delayed(Comm(Alone()), schedule, say=said.append, **more), said  # type: ignore[arg-type]


@given(
    steps=st.integers(1, 30),
    synchronous=st.integers(-40, 40).filter(bool),
    dtype=st.sampled_from(["f4", "f8"]),
)
def test_every_mean_is_given_once_and_in_order(steps: int, synchronous: int, dtype: str) -> None:
    late, _ = delayed(Schedule(steps, synchronous))
    given_out = []
    for step in range(steps):
        for means in late.step([np.full(3, step, dtype), np.full((2, 2), -step, dtype)]):
            given_out.append(float(means[0][0]))
            assert means[1].shape == (2, 2) and means[1][0, 0] == -given_out[-1]
    given_out += [float(means[0][0]) for means in late.flush()]
    assert given_out == [float(s) for s in range(steps)]


@pytest.mark.parametrize(
    ("synchronous", "counts"),
    [
        (6, [1] * 6),
        (9, [1] * 6),
        (1, [1, 0, 1, 1, 1, 1]),
        (3, [1, 1, 1, 0, 1, 1]),
        (-2, [0, 1, 1, 1, 2, 1]),
    ],
)
def test_which_steps_are_delayed(synchronous: int, counts: list[int]) -> None:
    late, _ = delayed(Schedule(6, synchronous))
    assert [len(late.step([np.ones(1)])) for _ in range(6)] == counts
    assert len(late.flush()) == 6 - sum(counts)
    assert late.flush() == ()


def test_gradients_may_change_as_soon_as_step_returns() -> None:
    late, _ = delayed(Schedule(10, 1))
    mine = np.zeros(4)
    seen = []
    for step in range(5):
        mine[:] = step
        seen += [means[0].copy() for means in late.step([mine])]
        mine[:] = -1
    seen += [means[0] for means in late.flush()]
    assert [s[0] for s in seen] == [0, 1, 2, 3, 4]


def roots(momentum: float, delay: int, rate: float) -> float:
    """The largest root of the recurrence, by NumPy."""
    polynomial = np.polymul([1, -1], [1, -momentum])
    polynomial = np.polymul(polynomial, [1] + [0] * (delay - 1)) if delay else polynomial
    if delay == 0:  # z (z - 1) (z - mu) / z + a z
        polynomial = np.polyadd(polynomial, [rate, 0])
    else:
        polynomial[-1] += rate
    return float(max(abs(np.roots(polynomial))))


@pytest.mark.parametrize("delay", [0, 1, 2])
@pytest.mark.parametrize("momentum", [0.0, 0.3, 0.5, 0.9, 0.95])
def test_bound_is_where_the_recurrence_leaves_the_unit_circle(momentum: float, delay: int) -> None:
    bound = largest_stable(momentum, delay)
    assert roots(momentum, delay, 0.999 * bound) < 1 < roots(momentum, delay, 1.001 * bound)


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
@pytest.mark.parametrize(("factor", "converges"), [(0.95, True), (1.05, False)])
def test_quadratic_converges_just_below_the_bound_and_not_above(
    momentum: float, factor: float, converges: bool
) -> None:
    late, _ = delayed(Schedule(4000, 1), momentum=momentum, tested=True)
    rate = factor * largest_stable(momentum, 1)
    w, v = np.ones(1), np.zeros(1)
    for _ in range(4000):
        for (gradient,) in late.step([w.copy()]):
            v = momentum * v + gradient
            w = w - rate * v
        if abs(w[0]) > 1e6:
            break
    assert bool(abs(w[0]) < 1e-3) is converges


def test_scale_and_what_is_said_at_the_beginning() -> None:
    late, said = delayed(Schedule(10, 2), momentum=0.9)
    late.step([np.ones(1)], 1.0)
    late.step([np.ones(1)], 1.0)
    assert late.scale == 1 and said == []
    late.step([np.ones(1)], 1.0)
    assert late.scale == pytest.approx(1 / 38)
    assert (
        "step 2" in said[0]
        and "0.0263 of the synchronous one" in said[0]
        and "Delayed.scale" in said[0]
    )


def test_divergence_ends_the_delay_for_good_and_is_said() -> None:
    late, said = delayed(Schedule(100, 1), momentum=0.9)
    losses = [1.0, 0.9, 0.8, 2.0, 2.5, 2.5, 1.0, 1.0]
    counts = [len(late.step([np.ones(1)], loss)) for loss in losses]
    # 2.5 came in step 4, its mean in step 5: which gives that one and its own, synchronously
    assert counts == [1, 0, 1, 1, 1, 2, 1, 1]
    assert late.diverged_at == 5 and late.scale == 1
    assert "back to synchronous gradients" in said[-1] and "2.5" in said[-1]


def test_no_loss_is_no_divergence() -> None:
    late, said = delayed(Schedule(100, 1))
    for _ in range(5):
        late.step([np.ones(1)])
    assert late.diverged_at is None and len(said) == 1 and math.isinf(late._least)


@pytest.mark.parametrize("arguments", [(0, 1), (5, 0)])
def test_schedule_that_says_nothing_is_refused(arguments: tuple[int, int]) -> None:
    with pytest.raises(FairleadError) as caught:
        Schedule(*arguments)
    assert caught.value.findings[0].check == "comm-schedule"


def test_fractions() -> None:
    assert Schedule.fractions(200, warmup=0.1) == Schedule(200, 20)
    assert Schedule.fractions(200) == Schedule(200, 1)
    assert Schedule.fractions(200, cooldown=0.25) == Schedule(200, -50)
    with pytest.raises(FairleadError):
        Schedule.fractions(200, warmup=0.1, cooldown=0.1)


def test_too_much_momentum_is_refused_unless_tested() -> None:
    with pytest.raises(FairleadError) as caught:
        delayed(Schedule(10, 1), momentum=0.99)
    assert "0.00251 of the synchronous one" in caught.value.findings[0].why
    delayed(Schedule(10, 1), momentum=0.99, tested=True)
