"""The parts of a step on TensorFlow: compiled functions; gradients go by ``fairlead.comm.tensorflow``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context

from fairlead.comm import tensorflow as ours
from fairlead.ml.data.samples import Array
from fairlead.ml.train.steps import Steps


@cache
def _options() -> Any:
    config = context.context().config
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    return context.FunctionCallOptions(config_proto=config)


@contextmanager
def _unoptimized() -> Iterator[None]:
    """Functions of the block run as they were traced: Grappler takes half as long as the tracing of an update, which
    is thousands of small operations and no layer, and gains nothing. TensorFlow retraces a function for other options, so they are
    the same at every call."""
    eager = context.context()
    before, eager.function_call_options = eager.function_call_options, _options()
    try:
        yield
    finally:
        eager.function_call_options = before


class TensorFlowSteps(Steps):
    """See :class:`fairlead.ml.train.steps.Steps`."""

    def __init__(self, *arguments: Any):
        super().__init__(*arguments)
        self._gradients = tf.function(self._traced_gradients, autograph=False)
        self._update = tf.function(self._traced_update, autograph=False)
        # Traced for training and for evaluation: a Python bool is part of a trace's signature.
        self._forward = tf.function(self.loss, autograph=False)

    def _traced_gradients(self, inputs: Any, targets: Any) -> Any:
        with tf.GradientTape() as tape:
            loss, _ = self.loss(inputs, targets, True)
            scaled = self.optimizer.scale_loss(loss)
        gradients = tape.gradient(scaled, [v.value for v in self.variables])
        norm = tf.linalg.global_norm(gradients) / self.optimizer.scale_loss(1.0)
        return loss, norm, gradients

    def _traced_update(self, means: Any) -> None:
        self.optimizer.apply(means, self.variables)

    def gradients(self, inputs: Array, targets: Array) -> tuple[float, float, Any]:
        tensors = tf.convert_to_tensor(inputs), tf.convert_to_tensor(targets)
        loss, norm, gradients = self._gradients(*tensors)
        return float(loss), float(norm), gradients

    def mean(self, gradients: Any, more: Array) -> tuple[Any, Array]:
        everything = [*gradients, tf.convert_to_tensor(more)]
        *means, mean_more = ours.aggregate(everything, names=self._names, any_values=True)
        return means, np.asarray(mean_more)

    def update(self, means: Any) -> None:
        with _unoptimized():
            self._update(means)

    def forward(self, inputs: Array, targets: Array, training: bool) -> tuple[float, Any]:
        tensors = tf.convert_to_tensor(inputs), tf.convert_to_tensor(targets)
        loss, outputs = self._forward(*tensors, training)
        return float(loss), outputs
