"""``horovod.tensorflow``: eager, in functions, and in graphs and sessions of TF 1."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import tensorflow

from fairlead.base.errors import FairleadError
from fairlead.comm.dropin import hvd, rules, sets, tensors
from fairlead.comm.dropin.absent import not_offered
from fairlead.comm.dropin.failures import HorovodInternalError, UsageError
from fairlead.comm.dropin.hvd import *  # noqa: F403
from fairlead.comm.dropin.hvd import _basics as _basics
from fairlead.comm.dropin.hvd_tensorflow_gradients import Gradients, means_of, reduction
from fairlead.comm.dropin.hvd_util import check_extension, gpu_available, split_list
from fairlead.comm.dropin.parameters import takes
from fairlead.comm.dropin.session_hooks import BcastTensors, averaging, broadcast_op, is_optimizer
from fairlead.comm.dropin.which_keras import of_keras
from fairlead.comm.frameworks import common

__all__ = [
    *hvd.__all__,
    "BroadcastGlobalVariablesHook",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "PartialDistributedGradientTape",
    "broadcast_",
    "broadcast_global_variables",
    "broadcast_object_fn",
    "broadcast_variables",
    "check_extension",
    "gpu_available",
    "local_rank_op",
    "local_size_op",
    "process_set_included_op",
    "rank_op",
    "size_op",
    "split_list",
]


def _executing_eagerly() -> bool:
    return bool(tensorflow.executing_eagerly())


def _as_tensorflow(call: Callable[..., Any]) -> Callable[..., Any]:
    """``call``, which outside of graphs raises what is TensorFlow's error as well."""

    @functools.wraps(call)
    def called(*args: Any, **named: Any) -> Any:
        try:
            return call(*args, **named)
        except HorovodInternalError as exc:
            raise Failed(exc) from None
        except UsageError as exc:
            raise Invalid(exc) from None

    return called


class Failed(tensorflow.errors.FailedPreconditionError, HorovodInternalError):  # type: ignore[misc, unused-ignore]
    """A collective has failed on every rank that takes part in it."""

    def __init__(self, exc: FairleadError):
        tensorflow.errors.FailedPreconditionError.__init__(self, None, None, str(exc))
        HorovodInternalError.__init__(self, exc.findings, exc.code)


class Invalid(tensorflow.errors.InvalidArgumentError, UsageError):  # type: ignore[misc, unused-ignore]
    """A call that cannot be right, whatever other ranks do."""

    def __init__(self, exc: FairleadError):
        tensorflow.errors.InvalidArgumentError.__init__(self, None, None, str(exc))
        UsageError.__init__(self, exc.findings, exc.code)


def _allreduce(tensor: Any, **options: Any) -> Any:
    """:func:`fairlead.comm.dropin.hvd.allreduce`; of IndexedSlices, those of all ranks."""
    if not isinstance(tensor, tensorflow.IndexedSlices):
        return hvd.allreduce(tensor, **options)
    options.pop("name", None)
    how, members = hvd.reduction(**options), hvd.member_set(options.get("process_set"))
    # As Horovod does; scripts catch it.
    if how.op not in (hvd.Average, hvd.Sum):
        raise NotImplementedError(f"op={how.op} of IndexedSlices")
    if (how.before, how.after) != (1, 1):
        raise NotImplementedError("factors of IndexedSlices")
    values = hvd.allgather(tensor.values, process_set=members)
    if how.op == hvd.Average:
        values = values / tensorflow.cast(members.size(), values.dtype)  # floats, of integers, too
    indices = hvd.allgather(tensor.indices, process_set=members)
    return tensorflow.IndexedSlices(values, indices, tensor.dense_shape)


allreduce = takes(
    "tensor average device_dense device_sparse compression op prescale_factor postscale_factor name process_set"
    " ignore_name_scope"
)(_as_tensorflow(_allreduce))


def _grouped_allreduce(tensors: Sequence[Any], **how: Any) -> list[Any]:
    """:func:`fairlead.comm.dropin.hvd.grouped_allreduce`; IndexedSlices each on their own."""
    slices = {
        i: _allreduce(tensor, **how)
        for i, tensor in enumerate(tensors)
        if isinstance(tensor, tensorflow.IndexedSlices)
    }
    dense = [tensor for i, tensor in enumerate(tensors) if i not in slices]
    reduced = iter(hvd.grouped_allreduce(dense, **how) if dense else ())
    return [slices[i] if i in slices else next(reduced) for i in range(len(tensors))]


