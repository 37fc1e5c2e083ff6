"""``horovod.keras.callbacks`` for Keras 2."""

from __future__ import annotations

from typing import Any

import numpy as np
import tf_keras as keras

from fairlead import comm
from fairlead.comm.dropin.schedules import Schedule
from fairlead.comm.frameworks import common

__all__ = [
    "BroadcastGlobalVariablesCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
]


class BroadcastGlobalVariablesCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Gives all ranks rank ``root_rank``'s weights and optimizer state, and proves at each epoch's end that they are equal.

    This is done before the first step, or after it where the model is not built before. At the end of an epoch what
    layers keep besides the trained variables, such as the statistics of BatchNormalization, becomes its mean.

    Args:
        local_variables: stay each rank's own.
    Raises:
        FairleadError: the ranks do not hold the same state at the end of an epoch.
    """

    def __init__(self, root_rank: int = 0, device: str = "", local_variables: Any = None):
        super().__init__()
        self._root = root_rank
        self._local = {id(variable) for variable in local_variables or ()}
        self._due = True

    def on_train_begin(self, logs: Any = None) -> None:
        self._broadcast(self.model.built)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._broadcast(True)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        ranks = comm.init()
        kept = self._shared(self.model.non_trainable_weights)
        _assign(kept, common.mean_state(ranks, _arrays(kept), _names(kept)))
        every = self._all()
        common.require_equal(ranks, _arrays(every), _names(every), f"at the end of epoch {epoch}")

    def _broadcast(self, possible: bool) -> None:
        if self._due and possible:
            every = self._all()
            _assign(every, common.broadcast(comm.init(), _arrays(every), _names(every), self._root))
            self._due = False

    def _all(self) -> list[Any]:
        optimizer, trained = self.model.optimizer, self.model.trainable_variables
        while hasattr(optimizer, "inner_optimizer"):  # LossScaleOptimizer
            optimizer = optimizer.inner_optimizer
        if hasattr(optimizer, "_create_all_weights"):
            optimizer._create_all_weights(trained)
        elif trained:
            optimizer.build(trained)
        held = optimizer.variables
        return self._shared([*self.model.weights, *(held() if callable(held) else held)])

    def _shared(self, variables: Any) -> list[Any]:
        return [variable for variable in variables if id(variable) not in self._local]


def _arrays(variables: Any) -> list[Any]:
    return [np.asarray(variable.numpy()) for variable in variables]


def _names(variables: Any) -> list[str]:
    return [variable.name.removesuffix(":0") for variable in variables]


def _assign(variables: Any, values: Any) -> None:
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)


class MetricAverageCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Makes the metrics of an epoch their means over ranks; before callbacks that read them."""

    def __init__(self, device: str = ""):
        super().__init__()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        for name in sorted(logs or ()):
            logs[name] = comm.average(float(logs[name]))


class LearningRateScheduleCallback(Schedule, keras.callbacks.Callback):  # type: ignore[misc]
    """:class:`~fairlead.comm.dropin.schedules.Schedule`."""


class LearningRateWarmupCallback(LearningRateScheduleCallback):
    """Raises the learning rate from ``initial_lr`` divided by the number of ranks to ``initial_lr``."""

    def __init__(
        self,
        initial_lr: float | None = None,
        warmup_epochs: float = 5,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        verbose: int = 0,
    ):
        def share(epoch: float) -> float:
            done = min(epoch / warmup_epochs, 1.0) if warmup_epochs else 1.0
            return (1 + (comm.size() - 1) * done) / comm.size()

        super().__init__(
            initial_lr, share, 0, warmup_epochs, False, steps_per_epoch=steps_per_epoch
        )
