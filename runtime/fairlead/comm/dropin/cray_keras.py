"""``dl_comm.keras``: the Keras wrapper of the Cray plugin, over :mod:`fairlead.comm.keras`."""

from __future__ import annotations

import math
from typing import Any

import keras

from fairlead import comm
from fairlead.comm import finalize, local_rank, rank, size
from fairlead.comm.dropin.callbacks import (
    LearningRateScheduleCallback,
    LearningRateWarmupCallback,
    MetricAverageCallback,
)
from fairlead.comm.dropin.cray import check_buffers_match
from fairlead.comm.dropin.teams import say_on_rank_0
from fairlead.comm.keras import Broadcast
from fairlead.comm.keras import DistributedOptimizer as _front

__all__ = [
    "BroadcastGlobalVariablesCallback",
    "DistributedOptimizer",
    "InitPluginCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
    "check_buffers_match",
    "finalize",
    "init",
    "local_rank",
    "rank",
    "size",
]


def init(*args: Any, **named: Any) -> None:
    """Starts MPI. Threads, teams and sizes are ignored: Keras averages synchronously."""
    comm.init()


def DistributedOptimizer(optimizer: Any, name: str | None = None, **more: Any) -> Any:
    """:func:`fairlead.comm.keras.DistributedOptimizer`."""
    return _front(optimizer)


class BroadcastGlobalVariablesCallback(Broadcast):
    """:class:`fairlead.comm.keras.Broadcast`.

    Args:
        validate: whether the ranks are compared at the end of each epoch.
    """

    def __init__(self, head_rank: int = 0, validate: bool = True):
        super().__init__(root=head_rank, check=bool(validate))


class InitPluginCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Says on rank 0 where ``buffer_size`` is not that of the model; it has nothing to start."""

    def __init__(self, max_steps: int = 0, buffer_size: int = 0):
        super().__init__()
        comm.init()
        self._size = buffer_size

    def on_train_begin(self, logs: Any = None) -> None:
        elements = sum(math.prod(weight.shape) for weight in self.model.trainable_weights)
        if self._size and self._size != elements:
            say_on_rank_0(
                f"InitPluginCallback got a buffer_size of {self._size}, but the trainable weights have"
                f" {elements} elements; all of them are averaged"
            )
