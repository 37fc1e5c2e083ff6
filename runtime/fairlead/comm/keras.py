"""Data-parallel Keras 3, on its TensorFlow and its torch backend.

    from fairlead.comm.keras import AverageMetrics, Broadcast, DistributedOptimizer, rank, size

    x, y = x[rank() :: size()], y[rank() :: size()]
    model.compile(DistributedOptimizer(keras.optimizers.Adam()), loss="mse")
    model.fit(x, y, callbacks=[Broadcast(), AverageMetrics()])

Every rank computes the gradients of its own batch; :func:`DistributedOptimizer` applies their mean,
so one step on N ranks is one step on a batch N times as large. :class:`Broadcast` gives all ranks
rank 0's state, and proves once an epoch that they still hold the same bits. docs/tutorials/training.md
describes what is averaged when.

All gradients of a step are averaged at once: in TensorFlow as :mod:`fairlead.comm.tensorflow` does, in
torch on the tensors themselves.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import keras
import numpy as np

from fairlead import comm
from fairlead.base.errors import fail
from fairlead.comm import rank, size
from fairlead.comm.core import Array, Comm
from fairlead.comm.frameworks import common

__all__ = [
    "AverageMetrics",
    "Broadcast",
    "DistributedOptimizer",
    "Started",
    "Warmup",
    "average_state",
    "broadcast",
    "on_rank_0",
    "rank",
    "size",
    "start",
]

_MARK = "_fairlead_averaging"
IS_MEAN = "_fairlead_mean"  # of a gradient that is one over all ranks
_WHERE = "fairlead.comm.keras.DistributedOptimizer"
_REMEDY = "`compile(jit_compile=False)`, or `Broadcast()` among the callbacks of fit"


def DistributedOptimizer(optimizer: Any, team: Comm | None = None) -> Any:
    """``optimizer``, which from now on applies the mean of the gradients over all ranks.

    It is the same object: only its method ``apply``, through which Keras 3 makes every update, is
    another. So it is saved as the plain optimizer that it is, and a model that is loaded has to be
    wrapped again. Gradients are averaged first of all: before they are found to be finite, unscaled,
    accumulated (``gradient_accumulation_steps``: on every batch) and clipped, so that all of these
    act alike on each rank, and as they would on one rank with the whole batch.

    On one rank nothing changes. On more, :class:`Broadcast` (or :func:`broadcast`, in a loop of
    your own) has to come before the first step.

    Args:
        optimizer: a ``keras.optimizers.Optimizer``, a ``LossScaleOptimizer`` or inside of one.
        team: of ``comm.init().team()``: its gradients may be under way at the same time as those of
            other optimizers with teams of their own; see :func:`start`.
    Raises:
        FairleadError: Keras runs on another backend than TensorFlow and torch. Later, by ``apply``:
            nothing was broadcast before the first step, the step is compiled by XLA, or the ranks
            disagree on number, shape or dtype of the gradients, or on their number of steps.
    """
    _backend()
    common.end_together()
    if not hasattr(optimizer, _MARK):
        _Averaging(optimizer, team).attach()
    return optimizer


def averages(optimizer: Any) -> bool:
    """Whether it is a :func:`DistributedOptimizer`."""
    return hasattr(optimizer, _MARK)


def start(optimizer: Any, gradients: Sequence[Any], variables: Sequence[Any]) -> Started:
    """Sends gradients on their way; :meth:`Started.apply` waits for their mean and makes the update.

    For two networks that are trained at once, each by an optimizer with a team of its own: one's
    gradients travel while the other's are computed. All ranks start in the same order; within a
    ``tf.function`` that is the order of its lines.

        first = start(of_discriminator, tape.gradient(d_loss, d_variables), d_variables)
        second = start(of_generator, tape.gradient(g_loss, g_variables), g_variables)
        first.apply()
        second.apply()

    Args:
        optimizer: a :func:`DistributedOptimizer`, after :func:`broadcast`.
    Raises:
        FairleadError: as :func:`DistributedOptimizer`; it is a LossScaleOptimizer, which would have
            to see the gradients first.
    """
    started: Started = _as_written(_start)(optimizer, gradients, variables)
    return started


def _start(optimizer: Any, gradients: Sequence[Any], variables: Sequence[Any]) -> Started:
    averaging = _outermost(optimizer)
    if hasattr(optimizer, "inner_optimizer"):
        raise fail("comm-keras-start", type=type(optimizer).__name__)
    return averaging.start(list(gradients), list(variables))


@dataclass(frozen=True)
class Started:
    """Gradients of one step on their way to the other ranks.

    Attributes:
        apply: waits for the mean and applies it; once.
    """

    apply: Callable[[], None]


def broadcast(model: Any, optimizer: Any = None, root: int = 0) -> None:
    """Gives every rank rank ``root``'s weights and optimizer state, and compares them. Collective.

    Weights include what layers keep besides the trained variables, such as the statistics of
    BatchNormalization, and the optimizer's state its learning rate and its number of steps. Seeds
    stay each rank's own.

    Args:
        model: a built model.
        optimizer: what it is trained with; ``model.optimizer`` without it.
    Raises:
        FairleadError: the model is not built, or is under a strategy of ``tf.distribute``; the
            optimizer is not a :func:`DistributedOptimizer`; the ranks have other variables, or they
            differ after the broadcast.
    """
    optimizer = model.optimizer if optimizer is None else optimizer
    ranks, averaging = comm.init(), _outermost(optimizer)
    if _backend() == "tensorflow":
        from fairlead.comm.tensorflow import refuse_strategy

        refuse_strategy(getattr(model, "distribute_strategy", None))
    if not model.built and (_has_call(model) or not model.weights):
        raise fail("comm-keras-built")
    if not optimizer.built:
        optimizer.build(model.trainable_variables)
    variables = [*model.weights, *optimizer.variables]
    values = common.broadcast(ranks, _arrays(variables), _names(variables), root)
    _assign(variables, values)
    common.require_equal(ranks, _arrays(variables), _names(variables), "after the broadcast")
    averaging.ready = True


def _has_call(model: Any) -> bool:
    """Whether it can be called, and so built; the ``train_step`` of others calls their parts."""
    return type(model).call is not keras.Model.call


def average_state(model: Any) -> None:
    """Makes equal what layers keep besides the trained variables. Collective.

    BatchNormalization counts mean and variance of this rank's batches; all ranks then get the mean
    of these over ranks. What is not a float becomes rank 0's.
    """
    variables = model.non_trainable_weights
    _assign(variables, common.mean_state(comm.init(), _arrays(variables), _names(variables)))


class Broadcast(keras.callbacks.Callback):  # type: ignore[misc]
    """Starts all ranks from rank ``root``'s state, keeps it equal, and proves that it is.

    Put it first among the callbacks. Before the first step of ``fit``, hence after whatever restores
    a state when training begins, it does :func:`broadcast`. Before each validation, or else at the
    end of the epoch, it does :func:`average_state`. At the end of each epoch it compares weights and
    optimizer state over ranks, bit by bit.

    It also turns off ``jit_compile``, with a warning: a compiled step cannot call MPI.

    Args:
        root: the rank that all start from.
        check: compare at the end of each epoch; costs a hash of weights and optimizer state.
    Raises:
        FairleadError: as :func:`broadcast`; the ranks would take other numbers of steps or epochs;
            or they do not hold the same state at the end of an epoch.
    """

    def __init__(self, root: int = 0, check: bool = True):
        super().__init__()
        self.root, self.check = root, check
        self._begun = self._averaged = False
        self._epoch = 0

    def set_model(self, model: Any) -> None:
        super().set_model(model)
        if model.jit_compile and not model.run_eagerly:
            model.jit_compile = False
            model.train_function = None
            if rank() == 0:
                warnings.warn(
                    "fairlead.comm.keras turned off jit_compile, for compiled steps cannot call MPI;"
                    " compile(jit_compile=False) says so yourself",
                    stacklevel=2,
                )

    def on_train_begin(self, logs: Any = None) -> None:
        self._begun = False

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._epoch, self._averaged = epoch, False

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if not self._begun:
            self._begun = True
            self._require_equal_steps()
            if self.model.built or _backend() == "torch":
                broadcast(self.model, root=self.root)
            else:
                step = self.model.train_function
                self.model.train_function = partial(self._first_step, step)
        if (timeline := comm.init().timeline) is not None:
            if _backend() == "torch":
                from fairlead.comm.torch import watch

                watch(comm.init())
            timeline.open_step(comm.init().timings)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if (timeline := comm.init().timeline) is not None:
            timeline.close_step()

    def on_test_begin(self, logs: Any = None) -> None:
        if self._begun:  # validation, within fit
            self._average()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._average()
        if self.check:
            variables = [*self.model.weights, *self.model.optimizer.variables]
            when = f"at the end of epoch {epoch + 1}"
            common.require_equal(comm.init(), _arrays(variables), _names(variables), when)

    def on_train_end(self, logs: Any = None) -> None:
        self._begun = False

    def _average(self) -> None:
        if not self._averaged:
            self._averaged = True
            common.meet(comm.init())
            average_state(self.model)

    def _first_step(self, step: Callable[[Any], Any], iterator: Any) -> Any:
        """The first step of a model whose weights TensorFlow would make in the middle of it."""
        self.model.train_function = step
        spec = getattr(iterator, "element_spec", None)
        if spec is not None and not _has_call(self.model):
            self._trace(spec)
        elif spec is not None:
            inputs, _, _ = keras.utils.unpack_x_y_sample_weight(spec)
            symbols = keras.tree.map_structure(
                lambda of: keras.KerasTensor(of.shape, of.dtype.name), inputs
            )
            self.model(symbols)
        broadcast(self.model, root=self.root)
        return step(iterator)

    def _trace(self, spec: Any) -> None:
        """Makes the weights of a model without ``call``: a step is traced, and not run."""
        import tensorflow as tf

        averaging = _outermost(self.model.optimizer)
        averaging.traced = True
        try:
            tf.function(self.model.train_step).get_concrete_function(spec)
        finally:
            averaging.traced = False

    def _require_equal_steps(self) -> None:
        ranks = comm.init()
        promised = (
            ("steps an epoch", self.params.get("steps") or 0),
            ("epochs", self.params.get("epochs") or 0),
            ("epochs done before", self._epoch),
        )
        for name, mine in promised:
            each = common.of_each_rank(ranks, mine)
            known = {value for value in each if value or name == "epochs done before"}
            if len(known) > 1:
                table = "; ".join(f"rank {r}: {value or 'unknown'}" for r, value in enumerate(each))
                raise fail("comm-steps-planned", name=name, table=table, even=common.EVEN)


class AverageMetrics(keras.callbacks.Callback):  # type: ignore[misc]
    """Replaces the metrics of an epoch by their mean over ranks, for every later callback in the list.

    EarlyStopping, ReduceLROnPlateau and ModelCheckpoint then decide alike on each rank. The mean
    counts each rank once, however many samples it had.

    Raises:
        FairleadError: the ranks have other metrics, for example only some of them validate.
    """

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        ranks, logs = comm.init(), {} if logs is None else logs
        names = sorted(name for name, value in logs.items() if np.ndim(value) == 0)
        match = ranks.check_buffers_match([np.array(name) for name in names])
        if match.first is not None:
            others, mine = ", ".join(map(str, match.ranks)), ", ".join(names)
            raise fail("comm-metrics", epoch=epoch + 1, ranks=others, rank=ranks.rank, names=mine)
        values = np.array([float(logs[name]) for name in names], np.float64)
        (means,) = ranks.aggregate([values])
        logs.update(zip(names, means.tolist(), strict=True))


class Warmup(keras.callbacks.Callback):  # type: ignore[misc]
    """Raises the learning rate step by step from ``initial_lr`` to ``initial_lr * size``.

    The batch is ``size`` times as large as one rank's, and so may the learning rate be, but not from
    the start. Afterwards it is left alone, so that other callbacks can lower it.

    Args:
        initial_lr: the learning rate that is good for one rank.
        epochs: how long it takes, in epochs.
        steps: how long it takes, in steps; counts instead of ``epochs``.
        size: the factor; the number of ranks without it.
    Raises:
        FairleadError: the optimizer follows a schedule of its own, or Keras does not know how many
            steps an epoch has and ``steps`` is not given.
    Source: Goyal et al., "Accurate, Large Minibatch SGD" (arXiv:1706.02677), 2.1 and 2.2.
    """

    def __init__(
        self,
        initial_lr: float,
        epochs: float = 5,
        steps: int | None = None,
        size: int | None = None,
    ):
        super().__init__()
        self.initial_lr, self.epochs, self.steps, self.size = initial_lr, epochs, steps, size
        self._step = self._total = 0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        each = self.params.get("steps")
        if self.steps is None and each is None:
            raise fail("comm-warmup-length")
        self._total = self.steps if self.steps is not None else round(self.epochs * (each or 0))
        if each is not None:
            self._step = epoch * each

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if self._step <= self._total:
            done = self._step / self._total if self._total else 1.0
            factor = size() if self.size is None else self.size
            try:
                self.model.optimizer.learning_rate = self.initial_lr * (1 + (factor - 1) * done)
            except TypeError as exc:
                raise fail("comm-warmup-schedule") from exc
        self._step += self.model.steps_per_execution


def on_rank_0(*callbacks: Any) -> list[Any]:
    """The callbacks on rank 0, none elsewhere: for those that write, such as ModelCheckpoint.

    >>> fit(callbacks=[Broadcast(), AverageMetrics(), *on_rank_0(ModelCheckpoint(path))])
    ... # doctest: +SKIP
    """
    return list(callbacks) if rank() == 0 else []


class _Averaging:
    """What ``apply`` of a wrapped optimizer is: average, then the optimizer's own."""

    def __init__(self, optimizer: Any, team: Comm | None = None):
        self.optimizer, self.team = optimizer, team
        self.ready = False
        self.traced = False  # a step is traced for the weights that it makes

    def attach(self) -> None:
        setattr(self.optimizer, _MARK, self)
        self.optimizer.apply = _as_written(self.apply)

    def detach(self) -> None:
        delattr(self.optimizer, _MARK)
        del self.optimizer.apply

    def apply(self, grads: Any, trainable_variables: Any = None) -> None:
        if self.traced:
            return
        ranks, optimizer = self.team or comm.init(), self.optimizer
        if ranks.size > 1:
            self._require_broadcast()
            grads = mean_gradients(optimizer, grads, trainable_variables, ranks)
        type(optimizer).apply(optimizer, grads, trainable_variables)

    def start(self, gradients: list[Any], variables: list[Any]) -> Started:
        ranks, optimizer = self.team or comm.init(), self.optimizer
        wait: Callable[[], list[Any]] = lambda: gradients  # noqa: E731
        if ranks.size > 1:
            self._require_broadcast()
            wait = _started(ranks, gradients, variables)
        finish = lambda: type(optimizer).apply(optimizer, wait(), variables)  # noqa: E731
        return Started(_as_written(finish))

    def _require_broadcast(self) -> None:
        if not self.ready:
            raise fail("comm-not-broadcast-model")


