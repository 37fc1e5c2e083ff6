"""``horovod.tensorflow.SyncBatchNormalization``, a layer of Keras 2 or 3."""

from __future__ import annotations

from typing import Any

import tensorflow

from fairlead.comm.dropin import hvd
from fairlead.comm.dropin.which_keras import imported, is_legacy

__all__ = ["SyncBatchNormalization"]

keras: Any = imported()


class SyncBatchNormalization(keras.layers.BatchNormalization):  # type: ignore[misc]
    """Batch normalization by the mean and variance of all ranks' batches, which are of one size."""

    def __init__(self, fused: Any = False, **more: Any):
        """
        Raises:
            ValueError: it is to be fused.
        """
        if fused is not False:
            raise ValueError("SyncBatchNormalization cannot be fused")
        if is_legacy():
            more["fused"] = False
        super().__init__(**{"name": "sync_batch_normalization", **more})

    def _moments(self, inputs: Any, *args: Any, **named: Any) -> tuple[Any, Any]:
        mean, variance = super()._moments(inputs, *args, **named)
        if hvd.size() == 1:
            return mean, variance
        # The variance of all is the mean of the ranks' ones, and the variance of their means.
        mean_of_all = _mean(mean)
        return mean_of_all, _mean(variance + tensorflow.square(mean - mean_of_all))


def _mean(tensor: Any) -> Any:
    # By the rule of a sum, whose gradient is the sum of all ranks' gradients.
    return hvd.allreduce(tensorflow.convert_to_tensor(tensor), op=hvd.Sum) / hvd.size()
