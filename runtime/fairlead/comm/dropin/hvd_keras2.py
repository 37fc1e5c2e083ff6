"""``horovod.keras`` and ``horovod.tensorflow.keras`` for Keras 2, which is ``tf_keras``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
import tf_keras as keras

from fairlead import comm
from fairlead.base.errors import FairleadError
from fairlead.comm.dropin import callbacks2 as callbacks
from fairlead.comm.dropin import hvd, hvd_tensorflow
from fairlead.comm.dropin.hvd import *  # noqa: F403
from fairlead.comm.dropin.hvd_keras_calls import *  # noqa: F403
from fairlead.comm.dropin.hvd_keras_calls import OPTIMIZER
from fairlead.comm.dropin.hvd_tensorflow_gradients import Gradients
from fairlead.comm.dropin.parameters import takes
from fairlead.comm.frameworks import common

__all__ = [
    *hvd.__all__,
    "DistributedOptimizer",
    "PartialDistributedOptimizer",
    "broadcast_global_variables",
    "broadcast_variables",
    "callbacks",
    "load_model",
]
broadcast_variables = hvd_tensorflow.broadcast_variables
broadcast_global_variables = hvd_tensorflow.broadcast_global_variables
_MARK = "_fairlead_averaging"
_BROADCAST = "hvd.callbacks.BroadcastGlobalVariablesCallback"


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
    """``optimizer``, which from now on applies means over ranks. It is the same object, and is saved as what it is.

    Args:
        name: without meaning here.
    Raises:
        FairleadError: gradients are to be reduced by other than ``Average`` and ``Sum``.
    """
    if not hasattr(optimizer, _MARK):
        common.end_together()
        gradients = Gradients(
            op, compression, _BROADCAST, process_set=process_set, scale_local=scale_local_gradients
        )
        passes = None
        if backward_passes_per_step > 1:
            passes = _Passes(backward_passes_per_step, average_aggregated_gradients)
        _Averaging(optimizer, gradients, passes).attach()
    return optimizer


@takes(f"{OPTIMIZER} local_layers")
def PartialDistributedOptimizer(optimizer: Any, local_layers: Any = None, **how: Any) -> Any:
    """:func:`DistributedOptimizer`; the weights of ``local_layers`` stay each rank's own."""
    made = DistributedOptimizer(optimizer, **how)
    for variable in hvd_tensorflow.weights_of(local_layers):
        made.register_local_var(variable)
    return made


class _Passes:
    """Gradients of several batches, added up for one step.

    Attributes:
        counter: the batches since the last step.
    """

    def __init__(self, count: int, mean: bool):
        self._count, self._mean = count, mean
        self.counter = tf.Variable(0, trainable=False)
        self._sums: dict[int, Any] = {}

    def added(
        self,
        gradients: Sequence[Any],
        variables: Sequence[Any],
        means: Callable[[Sequence[Any]], list[Any]],
    ) -> list[Any]:
        """The sums so far; in the last pass, what ``means`` makes of them."""
        held = [i for i, gradient in enumerate(gradients) if gradient is not None]
        for i in held:
            if i not in self._sums:
                with tf.init_scope():
                    zeros = tf.zeros(variables[i].shape, gradients[i].dtype)
                    self._sums[i] = tf.Variable(zeros, trainable=False)
            self._sums[i].assign_add(tf.convert_to_tensor(gradients[i]))
        self.counter.assign_add(1)

        def last() -> list[Any]:
            sums = [
                self._sums[i].read_value() if i in held else None for i in range(len(gradients))
            ]
            reduced = [mean for mean in means(sums) if mean is not None]
            for i in held:
                self._sums[i].assign(tf.zeros_like(self._sums[i]))
            self.counter.assign(0)
            return [mean / self._count for mean in reduced] if self._mean else reduced

        passes = tf.cond(
            tf.equal(self.counter, self._count),
            last,
            lambda: [self._sums[i].read_value() for i in held],
        )
        of = dict(zip(held, passes, strict=True))
        return [of.get(i) for i in range(len(gradients))]

    def applied(self, optimizer: Any, apply: Callable[[], Any]) -> Any:
        """``apply`` after the last pass; otherwise a step is counted only."""

        def now() -> Any:
            apply()
            return tf.constant(True)

        def later() -> Any:
            optimizer.iterations.assign_add(1)
            return tf.constant(False)

        return tf.cond(tf.equal(self.counter, 0), now, later)


