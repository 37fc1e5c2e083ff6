"""The parts of a step on TensorFlow: compiled functions; gradients go by ``fairlead.comm.tensorflow``."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from fairlead.comm import tensorflow as ours
from fairlead.ml.data.samples import Array
from fairlead.ml.train.steps import Steps


class TensorFlowSteps(Steps):
    """See :class:`fairlead.ml.train.steps.Steps`."""

    def __init__(self, *arguments: Any):
        super().__init__(*arguments)
        self._gradients = tf.function(self._traced_gradients, autograph=False)
        self._update = tf.function(self._traced_update, autograph=False)
        self._forward = tf.function(lambda x, y: self.loss(x, y, True)[0], autograph=False)
        self._outputs = tf.function(lambda x, y: self.loss(x, y, False), autograph=False)

    def _traced_gradients(self, inputs: Any, targets: Any) -> Any:
        with tf.GradientTape() as tape:
            loss, _ = self.loss(inputs, targets, True)
            scaled = self.optimizer.scale_loss(loss)
        gradients = tape.gradient(scaled, [v.value for v in self.variables])
        norm = tf.linalg.global_norm(gradients) / self.optimizer.scale_loss(1.0)
        return loss, norm, gradients

    def _traced_update(self, means: Any) -> None:
        self.optimizer.apply(means, self.variables)

    def gradients(self, inputs: Array, targets: Array) -> Any:
        return self._gradients(tf.convert_to_tensor(inputs), tf.convert_to_tensor(targets))

    def own(self, local: Any) -> tuple[float, float]:
        loss, norm, _ = local
        return float(loss), float(norm)

    def mean(self, local: Any, more: Array) -> tuple[Any, Array]:
        _, _, gradients = local
        everything = [*gradients, tf.convert_to_tensor(more)]
        *means, mean_more = ours.aggregate(everything, names=self._names, any_values=True)
        return means, np.asarray(mean_more)

    def update(self, means: Any) -> None:
        self._update(means)

    def outputs(self, inputs: Array, targets: Array) -> tuple[Array, float]:
        loss, outputs = self._outputs(tf.convert_to_tensor(inputs), tf.convert_to_tensor(targets))
        return np.asarray(outputs, np.float32), float(loss)

    def forward(self, inputs: Array, targets: Array) -> float:
        return float(self._forward(tf.convert_to_tensor(inputs), tf.convert_to_tensor(targets)))
