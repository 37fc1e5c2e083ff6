"""``horovod.tensorflow.elastic`` and ``horovod.keras.elastic``: states of variables, for ranks that stay the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow

from fairlead.comm.dropin import hvd_tensorflow, tensors
from fairlead.comm.dropin.hvd_elastic import ObjectState, run, run_fn
from fairlead.comm.dropin.which_keras import imported

__all__ = [
    "CommitStateCallback",
    "KerasState",
    "TensorFlowKerasState",
    "TensorFlowState",
    "UpdateBatchStateCallback",
    "UpdateEpochStateCallback",
    "run",
    "run_fn",
]

keras: Any = imported()


class _VariablesState(ObjectState):
    """The variables that ``find`` gives, and objects."""

    def __init__(self, find: Callable[[], Sequence[Any]], session: Any = None, **objects: Any):
        self._find, self._session = find, session
        self._equal: Any = None
        super().__init__(**objects)
        self._keep()

    def save(self) -> None:
        self._keep()
        super().save()

    def restore(self) -> None:
        # What was made since then, such as an optimizer's state, has nothing to go back to.
        for variable, value in zip(self._variables(), self._values, strict=False):
            if self._session is None:
                variable.assign(value)
            else:
                variable.load(value, self._session)
        super().restore()

    def sync(self) -> None:
        if self._session is None:
            hvd_tensorflow.broadcast_variables(self._variables(), 0)
        else:
            if self._equal is None:
                self._equal = hvd_tensorflow.broadcast_variables(self._variables(), 0)
            self._session.run(self._equal)
        self._keep()
        super().sync()

    def _variables(self) -> list[Any]:
        return [tensors.value_of(variable) for variable in self._find()]

    def _keep(self) -> None:
        if self._session is None:
            self._values = [variable.numpy() for variable in self._variables()]
        else:
            self._values = self._session.run(self._variables())


class TensorFlowState(_VariablesState):
    """Variables, of a TF 1 session too, and picklable objects, each an attribute."""

    def __init__(self, variables: Any = None, session: Any = None, **objects: Any):
        v1: Any = tensorflow.compat.v1
        self.variables = variables or v1.global_variables()
        if session is None and not tensorflow.executing_eagerly():
            session = v1.get_default_session()
        self.session = session
        super().__init__(lambda: self.variables, session, **objects)


class TensorFlowKerasState(_VariablesState):
    """A built model, its optimizer, and picklable objects, each an attribute.

    Args:
        optimizer: the model's own without it.
        backend: without meaning here.
    """

    def __init__(self, model: Any, optimizer: Any = None, backend: Any = None, **objects: Any):
        if not getattr(model, "built", True):
            raise ValueError("the model is not built: run `model.build(input_shape)` before")
        self.model, self.optimizer = model, optimizer or model.optimizer
        super().__init__(self._both, **objects)

    def _both(self) -> list[Any]:
        of_optimizer = getattr(self.optimizer, "variables", ())
        if not isinstance(of_optimizer, (list, tuple)):
            of_optimizer = of_optimizer()  # a method of Keras 2's older ones
        return [*self.model.variables, *of_optimizer]


class KerasState(TensorFlowKerasState):
    """:class:`TensorFlowKerasState` under its other name."""


class CommitStateCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Commits a state every ``batches_per_commit`` batches and at the end of each epoch."""

    def __init__(self, state: Any, batches_per_commit: int = 1):
        super().__init__()
        self.state, self.batches_per_commit = state, batches_per_commit
        self.batches_remaining = batches_per_commit

    def on_train_begin(self, logs: Any = None) -> None:
        self.batches_remaining = self.batches_per_commit

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.batches_remaining -= 1
        if not self.batches_remaining:
            self.state.commit()
            self.batches_remaining = self.batches_per_commit

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.state.commit()


class UpdateBatchStateCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Keeps the number of the batch in ``state.batch``, 0 at the end of each epoch."""

    def __init__(self, state: Any):
        super().__init__()
        self.state = state

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.state.batch = batch

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.state.batch = 0


class UpdateEpochStateCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Keeps the number of finished epochs in ``state.epoch``, counted on from what it is when training begins."""

    def __init__(self, state: Any):
        super().__init__()
        self.state, self.initial_epoch = state, state.epoch

    def on_train_begin(self, logs: Any = None) -> None:
        self.initial_epoch = self.state.epoch

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.state.epoch = self.initial_epoch + epoch + 1