grouped_allreduce = takes(
    "tensors average device_dense device_sparse compression op prescale_factor postscale_factor process_set"
    " ignore_name_scope name"
)(_as_tensorflow(_grouped_allreduce))
allgather = takes("tensor name ignore_name_scope process_set")(_as_tensorflow(hvd.allgather))
grouped_allgather = takes("tensors name ignore_name_scope process_set")(
    _as_tensorflow(hvd.grouped_allgather)
)
broadcast = takes("tensor root_rank name ignore_name_scope process_set")(
    _as_tensorflow(hvd.broadcast)
)
reducescatter = takes(
    "tensor device_dense compression op name process_set ignore_name_scope prescale_factor postscale_factor"
)(_as_tensorflow(hvd.reducescatter))
grouped_reducescatter = takes(
    "tensors device_dense compression op process_set prescale_factor postscale_factor"
)(_as_tensorflow(hvd.grouped_reducescatter))
broadcast_object = takes("obj root_rank session name process_set")(hvd.broadcast_object)
allgather_object = takes("obj session name process_set")(hvd.allgather_object)


def _alltoall(
    tensor: Any, splits: Any = None, name: str | None = None, process_set: Any = None
) -> Any:
    """:func:`fairlead.comm.dropin.hvd.alltoall`; the rows of each rank come as a tensor."""
    tensor, members = tensorflow.convert_to_tensor(tensor), hvd.member_set(process_set)
    if splits is None and tensor.shape.rank and tensor.shape[0] is None:
        # How many rows there are is known when it runs.
        moved = rules.Alltoall(lambda: members, None, name)
        return tensors.in_order(moved.operation, [tensor])[0]
    if splits is None:
        return hvd.alltoall(tensor, None, name, members)
    operation = rules.alltoall_of(
        lambda: members, lambda array, rows: hvd.splits_of(rows, array, members), name
    )
    given = tensorflow.convert_to_tensor(splits, dtype=tensorflow.int32)
    return tuple(tensors.in_order(operation, [tensor, given]))


alltoall = takes("tensor splits name ignore_name_scope process_set")(_as_tensorflow(_alltoall))


def broadcast_(
    variables: Sequence[Any], root_rank: int, name: str | None = None, process_set: Any = None
) -> list[Any]:
    """Gives variables rank ``root_rank``'s values; returns them."""
    done = broadcast_variables(variables, root_rank, process_set)
    if done is None:
        return list(variables)
    with tensorflow.control_dependencies([done]):
        return [tensorflow.identity(variable) for variable in variables]


@takes("root_rank session name process_set")
def broadcast_object_fn(
    root_rank: int = 0, name: str | None = None, process_set: Any = None
) -> Callable[[Any], Any]:
    """:func:`broadcast_object` of its argument."""
    return lambda value: hvd.broadcast_object(value, root_rank, name, process_set)


def _when_run(read: Callable[[], int], name: str | None) -> Any:
    """A scalar that is read when the operation runs, not when a graph is made."""
    value = tensorflow.numpy_function(lambda: np.int32(read()), [], tensorflow.int32, name=name)
    return tensorflow.ensure_shape(value, [])


def rank_op(name: str | None = None) -> Any:
    return _when_run(hvd.rank, name)


def local_rank_op(name: str | None = None) -> Any:
    return _when_run(hvd.local_rank, name)


def local_size_op(name: str | None = None) -> Any:
    return _when_run(hvd.local_size, name)


def size_op(process_set_id: int = 0, name: str | None = None) -> Any:
    return _when_run(lambda: sets.by_number(process_set_id).size(), name)


def process_set_included_op(process_set_id: int = 0, name: str | None = None) -> Any:
    """1 if this process is in the set, else 0."""
    return _when_run(lambda: int(sets.by_number(process_set_id).included()), name)


@takes("variables root_rank process_set inplace")
def broadcast_variables(
    variables: Sequence[Any], root_rank: int = 0, process_set: Any = None
) -> Any:
    """Gives variables, of TensorFlow or of Keras 3, rank ``root_rank``'s values. Collective.

    Returns:
        The operation that does it, in a graph of TF 1; else None, and it is done.
    """
    given = [tensors.value_of(variable) for variable in variables]
    collective: Any = tensors.from_root(root_rank)
    if process_set not in (None, hvd.global_process_set):
        members = hvd.member_set(process_set)
        collective = rules.broadcast(lambda: members, members.root(root_rank))
    if not tensorflow.executing_eagerly() and not tensorflow.inside_function():
        return broadcast_op(given, collective)
    values = tensors.over(collective, given)
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)
    return None


def broadcast_global_variables(root_rank: int = 0) -> Any:
    """The operation that gives all global variables of a TF 1 graph rank ``root_rank``'s values."""
    if tensorflow.executing_eagerly():
        refused = not_offered(
            "broadcast_global_variables outside of a TF 1 graph",
            "broadcast_variables(model.variables, 0)",
        )
        raise HorovodInternalError(refused.findings)
    return broadcast_op(tensorflow.compat.v1.global_variables(), tensors.from_root(root_rank))


class BroadcastGlobalVariablesHook(BcastTensors):
    """:class:`BcastTensors` under its other name."""

    def __init__(self, root_rank: int = 0, device: str = ""):
        super().__init__(root_rank)


