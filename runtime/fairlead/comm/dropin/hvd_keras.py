"""``horovod.keras`` and ``horovod.tensorflow.keras``, for Keras 3, over :mod:`fairlead.comm.keras`."""

from __future__ import annotations

from typing import Any

import keras

from fairlead import comm
from fairlead.comm.dropin import callbacks, hvd, tensors
from fairlead.comm.dropin.hvd import *  # noqa: F403
from fairlead.comm.dropin.hvd_keras_calls import *  # noqa: F403
from fairlead.comm.dropin.hvd_keras_calls import OPTIMIZER
from fairlead.comm.dropin.parameters import takes
from fairlead.comm.dropin.teams import say_on_rank_0
from fairlead.comm.keras import DistributedOptimizer as _front

__all__ = [
    *hvd.__all__,
    "DistributedOptimizer",
    "broadcast_variables",
    "callbacks",
    "load_model",
]


@takes(OPTIMIZER)
def DistributedOptimizer(  # noqa: PLR0913, Horovod's
    optimizer: Any,
    name: str | None = None,
    compression: Any = hvd.Compression.none,
    op: Any = hvd.Average,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    process_set: Any = None,
    scale_local_gradients: bool = True,
) -> Any:
    """:func:`fairlead.comm.keras.DistributedOptimizer`: weights are equal after ``fit``.

    Args:
        name, average_aggregated_gradients, scale_local_gradients: without meaning here.
    Raises:
        FairleadError: gradients are to be accumulated, or reduced in another way, or among some ranks.
    """
    hvd.require(op == hvd.Average, f"op={op} in Keras", "op=Average")
    hvd.require(
        backward_passes_per_step == 1,
        "backward_passes_per_step in Keras",
        "the optimizer's own `gradient_accumulation_steps`",
    )
    _all_ranks(process_set)
    if compression != hvd.Compression.none:
        say_on_rank_0("Keras: gradients travel in full precision; `compression` is ignored")
    return _front(optimizer)


def _all_ranks(process_set: Any) -> None:
    every = process_set in (None, hvd.global_process_set)
    hvd.require(every, "process_set in Keras 3", "Keras 2, in the image `tensorflow:keras2`")


@takes("variables root_rank process_set inplace")
def broadcast_variables(variables: Any, root_rank: int = 0, process_set: Any = None) -> None:
    """Gives Keras variables rank ``root_rank``'s values. Collective.

    Raises:
        FairleadError: among some ranks.
    """
    _all_ranks(process_set)
    arrays = [keras.ops.convert_to_numpy(v) for v in map(tensors.value_of, variables)]
    for variable, value in zip(variables, tensors.from_root(root_rank)(arrays), strict=True):
        variable.assign(value)


@takes("filepath custom_optimizers custom_objects compression legacy_opts")
def load_model(
    filepath: Any,
    custom_optimizers: Any = None,
    custom_objects: Any = None,
    compression: Any = hvd.Compression.none,
) -> Any:
    """``keras.models.load_model``, and its optimizer averages over ranks."""
    comm.init()
    objects = {
        **{optimizer.__name__: optimizer for optimizer in custom_optimizers or ()},
        **(custom_objects or {}),
    }
    model = keras.models.load_model(filepath, custom_objects=objects)
    if model.optimizer is not None:
        DistributedOptimizer(model.optimizer, compression=compression)
    return model
