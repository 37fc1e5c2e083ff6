"""``horovod.keras.callbacks``, of which ``dl_comm.keras`` has some, over :mod:`fairlead.comm.keras`."""

from __future__ import annotations

from typing import Any

import keras

from fairlead import comm
from fairlead.comm.dropin.absent import not_offered
from fairlead.comm.dropin.schedules import Schedule
from fairlead.comm.keras import AverageMetrics, Broadcast, Warmup

__all__ = [
    "BroadcastGlobalVariablesCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
]


class BroadcastGlobalVariablesCallback(Broadcast):
    """:class:`fairlead.comm.keras.Broadcast`: weights and optimizer state of rank ``root_rank``.

    Raises:
        FairleadError: ``local_variables`` are given.
    """

    def __init__(self, root_rank: int = 0, device: str = "", local_variables: Any = None):
        if local_variables:
            raise not_offered(
                "local_variables in Keras 3", "Keras 2, in the image `tensorflow:keras2`"
            )
        super().__init__(root=root_rank)


class MetricAverageCallback(AverageMetrics):
    """:class:`fairlead.comm.keras.AverageMetrics`."""

    def __init__(self, device: str = ""):
        super().__init__()


class LearningRateWarmupCallback(Warmup):
    """:class:`fairlead.comm.keras.Warmup`, which is given the rate to end with.

    Args:
        initial_lr: the rate after the warm-up, that is one rank's times the number of ranks; without it
            the optimizer's own.
    """

    def __init__(
        self,
        initial_lr: float | None = None,
        warmup_epochs: float = 5,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        verbose: int = 0,
    ):
        steps = None if steps_per_epoch is None else round(warmup_epochs * steps_per_epoch)
        super().__init__((initial_lr or 0.0) / comm.size(), warmup_epochs, steps)
        self._given = initial_lr is not None

    def on_train_begin(self, logs: Any = None) -> None:
        if not self._given:
            self._given = True
            self.initial_lr = float(self.model.optimizer.learning_rate) / comm.size()


class LearningRateScheduleCallback(Schedule, keras.callbacks.Callback):  # type: ignore[misc]
    """:class:`~fairlead.comm.dropin.schedules.Schedule`."""
