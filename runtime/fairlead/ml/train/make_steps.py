"""The parts of a training step, on the backend that Keras was loaded with."""

from __future__ import annotations

from fairlead.ml.task import Course, Recipe, Task
from fairlead.ml.train.steps import Steps


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