def mean_gradients(
    optimizer: Any, grads: Any, trainable_variables: Any = None, ranks: Comm | None = None
) -> list[Any]:
    """What ``optimizer.apply`` is to be given in place of ``grads``. Collective, unless all are means."""
    known = optimizer._trainable_variables if trainable_variables is None else trainable_variables
    given = list(grads)
    if all(each is None or getattr(each, IS_MEAN, False) for each in given):
        return given
    return _average(ranks or comm.init(), given, list(known), is_scaled(optimizer))


def is_scaled(optimizer: Any) -> bool:
    """Whether infinities are to be expected, for the loss is scaled: they lower the scale."""
    return isinstance(optimizer, keras.optimizers.LossScaleOptimizer)


def _as_written(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function``, which TensorFlow does not rewrite where a ``tf.function`` calls it."""
    if _backend() == "torch":
        return function
    import tensorflow as tf

    kept: Callable[..., Any] = tf.autograph.experimental.do_not_convert(function)
    return kept


def _outermost(optimizer: Any) -> _Averaging:
    """Where gradients are averaged, moved outwards if something was put around the optimizer.

    compile() puts a LossScaleOptimizer around it where the policy is mixed_float16. That one skips a
    step with infinite gradients, which every rank must decide alike: from the averaged ones.
    """
    inner = optimizer
    while not hasattr(inner, _MARK):
        inner = getattr(inner, "inner_optimizer", None)
        if inner is None:
            raise fail("comm-not-distributed-loaded", type=type(optimizer).__name__)
    averaging: _Averaging = getattr(inner, _MARK)
    if inner is not optimizer:
        averaging.detach()
        averaging = _Averaging(optimizer, averaging.team)
        averaging.attach()
    return averaging


def _average(
    ranks: Comm, gradients: list[Any], variables: Sequence[Any], scaled: bool
) -> list[Any]:
    """The mean of gradients over ranks, in the framework's own tensors; None stays None."""
    names = _names(variables)
    if _backend() == "torch":
        import torch

        from fairlead.comm.torch import average_tensors

        if torch.compiler.is_compiling():
            raise fail("comm-jit-torch")
        like = [v.value for v in variables]
        common.step_averages(ranks)
        means = average_tensors(gradients, like, names, ranks, any_values=scaled)
        common.step_made(ranks)
        return means
    from fairlead.comm.tensorflow import averaged, refuse_xla

    refuse_xla(_WHERE, _REMEDY)
    return averaged(ranks, gradients, names, _WHERE, any_values=scaled, step=True)


def _started(
    ranks: Comm, gradients: list[Any], variables: Sequence[Any]
) -> Callable[[], list[Any]]:
    """What waits for the means of gradients that are on their way from now on."""
    names = _names(variables)
    if _backend() == "torch":
        from fairlead.comm.torch import start_tensors

        return start_tensors(gradients, [v.value for v in variables], names, ranks)
    import tensorflow as tf

    from fairlead.comm.tensorflow import refuse_xla

    refuse_xla(_WHERE, _REMEDY)
    dense = [tf.convert_to_tensor(gradient) for gradient in gradients if gradient is not None]
    there = [names[i] for i, gradient in enumerate(gradients) if gradient is not None]
    under_way: dict[int, Callable[[], list[Array]]] = {}
    numbers = itertools.count()

    def begin(*values: Any) -> Array:
        # TensorFlow takes the inputs back when this returns.
        kept = [np.array(value) for value in values]
        with common.in_words():
            number = next(numbers)
            under_way[number] = common.start(ranks, kept, there)
        return np.array(number, np.int64)

    def finish(number: Any) -> list[Array]:
        with common.in_words():
            means = under_way.pop(int(number))()
        common.step_made(ranks)
        return means

    number = tf.numpy_function(begin, dense, tf.int64)

    def wait() -> list[Any]:
        means = tf.numpy_function(finish, [number], [g.dtype for g in dense])
        for mean, given in zip(means, dense, strict=True):
            mean.set_shape(given.shape)
        return common.present(lambda _: means, gradients)

    return wait


def _backend() -> str:
    name = str(keras.backend.backend())
    if name not in ("tensorflow", "torch"):
        raise fail("comm-keras-backend", name=name)
    return name


def _names(variables: Sequence[Any]) -> list[str]:
    return [variable.path for variable in variables]


def _arrays(variables: Sequence[Any]) -> list[Array]:
    return [np.asarray(keras.ops.convert_to_numpy(variable.value)) for variable in variables]


def _assign(variables: Sequence[Any], values: Sequence[Array]) -> None:
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)