class _Averaging:
    """What ``compute_gradients`` and ``apply_gradients`` of a wrapped optimizer are."""

    def __init__(self, optimizer: Any, gradients: Gradients, passes: _Passes | None):
        self.optimizer, self._gradients, self._passes = optimizer, gradients, passes
        self._reduced = False
        own = type(optimizer)
        self._is_legacy = hasattr(own, "_compute_gradients")
        self._compute = own._compute_gradients if self._is_legacy else own.compute_gradients

    def attach(self) -> None:
        optimizer = self.optimizer
        setattr(optimizer, _MARK, self)
        optimizer.apply_gradients = _as_written(self.apply)
        optimizer._compute_gradients = _as_written(self.compute)
        if not self._is_legacy:
            optimizer.compute_gradients = _as_written(
                lambda loss, var_list, tape=None: self.compute(loss, var_list, tape=tape)
            )
        optimizer.register_local_var = lambda variable: self._gradients.keep_local([variable])
        optimizer._agg_helper = self._passes

    def compute(
        self, loss: Any, var_list: Any, grad_loss: Any = None, tape: Any = None
    ) -> list[tuple[Any, Any]]:
        more = {"grad_loss": grad_loss} if self._is_legacy else {}
        if tape is None and not callable(loss):
            raise ValueError("a loss that is not a function needs the tape that recorded it")
        given = list(self._compute(self.optimizer, loss, var_list, tape=tape, **more))
        pairs = self._means(given)
        self._reduced = True
        return pairs

    def apply(self, grads_and_vars: Any, *args: Any, **named: Any) -> Any:
        pairs = list(grads_and_vars)
        if not self._reduced:
            pairs = self._means(pairs)
        self._reduced = False
        apply = type(self.optimizer).apply_gradients
        if self._passes is None:
            return apply(self.optimizer, pairs, *args, **named)
        variables = [variable for _, variable in pairs]
        with tf.init_scope():
            if self._is_legacy:
                self.optimizer._create_all_weights(variables)
            else:
                self.optimizer.build(variables)
        return self._passes.applied(
            self.optimizer, lambda: apply(self.optimizer, pairs, *args, **named)
        )

    def _means(self, pairs: Sequence[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
        variables = [variable for _, variable in pairs]

        def means(gradients: Sequence[Any]) -> list[Any]:
            return self._gradients.means(gradients, variables, step=True)

        gradients = [gradient for gradient, _ in pairs]
        reduced = (
            means(gradients)
            if self._passes is None
            else self._passes.added(gradients, variables, means)
        )
        return list(zip(reduced, variables, strict=True))


def _as_written(function: Callable[..., Any]) -> Any:
    """``function``, which AutoGraph neither rewrites, nor its errors."""

    def whole(*words: Any, **given: Any) -> Any:
        try:
            return function(*words, **given)
        except FairleadError as exc:
            setattr(exc, "ag_pass_through", True)  # noqa: B010, mypy knows no such attribute
            raise

    return tf.autograph.experimental.do_not_convert(whole)


@takes("filepath custom_optimizers custom_objects compression legacy_opts")
def load_model(
    filepath: Any,
    custom_optimizers: Any = None,
    custom_objects: Any = None,
    compression: Any = hvd.Compression.none,
) -> Any:
    """``tf_keras.models.load_model``, and its optimizer averages over ranks."""
    comm.init()
    objects = {
        **{optimizer.__name__: optimizer for optimizer in custom_optimizers or ()},
        **(custom_objects or {}),
    }
    model = keras.models.load_model(filepath, custom_objects=objects)
    if model.optimizer is not None:
        DistributedOptimizer(model.optimizer, compression=compression)
    return model
