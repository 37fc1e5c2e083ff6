"""Data-parallel TensorFlow without Keras' ``fit``: eager, and inside of ``tf.function``.

    from fairlead.comm.tensorflow import DistributedGradientTape, average, broadcast, rank, size

    x, y = x[rank() :: size()], y[rank() :: size()]
    broadcast([*model.variables, *optimizer.variables])

    @tf.function
    def step(x, y):
        with DistributedGradientTape() as tape:
            loss = loss_of(model(x), y)
        variables = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
        return average(loss)

Every rank computes the gradients of its own batch, and :func:`aggregate` gives all ranks their mean: one
fused operation for the whole list. Inside of a ``tf.function`` collectives run in the order in which they
were traced, through ``tf.cond`` and ``tf.while_loop`` as well, so that all ranks keep one order.
:func:`carrier` says what carries the tensors. :mod:`fairlead.comm.keras` is built on this.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import numpy as np
import tensorflow as tf

from fairlead import comm
from fairlead.base.errors import FairleadError, fail
from fairlead.comm import delayed as late
from fairlead.comm import rank, size
from fairlead.comm.core import Array, Comm
from fairlead.comm.frameworks import common
from fairlead.comm.frameworks.tensorflow_op import Carrier, chosen

__all__ = [
    "Delayed",
    "DistributedGradientTape",
    "aggregate",
    "average",
    "broadcast",
    "carrier",
    "check_state",
    "rank",
    "size",
]

_MARK = "_fairlead_broadcast"
_SMALL = (tf.float16, tf.bfloat16)
_AVERAGED = (*_SMALL, tf.float32, tf.float64, tf.complex64, tf.complex128)


def _untouched(function: Callable[..., Any]) -> Any:
    """``function``, which AutoGraph neither rewrites, nor its errors."""

    @wraps(function)
    def whole(*words: Any, **given: Any) -> Any:
        try:
            return function(*words, **given)
        except FairleadError as exc:
            setattr(exc, "ag_pass_through", True)  # noqa: B010, mypy knows no such attribute
            raise

    made: Callable[..., Any] = tf.autograph.experimental.do_not_convert(whole)
    return made


@_untouched
def aggregate(
    tensors: Any,
    team: Comm | None = None,
    names: Sequence[Any] = (),
    compression: str | None = None,
    any_values: bool = False,
) -> Any:
    """The mean of each tensor over all ranks. Collective.

    Args:
        tensors: a tensor, or lists, tuples and dicts of them; float16, bfloat16, float32, float64,
            complex64 or complex128 of any shapes, the same on every rank. None stays None, where it is
            None on every rank. IndexedSlices, as of an embedding, are made dense.
        team: of :meth:`fairlead.comm.Comm.team`, for calls that run concurrently with other collectives.
        names: for errors: the variables that these are gradients of, or texts, one a tensor.
        compression: as for :meth:`fairlead.comm.Comm.aggregate`.
        any_values: as there.
    Returns:
        The same structure. On one rank: ``tensors``.
    Raises:
        FairleadError: a tensor has another dtype; the function is compiled by XLA; the ranks disagree on
            number, shape or dtype of tensors, or on their number of steps. Inside of ``tf.function`` what
            only a run can show is a ``tf.errors.OpError`` with the same words.
    """
    ranks, where = team or comm.init(), "comm.tensorflow.aggregate"
    if ranks.size == 1:
        return tensors
    given = tf.nest.flatten(tensors)
    means = averaged(ranks, given, _names(names), where, compression, any_values=any_values)
    return tf.nest.pack_sequence_as(tensors, means)


def DistributedGradientTape(tape: Any = None, team: Comm | None = None) -> Any:
    """``tape``, whose ``gradient`` from now on gives the mean of the gradients over all ranks.

    It is the same object: only its method ``gradient`` is another; ``jacobian`` is that of the rank.

    Args:
        tape: a ``tf.GradientTape``; a new one without it.
        team: as for :func:`aggregate`.
    Raises:
        FairleadError: by ``gradient``: as :func:`aggregate`; a source is a variable that
            :func:`broadcast` was never given.
    """
    made = tf.GradientTape() if tape is None else tape
    own = made.gradient

    @_untouched
    def gradient(target: Any, sources: Any, *more: Any, **given: Any) -> Any:
        gradients = own(target, sources, *more, **given)
        ranks, variables = team or comm.init(), tf.nest.flatten(sources)
        if ranks.size == 1:
            return gradients
        _require_broadcast(variables)
        where = "comm.tensorflow.DistributedGradientTape"
        means = averaged(ranks, tf.nest.flatten(gradients), _names(variables), where, step=True)
        return tf.nest.pack_sequence_as(gradients, means)

    made.gradient = gradient
    return made


@_untouched
def broadcast(variables: Any, root: int = 0) -> None:
    """Gives every rank rank ``root``'s values, and compares them. Collective.

    It includes all that training changes: weights, what layers keep besides the trained variables, and the
    optimizer's state. Variables that are made later need a call of their own.

    Args:
        variables: of TensorFlow or Keras, in lists, tuples and dicts; of any dtype but string.
        root: the rank whose values count.
    Raises:
        FairleadError: there is no rank ``root``; the ranks have other variables; they hold other values
            afterwards; it is called inside of ``tf.function``.
    """
    ranks, held, names = comm.init(), *_held(variables, "comm.tensorflow.broadcast")
    values = common.broadcast(ranks, [v.numpy() for v in held], names, root)
    for variable, value in zip(held, values, strict=True):
        variable.assign(value)
        setattr(variable, _MARK, True)
    common.require_equal(ranks, [v.numpy() for v in held], names, "after the broadcast")


@_untouched
def check_state(variables: Any, when: str = "now") -> None:
    """Compares variables over ranks, bit by bit. Collective.

    Args:
        variables: as for :func:`broadcast`.
        when: for the error's words.
    Raises:
        FairleadError: they differ; the first that does is named with the ranks that hold it.
    """
    held, names = _held(variables, "comm.tensorflow.check_state")
    remedy = (
        "call `broadcast` once, before the first step, and change variables alike on every rank"
    )
    common.require_equal(comm.init(), [v.numpy() for v in held], names, when, remedy)


@_untouched
def average(values: Any) -> Any:
    """The mean of each value over ranks, summed in double precision; for metrics. Collective.

    Each rank counts once, however many samples it had.

    Args:
        values: a number or tensor of any real dtype, or lists, tuples and dicts of them.
    Returns:
        Tensors in the same structure; a float keeps its dtype, everything else becomes float64.
    Raises:
        FairleadError: as :func:`aggregate`.
    """
    given = [tf.convert_to_tensor(value) for value in tf.nest.flatten(values)]
    wide = [tf.cast(value, tf.float64) for value in given]
    means = averaged(comm.init(), wide, (), "comm.tensorflow.average", any_values=True)
    return tf.nest.pack_sequence_as(
        values,
        [
            tf.cast(mean, value.dtype) if value.dtype.is_floating else mean
            for mean, value in zip(means, given, strict=True)
        ],
    )


class Delayed:
    """Means of gradients that are applied a step late: :class:`fairlead.comm.delayed.Delayed` of tensors.

    For a loop in Python around steps that may be compiled:

        delayed = Delayed(Schedule.fractions(steps, warmup=0.1), momentum=0.9)
        for x, y in batches:
            gradients, loss = gradients_of(x, y)  # a tf.function
            for means in delayed.step(gradients, loss):
                apply(means, rate * delayed.scale)  # another
        for means in delayed.flush():
            apply(means, rate * delayed.scale)

    Attributes:
        scale, diverged_at: as there.
    """

    def __init__(
        self,
        schedule: late.Schedule,
        *,
        momentum: float,
        tested: bool = False,
        team: Comm | None = None,
        names: Sequence[Any] = (),
    ):
        """
        Args:
            schedule: as for :class:`fairlead.comm.delayed.Delayed`, like ``momentum`` and ``tested``.
            momentum: of the optimizer.
            tested: as there.
            team: as for :func:`aggregate`.
            names: as for :func:`aggregate`.
        Raises:
            FairleadError: as there.
        """
        self._inner = late.Delayed(
            team or comm.init(), schedule, momentum=momentum, tested=tested, steady=True
        )
        self._names = _names(names)
        self._given: Any = None
        common.end_together()

    @property
    def scale(self) -> float:
        """What to multiply the learning rate by for what the last :meth:`step` gave."""
        return self._inner.scale

    @property
    def diverged_at(self) -> int | None:
        """The step at which it went back to synchronous steps for good; None."""
        return self._inner.diverged_at

    @_untouched
    def step(self, tensors: Any, loss: Any = math.nan) -> list[Any]:
        """Hands in this step's gradients, of one structure in all steps. Collective.

        Args:
            tensors: as for :func:`aggregate`.
            loss: this rank's, a number or scalar; a divergence of its mean ends the delay. NaN: not checked.
        Returns:
            The means to apply now, in this order, each in the structure of ``tensors``: none, one or two.
        Raises:
            FairleadError: as :func:`aggregate`; it is called inside of ``tf.function``.
        """
        where = "comm.tensorflow.Delayed.step"
        _refuse_tracing(where)
        present = [tf.convert_to_tensor(t) for t in tf.nest.flatten(tensors) if t is not None]
        _refuse_dtypes(present, self._names, where)
        self._given = tensors
        wide = [tf.cast(t, tf.float32) if t.dtype in _SMALL else t for t in present]
        with common.naming(self._names):
            # The tensors' own memory, which stays as it is while an array holds it.
            ready = self._inner.step([np.asarray(t) for t in wide], float(loss))
        return [self._tensors(means) for means in ready]

    def flush(self) -> list[Any]:
        """The mean that is still on its way, if any; to be applied after the last step. Collective."""
        return [self._tensors(means) for means in self._inner.flush()]

    def _tensors(self, means: Sequence[Array]) -> Any:
        def tensors(given: list[Any]) -> list[Any]:
            # In the arrays' own memory, which they keep from being used again.
            made = [tf.experimental.dlpack.from_dlpack(mean.__dlpack__()) for mean in means]
            return [tf.cast(t, like.dtype) for t, like in zip(made, given, strict=True)]

        flat = common.present(tensors, tf.nest.flatten(self._given))
        return tf.nest.pack_sequence_as(self._given, flat)


def carrier() -> Carrier:
    """What carries tensors to the core: an operation of TensorFlow, or ``numpy_function`` and why.

    Collective when it is called first, and before any :func:`aggregate`.
    """
    return chosen(comm.init())[0]


def averaged(
    ranks: Comm,
    tensors: Sequence[Any],
    names: Sequence[str],
    where: str,
    compression: str | None = None,
    *,
    any_values: bool = False,
    step: bool = False,
) -> list[Any]:
    """:func:`aggregate` of a flat list.

    Args:
        where: for errors.
        any_values: as for :meth:`fairlead.comm.Comm.aggregate`.
        step: these are all gradients of a step; for a timeline.
    """
    refuse_xla(where)
    common.end_together()
    of_all = zip(names, tensors, strict=True) if len(names) == len(tensors) else ()
    names = [name for name, tensor in of_all if tensor is not None]

    def means(present: list[Any]) -> list[Any]:
        dense = [tf.convert_to_tensor(tensor) for tensor in present]  # embeddings' are slices
        _refuse_dtypes(dense, names, where)
        return _means(ranks, dense, names, compression, any_values, step)

    return common.present(means, tensors)


def _means(
    ranks: Comm,
    dense: Sequence[Any],
    names: Sequence[str],
    compression: str | None,
    any_values: bool,
    step: bool,
) -> list[Any]:
    _, op = chosen(ranks)
    eager = tf.executing_eagerly()
    if op is not None:

        def make() -> list[Any]:
            means = op.means(ranks, dense, names, compression, any_values)
            if step and ranks.timeline is not None and not eager:
                with tf.control_dependencies(means):
                    tf.numpy_function(lambda: common.step_made(ranks), [], [])
            return means

        with tf.device("CPU:0"):
            means = make() if eager else _in_turn(make)
        if step and eager:
            common.step_made(ranks)
        return means

    def run(*values: Any) -> list[Array]:
        # TensorFlow owns the inputs, and takes over the outputs: both new each time.
        arrays = [np.asarray(value) for value in values]
        means = common.aggregate(
            ranks, arrays, names, compression=compression, any_values=any_values
        )
        if step:
            common.step_made(ranks)
        return means

    if eager:
        return [tf.convert_to_tensor(mean) for mean in run(*(tensor.numpy() for tensor in dense))]
    dtypes = [tensor.dtype for tensor in dense]
    in_words = common.in_words()(run)
    means = _in_turn(lambda: list(tf.numpy_function(in_words, dense, dtypes)))
    for mean, tensor in zip(means, dense, strict=True):
        mean.set_shape(tensor.shape)
    return means


_turn: Any = None


def _in_turn(make: Callable[[], list[Any]]) -> list[Any]:
    """What ``make`` adds to a graph, after all collectives that were traced before it.

    Operations on one variable are kept in order by TensorFlow, also where branches, loops and functions
    lie between them; those on none are not.
    """
    global _turn
    if _turn is None:
        with tf.init_scope(), tf.device("CPU:0"):
            _turn = tf.Variable(0, dtype=tf.int64, trainable=False, name="fairlead_turn")
    with tf.control_dependencies([_turn.assign_add(1, read_value=False)]):
        results = make()
    with tf.control_dependencies(results):
        _turn.assign_add(1, read_value=False)
    return results


def refuse_xla(where: str, remedy: str = "`tf.function(jit_compile=False)`") -> None:
    """Raises:
    FairleadError: what is traced here is compiled by XLA, or belongs to a strategy of ``tf.distribute``,
        or to a session of TensorFlow 1.
    """
    from tensorflow.python.ops import control_flow_util

    if not tf.executing_eagerly():
        if control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph()):
            raise fail("comm-jit-xla", where=where, remedy=remedy)
        if not tf.compat.v1.executing_eagerly_outside_functions():
            raise fail("comm-session", where=where)
    refuse_strategy(tf.distribute.get_strategy())


def refuse_strategy(strategy: Any) -> None:
    """Raises:
    FairleadError: it has more than one replica.
    """
    if strategy is not None and strategy.num_replicas_in_sync > 1:
        raise fail("comm-strategy")


def _refuse_tracing(where: str) -> None:
    if not tf.executing_eagerly():
        raise fail("comm-traced", where=where)


def _refuse_dtypes(tensors: Sequence[Any], names: Sequence[str], where: str) -> None:
    for index, tensor in enumerate(tensors):
        if tensor.dtype not in _AVERAGED:
            name = f" ({names[index]})" if index < len(names) else ""
            raise fail(
                "comm-dtype-tensor",
                index=index,
                name=name,
                where=where,
                dtype_name=tensor.dtype.name,
                averaged=", ".join(dtype.name for dtype in _AVERAGED),
            )


def _require_broadcast(variables: Sequence[Any]) -> None:
    for variable in variables:
        held = _tensorflows(variable)
        if isinstance(held, tf.Variable) and not hasattr(held, _MARK):
            raise fail("comm-not-broadcast-variables", names=_names([variable])[0])


def _held(variables: Any, where: str) -> tuple[list[Any], list[str]]:
    """TensorFlow's variables in a structure, and their names."""
    _refuse_tracing(where)
    flat = tf.nest.flatten(variables)
    held, names = [_tensorflows(variable) for variable in flat], _names(flat)
    for variable, name in zip(held, names, strict=True):
        if not isinstance(variable, tf.Variable) or variable.dtype == tf.string:
            kind = variable.dtype.name if isinstance(variable, tf.Variable) else type(variable)
            raise fail("comm-dtype-variable", name=name, where=where, kind=kind)
    return held, names


def _tensorflows(variable: Any) -> Any:
    """Keras' variables hold one of TensorFlow; everything else is itself."""
    if isinstance(variable, (tf.Tensor, tf.Variable)):
        return variable
    inner = getattr(variable, "value", variable)
    return inner if isinstance(inner, tf.Variable) else variable


def _names(given: Sequence[Any]) -> list[str]:
    """Strings unchanged, and the names of variables: Keras' by path, TensorFlow's without the number."""
    return [
        name if isinstance(name, str) else str(getattr(name, "path", "") or _without_number(name))
        for name in tf.nest.flatten(list(given))
    ]


def _without_number(variable: Any) -> str:
    try:
        return str(variable.name).removesuffix(":0")
    except (AttributeError, ValueError):  # an eager tensor has no name
        return type(variable).__name__
