"""A pipeline's stage of TensorFlow layers: the tape of each microbatch, and the sums of the gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import tensorflow as tf

if TYPE_CHECKING:
    from fairlead.comm.core import Array


class TapeStage:
    """A :class:`~fairlead.comm.pipeline.Stage` of eager TensorFlow.

    Attributes:
        gradients: of the variables, summed over the microbatches since :meth:`reset`.
    """

    def __init__(self, call: Callable[[int, Any], Any], variables: Sequence[Any]):
        """
        Args:
            call: gives a microbatch's activations, or its loss in the last stage, from its number and the activations of the
                stage before; in the first stage these are an empty tensor.
            variables: the stage's own.
        """
        self._call, self._variables = call, list(variables)
        self._kept: dict[int, tuple[Any, Any, Any]] = {}
        self.reset()

    def reset(self) -> None:
        """Begins a step."""
        self.gradients = [tf.zeros_like(variable) for variable in self._variables]

    def forward(self, microbatch: int, inputs: Array | None) -> Array:
        x = tf.zeros(0) if inputs is None else tf.constant(inputs)
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch([x, *self._variables])
            y = self._call(microbatch, x)
        self._kept[microbatch] = tape, x, y
        activations: Array = y.numpy()
        return activations

    def backward(self, microbatch: int, gradient: Array | None) -> Array | None:
        tape, x, y = self._kept.pop(microbatch)
        given = None if gradient is None else tf.constant(gradient)
        back, *own = tape.gradient(
            y, [x, *self._variables], given, unconnected_gradients=tf.UnconnectedGradients.ZERO
        )
        self.gradients = [a + b for a, b in zip(self.gradients, own, strict=True)]
        before: Array = back.numpy()
        return before
