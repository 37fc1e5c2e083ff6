"""fairlead.comm.stale with one worker; several: tests/system/test_parallel.py."""

from __future__ import annotations

import numpy as np
import pytest

from fairlead.base.errors import FairleadError
from fairlead.comm.core import Comm
from fairlead.comm.mpi import Alone
from fairlead.comm.stale import StaleSGD


@pytest.mark.parametrize("bound", [0, 3, None])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_one_worker_makes_the_steps_of_sgd(bound: int | None, momentum: float) -> None:
    random = np.random.default_rng(0)
    weights = [random.normal(size=(3, 2)), random.normal(size=4)]
    velocity = [np.zeros_like(w) for w in weights]
    links = Comm(Alone()).point_to_point()
    sgd = StaleSGD(links, weights, rate=0.1, momentum=momentum, bound=bound)
    for _ in range(5):
        gradients = [2 * w for w in sgd.weights]
        sgd.step(gradients)
        velocity = [momentum * v + g for v, g in zip(velocity, gradients, strict=True)]
        weights = [w - 0.1 * v for w, v in zip(weights, velocity, strict=True)]
    for got, want in zip(sgd.finish(), weights, strict=True):
        np.testing.assert_array_equal(got, want)
    assert sgd.steps == sgd.total == 5 and not sgd.staleness


def test_negative_bound_and_other_gradients_than_weights_are_refused() -> None:
    links = Comm(Alone()).point_to_point()
    with pytest.raises(FairleadError, match="-1 is not a bound"):
        StaleSGD(links, [np.zeros(3)], rate=0.1, bound=-1)
    with pytest.raises(FairleadError, match="gradients of 2 elements for weights of 3"):
        StaleSGD(links, [np.zeros(3)], rate=0.1).step([np.zeros(2)])
