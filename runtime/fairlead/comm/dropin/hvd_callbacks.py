"""``horovod.keras.callbacks``."""

from __future__ import annotations

from fairlead.comm.dropin.absent import getter
from fairlead.comm.dropin.callbacks import (
    BroadcastGlobalVariablesCallback,
    LearningRateScheduleCallback,
    LearningRateWarmupCallback,
    MetricAverageCallback,
)

__all__ = [
    "BroadcastGlobalVariablesCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
]

__getattr__ = getter("horovod")
