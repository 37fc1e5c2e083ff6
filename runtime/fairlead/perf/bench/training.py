"""One way to train one network, whatever the library: what the steps of every peer come to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

# So low that nothing is learnt, and a delay does no harm: what is measured is time.
RATE, MOMENTUM = 1e-8, 0.9


def _nothing() -> None: ...


@dataclass(frozen=True)
class Training:
    """A network and its step.

    Attributes:
        step: one whole step; returns this rank's loss.
        weights: the trainable tensors as arrays, float32, in the order of :mod:`fairlead.perf.bench.nets`.
        momenta: the optimizer's, alike. After the first step they are that step's gradients.
        settle: lands what a delayed step has left on its way.
        updates: how many updates the weights have had, where somebody counts.
    """

    step: Callable[[], float]
    weights: Callable[[], Sequence[Any]]
    momenta: Callable[[], Sequence[Any]]
    settle: Callable[[], None] = _nothing
    updates: Callable[[], int] | None = None
