"""Learning rates that callbacks of Horovod set, for any Keras."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Schedule:
    """Multiplies ``initial_lr`` in the epochs from ``start_epoch`` to before ``end_epoch``; before Keras's ``Callback``.

    Args:
        initial_lr: the optimizer's own when training begins, without it.
        multiplier: a number, or a function of the epoch; with ``staircase=False`` of its fraction too.
        momentum_correction: without meaning here.
    """

    model: Any
    params: Any

    def __init__(
        self,
        initial_lr: float | None,
        multiplier: float | Callable[[float], float] = 1.0,
        start_epoch: int = 0,
        end_epoch: float | None = None,
        staircase: bool = True,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
    ):
        super().__init__()
        self._rate, self._multiplier = initial_lr, multiplier
        self._start, self._end = start_epoch, end_epoch
        self._staircase, self._steps = staircase, steps_per_epoch
        self._epoch = 0

    def on_train_begin(self, logs: Any = None) -> None:
        if self._rate is None:
            self._rate = float(self.model.optimizer.learning_rate)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._epoch = epoch
        self._set(epoch)

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        steps = self._steps or self.params.get("steps")
        if not self._staircase and steps:
            self._set(self._epoch + batch / steps)

    def _set(self, epoch: float) -> None:
        if self._start <= self._epoch and (self._end is None or self._epoch < self._end):
            factor = self._multiplier(epoch) if callable(self._multiplier) else self._multiplier
            self.model.optimizer.learning_rate = (self._rate or 0.0) * factor
