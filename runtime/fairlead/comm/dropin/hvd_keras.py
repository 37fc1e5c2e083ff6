"""``horovod.keras`` and ``horovod.tensorflow.keras``, for Keras 3, over :mod:`fairlead.comm.keras`."""

from __future__ import annotations

from typing import Any, NamedTuple

import keras

from fairlead import comm
from fairlead.comm.dropin import callbacks, hvd, tensors
from fairlead.comm.dropin.hvd import *  # noqa: F403
from fairlead.comm.dropin.teams import say_on_rank_0
from fairlead.comm.keras import DistributedOptimizer as _front

__all__ = [
    *hvd.__all__,
    "DistributedOptimizer",
    "broadcast_variables",
    "callbacks",
    "load_model",
]


class _Options(NamedTuple):
    """Horovod's parameters, in its order: old scripts pass some by place."""

    name: str | None = None
    device_dense: str = ""
    device_sparse: str = ""
    compression: Any = hvd.Compression.none
    sparse_as_dense: bool = False
    gradient_predivide_factor: float = 1.0
    op: Any = hvd.Average
    backward_passes_per_step: int = 1


def DistributedOptimizer(optimizer: Any, *args: Any, **named: Any) -> Any:
    """:func:`fairlead.comm.keras.DistributedOptimizer`: weights are equal after ``fit``.

    Raises:
        FairleadError: gradients are to be accumulated, or reduced in another way.
    """
    more = {name: named.pop(name) for name in {*named} - {*_Options._fields}}
    given = _Options(*args, **named)
    hvd.require(given.op == hvd.Average, f"op={given.op} in Keras", "op=Average")
    hvd.require(
        given.backward_passes_per_step == 1,
        "backward_passes_per_step in Keras",
        "the optimizer's own `gradient_accumulation_steps`",
    )
    hvd.no_sets(more)
    if given.compression != hvd.Compression.none:
        say_on_rank_0("Keras: gradients travel in full precision; `compression` is ignored")
    return _front(optimizer)


def broadcast_variables(variables: Any, root_rank: int = 0, **more: Any) -> None:
    """Gives Keras variables rank ``root_rank``'s values. Collective."""
    arrays = [keras.ops.convert_to_numpy(v) for v in map(tensors.value_of, variables)]
    for variable, value in zip(variables, tensors.from_root(root_rank)(arrays), strict=True):
        variable.assign(value)


def load_model(
    filepath: Any,
    custom_optimizers: Any = None,
    custom_objects: Any = None,
    compression: Any = hvd.Compression.none,
    **more: Any,
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
