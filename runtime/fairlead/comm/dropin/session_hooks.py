"""TF 1: hooks of sessions, for ``MonitoredTrainingSession`` and estimators, and optimizers that average.

    hooks = [mc.InitConfigBcastTensors(max_step_global, sync_frac, 0, 0)]
    with tf.train.MonitoredTrainingSession(hooks=hooks) as session: ...

Rank 0's variables reach all ranks after the last of what gives them values: when the session was made
and its checkpoint restored, and again before the first training step, so that an initializer or a
restore in between does not undo it, and before the first one after an initializer is run once more.
"""

from __future__ import annotations

import datetime
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow

from fairlead import comm
from fairlead.comm.core import Comm
from fairlead.comm.dropin import cray, tensors, weights
from fairlead.comm.dropin.rules import Operation
from fairlead.comm.dropin.teams import say_on_rank_0
from fairlead.comm.frameworks import common

__all__ = ["AverageEvalMetrics", "AverageTrainMetrics", "BcastTensors", "InitConfigBcastTensors"]

_v1: Any = tensorflow.compat.v1
_Hook: Any = _v1.train.SessionRunHook
_MARK = "_fairlead_averages"


class _Runs:
    """Classifies runs of a session by the operations that their fetches depend on."""

    def __init__(self, graph: Any):
        self._graph = graph
        self._writers = {v.initializer.name for v in _v1.global_variables()}
        self._known: dict[tuple[str, ...], tuple[bool, bool]] = {}

    def kind(self, fetches: Any) -> tuple[bool, bool]:
        """Whether a run of these averages gradients, and whether it gives variables a value."""
        operations = tuple(sorted({op.name for op in self._operations(fetches)}))
        if operations not in self._known:
            self._known[operations] = self._look(operations)
        return self._known[operations]

    def _look(self, names: Sequence[str]) -> tuple[bool, bool]:
        trains = writes = False
        left, visited = [self._graph.get_operation_by_name(name) for name in names], set()
        while left:
            op = left.pop()
            if op.name in visited:
                continue
            visited.add(op.name)
            trains |= op.type == "PyFunc" and tensors.GRADIENTS in op.name
            writes |= op.type == "RestoreV2" or op.name in self._writers
            left += [*op.control_inputs, *(tensor.op for tensor in op.inputs)]
        return trains, writes

    def _operations(self, fetches: Any) -> Iterator[Any]:
        if isinstance(fetches, str):
            fetches = self._graph.as_graph_element(fetches)
        if isinstance(fetches, Mapping):
            fetches = list(fetches.values())
        if isinstance(fetches, (list, tuple)):
            for fetch in fetches:
                yield from self._operations(fetch)
        elif isinstance(fetches, _v1.Operation):
            yield fetches
        elif getattr(fetches, "op", None) is not None:
            yield fetches.op


class BcastTensors(_Hook):  # type: ignore[misc]
    """Gives every rank rank ``root``'s variables, and compares them bit by bit.

    These are all global variables: the optimizer's slots, the statistics of batch normalization and the
    step as well as the weights.

    Raises:
        FairleadError: the ranks do not hold the same values afterwards; the variable is named.
    """

    def __init__(self, root: int = 0):
        self._root = root
        self._due = True

    def begin(self) -> None:
        self._runs = _Runs(_v1.get_default_graph())
        every = _v1.global_variables()
        self._variables = [v for v in every if v.dtype.base_dtype != tensorflow.string]
        self._names = [v.op.name for v in self._variables]
        self._reads = [v.read_value() for v in self._variables]
        self._assign = broadcast_op(self._variables, tensors.from_root(self._root))
        left = [v.op.name for v in every if v.dtype.base_dtype == tensorflow.string]
        if left:
            say_on_rank_0(f"not broadcast, for they are text: {', '.join(left)}")

    def after_create_session(self, session: Any, coord: Any) -> None:
        self._broadcast(session)
        self._due = True

    def before_run(self, run_context: Any) -> None:
        trains, writes = self._runs.kind(run_context.original_args.fetches)
        if trains and self._due:
            self._broadcast(run_context.session)
            self._due = False
        if writes:
            self._due = True

    def _broadcast(self, session: Any) -> None:
        session.run(self._assign)
        common.require_equal(
            comm.init(),
            [np.asarray(value) for value in session.run(self._reads)],
            self._names,
            "after the broadcast",
            "let no rank change a variable outside training; see that all made the same graph",
        )
        say_on_rank_0(
            f"{len(self._names)} variables are rank {self._root}'s on every rank, and were compared"
        )


