"""The parts of a training step that a network computes: what the backends of Keras have in common.

A step is in three parts, so that each can be timed and the middle one be fairlead's: gradients of this rank's batch;
their mean over ranks; the optimizer's update.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fairlead import comm
from fairlead.comm.frameworks import common
from fairlead.ml.data.samples import Array
from fairlead.ml.task import Course, Recipe, Task

# Layers whose scale and offset no weight decay touches.
_NORMAL = "normal"


class Steps(ABC):
    """A model, its optimizer and what a backend computes of them.

    Attributes:
        model: the ``keras.Model``.
        optimizer: of it.
        scaled: whether losses are scaled, as float16 requires: a step whose gradients overflow is then skipped.
        forward_over: when the forward pass of the last :meth:`gradients` ended, ns of ``time.perf_counter_ns``; None
            where that is not visible.
    """

    forward_over: int | None = None

    def __init__(
        self, task: Task, recipe: Recipe, course: Course, sample: tuple[int, ...], outputs: int
    ):
        import keras

        self.task, self.recipe = task, recipe
        self.model = task.build(recipe, sample, outputs)
        self.optimizer = recipe.optimizer(course)
        self.scaled = keras.mixed_precision.dtype_policy().compute_dtype == "float16"
        if self.scaled:
            self.optimizer = keras.optimizers.LossScaleOptimizer(self.optimizer)
        self.variables = self.model.trainable_variables
        self.optimizer.build(self.variables)
        self.decayed = [v for v in self.variables if decays(v)]
        # Of what :meth:`mean` sends.
        self._names = [*(v.path for v in self.variables), "loss"]

    @abstractmethod
    def gradients(self, inputs: Array, targets: Array) -> tuple[float, float, Any]:
        """This rank's loss of a batch, and the norm of its gradients, neither scaled; the gradients, scaled if losses
        are, as the backend's own values. Complete on return."""

    @abstractmethod
    def mean(self, gradients: Any, more: Array) -> tuple[Any, Array]:
        """The gradients, and ``more`` (float32), as means over all ranks. Collective."""

    @abstractmethod
    def update(self, means: Any) -> None:
        """The optimizer's update; complete on return."""

    @abstractmethod
    def forward(self, inputs: Array, targets: Array, training: bool) -> tuple[float, Any]:
        """The loss and the network's outputs for a batch, without gradients; complete on return."""

    def apply(self, means: Any) -> bool:
        """Updates, unless scaled gradients have overflowed; whether it did."""
        if not self.scaled:
            self.update(means)
            return True
        before = int(self.optimizer.iterations)
        self.update(means)
        return int(self.optimizer.iterations) > before

    def loss(self, inputs: Any, targets: Any, training: bool) -> tuple[Any, Any]:
        """Loss and outputs, as tensors of the backend."""
        from keras import ops

        outputs = self.model(self.task.prepare(inputs), training=training)
        loss = self.task.loss(targets, outputs)
        if training and self.recipe.l2:
            squares = sum(ops.sum(ops.square(ops.cast(v, "float32"))) for v in self.decayed)
            loss = loss + self.recipe.l2 / 2 * squares
        return loss, outputs

    def odd(self, gradients: Any) -> str:
        """The name of the first variable whose gradient has a NaN or an infinity; "" if none has."""
        from keras import ops

        for variable, gradient in zip(self.variables, gradients, strict=True):
            if not np.isfinite(ops.convert_to_numpy(ops.cast(gradient, "float32"))).all():
                return str(variable.path)
        return ""

    # State that is saved and compared.

    def weights(self) -> list[Array]:
        """The trained variables, equal on all ranks after each step."""
        return arrays(self.variables)

    def shared(self) -> list[Any]:
        """Variables that all ranks share: the trained ones, and the optimizer's state."""
        return [*self.variables, *self.optimizer.variables]

    def names(self) -> list[list[str]]:
        """The names of :meth:`shared`, and of :meth:`own_state`."""
        return [[v.path for v in each] for each in (self.shared(), self._own_variables())]

    def inherit(self, arrays: Mapping[str, Array], optimizer: bool) -> int:
        """Takes values of another training by name, of variables that have the same shape; how many.

        Args:
            optimizer: its state, too.
        """
        mine = self.shared() if optimizer else self.variables
        fitting = [
            v for v in (*mine, *self.model.non_trainable_weights)
            if v.path in arrays and tuple(v.shape) == arrays[v.path].shape
        ]  # fmt: skip
        assign(fitting, [arrays[v.path] for v in fitting])
        return len(fitting)

    def own_state(self) -> list[Array]:
        """The state that differs between ranks: moving statistics, and the random state of dropout."""
        return arrays(self._own_variables())

    def restore(self, own: Sequence[Array]) -> None:
        """Restores the result of :meth:`own_state`."""
        assign(self._own_variables(), own)

    def _own_variables(self) -> list[Any]:
        trained = {id(v) for v in self.variables}
        return [v for v in self.model.variables if id(v) not in trained]

    def broadcast(self, ranks: comm.Comm) -> None:
        """Rank 0's weights, statistics and optimizer state on every rank. Seeds stay each rank's own. Collective."""
        variables = [*self.shared(), *self.model.non_trainable_weights]
        assign(variables, ranks.broadcast(arrays(variables)))

    def average_statistics(self, ranks: comm.Comm) -> None:
        """BatchNorm's moving statistics become their mean over ranks, as before an evaluation. Collective."""
        variables = self.model.non_trainable_weights
        if variables and ranks.size > 1:
            names = [v.path for v in variables]
            assign(variables, common.mean_state(ranks, arrays(variables), names))


def decays(variable: Any) -> bool:
    """Whether weight decay applies to it: not to scale and offset of BatchNorm, recognised by the layer's name."""
    return _NORMAL not in variable.path


def arrays(variables: Sequence[Any]) -> list[Array]:
    """Copies of the variables' values."""
    from keras import ops

    return [np.array(ops.convert_to_numpy(v)) for v in variables]


def assign(variables: Sequence[Any], values: Sequence[Array]) -> None:
    """Assigns the values to the variables."""
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)


def make_steps(
    task: Task, recipe: Recipe, course: Course, sample: tuple[int, ...], outputs: int
) -> Steps:
    """The steps of ``task`` on the backend that Keras was loaded with.

    Raises:
        FairleadError: Keras built another network than the published one.
    """
    from keras import backend

    if backend.backend() == "torch":
        from fairlead.ml.train.steps_torch import TorchSteps

        return TorchSteps(task, recipe, course, sample, outputs)
    from fairlead.ml.train.steps_tensorflow import TensorFlowSteps

    return TensorFlowSteps(task, recipe, course, sample, outputs)