@takes(
    "optimizer name use_locking device_dense device_sparse compression sparse_as_dense backward_passes_per_step op"
    " gradient_predivide_factor average_aggregated_gradients num_groups groups process_set scale_local_gradients"
)
def DistributedOptimizer(
    optimizer: Any,
    compression: Any = hvd.Compression.none,
    op: Any = hvd.Average,
    backward_passes_per_step: int = 1,
    process_set: Any = None,
    **more: Any,
) -> Any:
    """``optimizer`` itself, which from now on applies means over ranks.

    Raises:
        FairleadError: gradients are to be accumulated, or reduced in another way.
    """
    if not is_optimizer(optimizer):
        front = importlib.import_module(of_keras("fairlead.comm.dropin.hvd_keras"))
        return front.DistributedOptimizer(
            optimizer,
            compression=compression,
            op=op,
            backward_passes_per_step=backward_passes_per_step,
            process_set=process_set,
            **more,
        )
    passes = backward_passes_per_step
    hvd.require(passes == 1, "backward_passes_per_step", "backward_passes_per_step=1")
    members = hvd.member_set(process_set)
    how = reduction(op, compression)
    if not members.included():
        optimizer._optimizer = optimizer
        return optimizer
    # TensorFlow runs the operations of a step in threads. Compared as they are sent, in the same call: gradients are
    # floats, and nothing is widened.
    ranks = members.core_comm().team()
    mean = partial(common.present, partial(means_of, how.at_once(lambda: ranks), compression))
    return averaging(optimizer, mean, lambda: ranks, "hvd.broadcast_global_variables")


class DistributedGradientTape:
    """A ``tf.GradientTape`` whose ``gradient`` gives means over ranks."""

    @takes(
        "self gradtape device_dense device_sparse compression sparse_as_dense op gradient_predivide_factor num_groups"
        " groups process_set scale_local_gradients"
    )
    def __init__(
        self,
        gradtape: Any,
        compression: Any = hvd.Compression.none,
        op: Any = hvd.Average,
        process_set: Any = None,
        scale_local_gradients: bool = True,
    ):
        self._tape = gradtape
        self._gradients = Gradients(
            op,
            compression,
            "hvd.broadcast_variables",
            process_set=process_set,
            scale_local=scale_local_gradients,
        )
        self._traced: set[tuple[int, ...]] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tape, name)

    def __enter__(self) -> DistributedGradientTape:
        self._tape.__enter__()
        return self

    def __exit__(self, *exc: Any) -> Any:
        return self._tape.__exit__(*exc)

    def register_local_source(self, source: Any) -> None:
        """Its gradients stay this rank's, divided by the number of ranks unless ``scale_local_gradients=False``."""
        self._gradients.keep_local([source])

    def gradient(self, target: Any, sources: Any, output_gradients: Any = None, **more: Any) -> Any:
        more.pop("use_generic_names", None)
        gradients = self._tape.gradient(target, sources, output_gradients, **more)
        flat = tensorflow.nest.flatten(sources)
        # A persistent tape may be asked again within the step.
        key = tuple(map(id, flat))
        first = key not in self._traced
        self._traced.add(key)
        means = self._gradients.means(tensorflow.nest.flatten(gradients), flat, step=first)
        return tensorflow.nest.pack_sequence_as(gradients, means)

    def get_local_and_global_gradients(
        self, target: Any, sources: Any, output_gradients: Any = None, **more: Any
    ) -> tuple[list[tuple[Any, Any]], list[tuple[Any, Any]]]:
        """Pairs of a source and its gradient: of local sources, and of all others."""
        gradients = self.gradient(target, sources, output_gradients, **more)
        pairs = list(zip(sources, gradients, strict=True))
        local = [self._gradients.is_local(source) for source in sources]
        return (
            [pair for pair, is_local in zip(pairs, local, strict=True) if is_local],
            [pair for pair, is_local in zip(pairs, local, strict=True) if not is_local],
        )


@takes(
    "gradtape device_dense device_sparse compression sparse_as_dense op gradient_predivide_factor num_groups groups"
    " process_set local_layers scale_local_gradients"
)
def PartialDistributedGradientTape(
    gradtape: Any, local_layers: Any = None, **how: Any
) -> DistributedGradientTape:
    """:class:`DistributedGradientTape`; the weights of ``local_layers`` are local sources."""
    made = DistributedGradientTape(gradtape, **how)
    for variable in weights_of(local_layers):
        made.register_local_source(variable)
    return made


def weights_of(layers: Any) -> list[Any]:
    """The trainable weights of a layer of Keras, or of some.

    Raises:
        ValueError: one is not a layer.
    """
    given = [] if layers is None else layers if isinstance(layers, (list, tuple)) else [layers]
    if any(not hasattr(layer, "trainable_weights") for layer in given):
        raise ValueError("all local layers must be layers of Keras")
    return [variable for layer in given for variable in layer.trainable_weights]


def __getattr__(name: str) -> Any:
    if name == "SyncBatchNormalization":  # which loads Keras
        from fairlead.comm.dropin.hvd_keras_sync import SyncBatchNormalization

        return SyncBatchNormalization
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