class InitConfigBcastTensors(BcastTensors):
    """:class:`BcastTensors`, which also starts the plugin, with the size of the trainable variables.

    Args:
        max_step_global: steps of all ranks together; one rank makes its share of them.
        sync_frac: the synchronous fraction of these, from the beginning; 1 for all.
        thread_team: team that is configured.
        trans_alg: without meaning here.
        perf_freq: steps between two lines of what was waited.
    """

    def __init__(
        self,
        max_step_global: int,
        sync_frac: float,
        thread_team: int = 0,
        trans_alg: int = 0,
        perf_freq: int = 200,
    ):
        super().__init__()
        self._max_step_global, self._sync_frac = max_step_global, sync_frac
        self._team, self._algorithm, self._freq = thread_team, trans_alg, perf_freq

    def begin(self) -> None:
        size = sum(v.shape.num_elements() for v in _v1.trainable_variables())
        if not cray.started():
            cray.init(1, 1, size, "tensorflow")
        ranks = comm.size()
        max_steps = max(int(self._max_step_global / ranks), 1)
        ksteps = max(int(self._sync_frac * self._max_step_global / ranks), 1)
        say_on_rank_0(
            f"{self._max_step_global} steps of {ranks} rank(s) are {max_steps} of each, {ksteps} of them"
            " synchronous"
        )
        cray.config_team(
            self._team,
            self._algorithm,
            ksteps=ksteps,
            max_steps=max_steps,
            verbosity=2,
            perf_freq=self._freq,
        )
        super().begin()


class _Metrics(_Hook):  # type: ignore[misc]
    """Fetches loss and metrics in each step, and averages them over ranks.

    Attributes:
        training: steps are the runs that average gradients; all runs without it.
    """

    training = False

    def __init__(self, loss: Any, metrics: Any = None, batch_size: int = 1):
        self._fetched = {"loss": loss, **_named(metrics)}
        self._batch = batch_size

    def begin(self) -> None:
        self._runs = _Runs(_v1.get_default_graph())
        self._steps, self._begun = 0, time.perf_counter()
        self._sums = np.zeros(len(self._fetched))

    def before_run(self, run_context: Any) -> Any:
        # Another run may lack what the loss is computed from.
        if self.training and not self._runs.kind(run_context.original_args.fetches)[0]:
            return None
        return _v1.train.SessionRunArgs(self._fetched)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        if run_values.results is None:
            return
        self._steps += 1
        self._sums += [float(np.mean(v)) for v in run_values.results.values()]

    def _mean(self) -> tuple[dict[str, float], float]:
        """Of the steps since the last time, over all ranks; and the samples a second of all ranks."""
        values = self._sums / max(self._steps, 1)
        cray.average(values)
        now = time.perf_counter()
        rate = self._batch * self._steps * comm.size() / max(now - self._begun, 1e-9)
        self._steps, self._begun = 0, now
        self._sums[:] = 0
        return dict(zip(self._fetched, values.tolist(), strict=True)), rate


