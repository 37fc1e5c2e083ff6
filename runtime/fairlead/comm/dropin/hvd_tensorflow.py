"""``horovod.tensorflow``: eager, in functions, and in graphs and sessions of TF 1."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import tensorflow

from fairlead import comm
from fairlead.comm.dropin import hvd, rules, tensors, weights
from fairlead.comm.dropin.hvd import *  # noqa: F403
from fairlead.comm.dropin.session_hooks import BcastTensors, averaging, broadcast_op, is_optimizer
from fairlead.comm.frameworks import common

__all__ = [
    *hvd.__all__,
    "BroadcastGlobalVariablesHook",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "broadcast_global_variables",
    "broadcast_variables",
]


def broadcast_variables(variables: Sequence[Any], root_rank: int = 0, **more: Any) -> Any:
    """Gives variables, of TensorFlow or of Keras 3, rank ``root_rank``'s values. Collective.

    Returns:
        The operation that does it, in a graph of TF 1; else None, and it is done.
    """
    given = [tensors.value_of(variable) for variable in variables]
    if not tensorflow.executing_eagerly() and not tensorflow.inside_function():
        return broadcast_op(given, root_rank)
    values = tensors.over(tensors.from_root(root_rank), given)
    for variable, value in zip(given, values, strict=True):
        variable.assign(value)
    return None


def broadcast_global_variables(root_rank: int = 0) -> Any:
    """The operation that gives all global variables of a TF 1 graph rank ``root_rank``'s values."""
    hvd.require(
        not tensorflow.executing_eagerly(),
        "broadcast_global_variables outside of a TF 1 graph",
        "broadcast_variables(model.variables, 0)",
    )
    return broadcast_op(tensorflow.compat.v1.global_variables(), root_rank)


class BroadcastGlobalVariablesHook(BcastTensors):
    """:class:`BcastTensors` under its other name."""

    def __init__(self, root_rank: int = 0, device: str = ""):
        super().__init__(root_rank)


class _Options(NamedTuple):
    """Horovod's parameters, in its order: old scripts pass some by place."""

    name: str | None = None
    use_locking: bool = False
    device_dense: str = ""
    device_sparse: str = ""
    compression: Any = hvd.Compression.none
    sparse_as_dense: bool = False
    backward_passes_per_step: int = 1
    op: Any = hvd.Average


def DistributedOptimizer(optimizer: Any, *args: Any, **named: Any) -> Any:
    """``optimizer`` itself, which from now on applies means over ranks.

    Raises:
        FairleadError: gradients are to be accumulated, or reduced in another way.
    """
    more = {name: named.pop(name) for name in {*named} - {*_Options._fields}}
    given = _Options(*args, **named)
    hvd.require(
        given.backward_passes_per_step == 1,
        "backward_passes_per_step",
        "`gradient_accumulation_steps` of a Keras optimizer",
    )
    compression, op = given.compression, given.op
    if not is_optimizer(optimizer):
        from fairlead.comm.dropin import hvd_keras

        return hvd_keras.DistributedOptimizer(optimizer, compression=compression, op=op, **more)
    # TensorFlow runs the operations of a step in threads. Compared as they are sent, in the same call: gradients are
    # floats, and nothing is widened.
    ranks = comm.init().team()
    reduce = _reduction(op, compression, more).at_once(lambda: ranks)
    mean = partial(common.present, partial(tensors.gradients, reduce))
    return averaging(optimizer, mean, lambda: ranks, "hvd.broadcast_global_variables")


class DistributedGradientTape:
    """A ``tf.GradientTape`` whose ``gradient`` gives means over ranks."""

    def __init__(
        self,
        gradtape: Any,
        device_dense: str = "",
        device_sparse: str = "",
        compression: Any = hvd.Compression.none,
        sparse_as_dense: bool = False,
        op: Any = hvd.Average,
        **more: Any,
    ):
        self._tape = gradtape
        self._reduce = _reduction(op, compression, more).at_once(comm.init)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tape, name)

    def __enter__(self) -> DistributedGradientTape:
        self._tape.__enter__()
        return self

    def __exit__(self, *exc: Any) -> Any:
        return self._tape.__exit__(*exc)

    def gradient(self, target: Any, sources: Any, output_gradients: Any = None, **more: Any) -> Any:
        gradients = self._tape.gradient(target, sources, output_gradients, **more)
        flat = tensorflow.nest.flatten(gradients)
        watched = weights.of_tape(tensorflow.nest.flatten(sources), "hvd.broadcast_variables")
        reduce = self._reduce
        if watched is not None and tensorflow.executing_eagerly():
            watched.step()
        elif watched is not None:  # in each run of what is traced here
            reduce = rules.after(watched.step, reduce)
        means = common.present(partial(tensors.gradients, reduce), flat)
        return tensorflow.nest.pack_sequence_as(gradients, means)


def _reduction(op: Any, compression: Any, more: dict[str, Any]) -> rules.Reduction:
    hvd.no_sets(more)
    hvd.require(op in (hvd.Average, hvd.Sum), f"op={op} of gradients", "op=Average or op=Sum")
    known = compression in (hvd.Compression.none, hvd.Compression.fp16)
    hvd.require(
        known, f"compression={compression} of gradients", "Compression.none or Compression.fp16"
    )
    return hvd.reduction(op=op, compression=compression)