class AverageTrainMetrics(_Metrics):
    """Says loss and metrics of the training, averaged over ranks, every ``log_freq`` steps.

    Args:
        loss: a tensor.
        metrics: a mapping of names to tensors, or a list of them, or None.
        batch_size: of one rank.
        lr, epoch: shown as they are, or what they give when called.
    """

    training = True

    def __init__(
        self,
        loss: Any,
        metrics: Any = None,
        log_freq: int = 100,
        batch_size: int = 1,
        lr: Any = None,
        epoch: Any = None,
    ):
        super().__init__(loss, metrics, batch_size)
        self._freq, self._shown = max(log_freq, 1), {"lr": lr, "epoch": epoch}

    def after_run(self, run_context: Any, run_values: Any) -> None:
        super().after_run(run_context, run_values)
        if self._steps == self._freq:
            means, rate = self._mean()
            given = {k: v() if callable(v) else v for k, v in self._shown.items() if v is not None}
            _print("training", {**given, **means}, rate)


class AverageEvalMetrics(_Metrics):
    """Says loss and metrics of an evaluation, averaged over its steps and over ranks, at its end."""

    def end(self, session: Any) -> None:
        _print("evaluation", *self._mean())


def broadcast_op(variables: Sequence[Any], collective: tensors.Collective | Operation) -> Any:
    """The operation of a graph that gives ``variables`` what ``collective`` makes of their values."""
    values = tensors.over(collective, [v.read_value() for v in variables])
    assigned = [_v1.assign(v, value) for v, value in zip(variables, values, strict=True)]
    return tensorflow.group(*assigned, name="fairlead_broadcast")


def is_optimizer(optimizer: Any) -> bool:
    """Whether it is for :func:`averaging`."""
    return isinstance(optimizer, _v1.train.Optimizer)


def averaging(
    optimizer: Any,
    mean: Callable[[list[Any]], list[Any]],
    ranks: Callable[[], Comm],
    broadcast: str,
) -> Any:
    """``optimizer`` itself, of ``tf.compat.v1.train``, whose gradients from now on are averaged by ``mean``.

    It does so in ``compute_gradients``, hence before the program clips them or unscales the loss. In a graph, the
    second step compares the variables on ``ranks``; ``broadcast`` is the call that has to come before.
    """
    if not hasattr(optimizer, _MARK):
        setattr(optimizer, _MARK, True)
        optimizer._optimizer = optimizer  # Horovod's wrapper has the wrapped one there
        computed = optimizer.compute_gradients

        def compute_gradients(*args: Any, **named: Any) -> list[tuple[Any, Any]]:
            pairs = computed(*args, **named)
            gradients = [gradient for gradient, _ in pairs]
            trained = [variable for gradient, variable in pairs if gradient is not None]
            if trained and not tensorflow.executing_eagerly() and not tensorflow.inside_function():
                checked = weights.in_graph(trained, ranks, broadcast)
                with tensorflow.control_dependencies([checked]):
                    gradients = common.present(_copies, gradients)
            means = mean(gradients)
            return [(g, variable) for g, (_, variable) in zip(means, pairs, strict=True)]

        optimizer.compute_gradients = compute_gradients
    return optimizer


def _copies(given: list[Any]) -> list[Any]:
    return [tensorflow.identity(tensorflow.convert_to_tensor(tensor)) for tensor in given]


def _named(metrics: Any) -> dict[str, Any]:
    if metrics is None:
        return {}
    if isinstance(metrics, Mapping):
        return dict(metrics)
    every = metrics if isinstance(metrics, (list, tuple)) else [metrics]
    return {getattr(m, "name", f"metric {i}"): m for i, m in enumerate(every)}


def _print(what: str, values: Mapping[str, Any], rate: float) -> None:
    if comm.rank() == 0:
        now = datetime.datetime.now().isoformat(" ", "seconds")
        shown = ", ".join(
            f"{k} {v:.6g}" if isinstance(v, float) else f"{k} {v}" for k, v in values.items()
        )
        sys.stdout.write(f"{now} {what}: {shown}; {rate:.1f} samples/s on {comm.size()} rank(s)\n")
