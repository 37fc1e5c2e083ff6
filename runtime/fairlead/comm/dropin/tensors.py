"""A collective on tensors of any kind: NumPy arrays, TensorFlow's in a graph or eager, torch's.

Each collective of a session's graph occupies a thread of TensorFlow's until all ranks have come to it, and a
session runs what is ready in any order. With fewer threads than collectives, one rank could wait in one of them
and another rank in another, forever: so sessions get threads enough.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fairlead import comm
from fairlead.base.errors import fail
from fairlead.comm.core import Array
from fairlead.comm.dropin.failures import HorovodInternalError
from fairlead.comm.dropin.rules import Operation
from fairlead.comm.dropin.teams import made_equal, say_on_rank_0
from fairlead.comm.frameworks import common

# Each array becomes one of the same dtype and shape. No gradient goes back through it.
Collective = Callable[[list[Array]], list[Array]]
# Name of the operations that `gradients` makes, by which the hooks find them in a graph.
GRADIENTS = "fairlead_gradients"
# Collections of a graph.
_ORDERED, _COUNTED = "fairlead_ordered", "fairlead_collectives"
_MARK = "_fairlead_threads"


def from_root(root: int) -> Collective:
    """What gives each rank the arrays of rank ``root``."""

    def broadcast(arrays: list[Array]) -> list[Array]:
        made_equal.add("broadcast")
        return common.broadcast(comm.init(), arrays, (), root)

    return broadcast


def over(collective: Collective | Operation, values: Sequence[Any]) -> list[Any]:
    """``collective`` of ``values``, as new tensors of their kind and static shape.

    In a graph, this makes the operation that does it when it is run. Through an :class:`Operation` gradients go back
    by its rule, on tapes, in graphs and in torch.
    """
    if not values:
        return []
    kind = _kind(values)
    if kind == "numpy":
        arrays = [np.asarray(value) for value in values]
        return _moved(collective, arrays, [len(np.atleast_1d(array)) for array in arrays])
    if kind == "torch":
        return _over_torch(collective, values)
    return _over_tensorflow(collective, [value_of(value) for value in values])


def _moved(
    collective: Collective | Operation, arrays: list[Array], rows: Sequence[int]
) -> list[Array]:
    if isinstance(collective, Operation):
        return collective.move(arrays, rows)
    return collective(arrays)


def in_order(collective: Collective | Operation, values: Sequence[Any]) -> list[Any]:
    """:func:`over`; in a graph of TF 1 after the previous one, so that all ranks keep one order.

    A session runs operations in any order, and each run of one then runs those before it as well. What takes a
    gradient back keeps the order, too.
    """
    tf = sys.modules.get("tensorflow")
    if not values or tf is None or not _in_session_graph(tf, values):
        return over(collective, values)
    return _over_tensorflow(collective, [value_of(value) for value in values], _ordered)


def gradients(collective: Collective | Operation, values: Sequence[Any]) -> list[Any]:
    """:func:`over`, in operations called :data:`GRADIENTS`, which may run concurrently with all others."""
    tf = sys.modules.get("tensorflow")
    if tf is None:
        return over(collective, values)
    with tf.name_scope(GRADIENTS):
        results = over(collective, values)
    if results and _in_session_graph(tf, values):
        _expect(tf, results[0].op)
    return results


def _kind(values: Sequence[Any]) -> str:
    torch = sys.modules.get("torch")
    if torch is not None and any(isinstance(value, torch.Tensor) for value in values):
        return "torch"
    numpy = all(isinstance(value, (np.ndarray, np.generic)) for value in values)
    return "numpy" if numpy else "tensorflow"


def _in_session_graph(tf: Any, values: Sequence[Any]) -> bool:
    eager = tf.executing_eagerly() or tf.inside_function()
    return not eager and _kind(values) == "tensorflow"


def _over_torch(collective: Collective | Operation, values: Sequence[Any]) -> list[Any]:
    import torch

    if any(value.device.type != "cpu" for value in values):
        raise fail("comm-device-tensor-gpu")
    rows = [len(value) if value.dim() else 1 for value in values]
    if not isinstance(collective, Operation) or not torch.is_grad_enabled():
        return _moved_torch(collective, values, rows)
    return list(_torch_function().apply(collective, rows, *values))


def _moved_torch(
    collective: Collective | Operation, values: Sequence[Any], rows: Sequence[int]
) -> list[Any]:
    import torch

    with torch.no_grad():
        # NumPy has no bfloat16; float32 holds each of its values.
        wide = [v.detach().float() if v.dtype == torch.bfloat16 else v.detach() for v in values]
        results = _moved(collective, [np.array(v.numpy()) for v in wide], rows)
        return [
            torch.from_numpy(np.asarray(r)).to(v.dtype)
            for r, v in zip(results, values, strict=True)
        ]


@functools.cache
def _torch_function() -> Any:
    """An :class:`Operation` as a function of torch's autograd."""
    import torch

    class Collected(torch.autograd.Function):  # type: ignore[misc, unused-ignore]
        @staticmethod
        def forward(ctx: Any, operation: Operation, rows: Sequence[int], *values: Any) -> Any:
            ctx.operation, ctx.rows = operation, rows
            ctx.shapes = [value.shape for value in values]
            results = _moved_torch(operation, values, rows)
            exact = [r for r in results if not (r.is_floating_point() or r.is_complex())]
            ctx.mark_non_differentiable(*exact)
            return tuple(results)

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            # Through this class again, which goes back through it in turn.
            back = Collected.apply(ctx.operation.gradient(), ctx.rows, *gradients)
            return None, None, *(g.reshape(s) for g, s in zip(back, ctx.shapes, strict=True))

    return Collected


def _over_tensorflow(
    collective: Collective | Operation,
    values: Sequence[Any],
    place: Callable[[Any, Callable[[], list[Any]]], list[Any]] | None = None,
    rows: Sequence[Any] | None = None,
) -> list[Any]:
    """
    Args:
        place: puts what is made into a graph, in an order.
        rows: of the tensors that entered forwards; those of ``values`` without it.
    """
    import tensorflow as tf

    tensors = [tf.convert_to_tensor(value) for value in values]
    if not isinstance(collective, Operation):
        return _placed(tf, collective, tensors, (), place)
    counts = [_rows(tf, tensor) for tensor in tensors] if rows is None else rows
    if not any(_continuous(tensor) for tensor in tensors):
        return _placed(tf, collective, tensors, counts, place)

    @tf.custom_gradient  # type: ignore[untyped-decorator, unused-ignore]
    def collected(*given: Any) -> Any:
        results = _placed(tf, collective, given, counts, place)

        def back(*gradients: Any) -> list[Any]:
            whole = [
                tf.zeros_like(result) if gradient is None else gradient
                for gradient, result in zip(gradients, results, strict=True)
            ]
            # What goes back is known once it has gone forwards, and a graph may need no result of that.
            with tf.control_dependencies([] if tf.executing_eagerly() else results):
                moved = _over_tensorflow(collective.gradient(), whole, place, counts)
            return [
                tf.ensure_shape(tf.reshape(m, tf.shape(t)), t.shape) if _continuous(t) else None
                for m, t in zip(moved, given, strict=True)
            ]

        return results, back

    return list(collected(*tensors))


def _rows(tf: Any, tensor: Any) -> Any:
    return tf.constant(1) if tensor.shape.rank == 0 else tf.shape(tensor)[0]


def _continuous(tensor: Any) -> bool:
    return bool(tensor.dtype.is_floating or tensor.dtype.is_complex)


def _placed(
    tf: Any,
    collective: Collective | Operation,
    tensors: Sequence[Any],
    rows: Sequence[Any],
    place: Callable[[Any, Callable[[], list[Any]]], list[Any]] | None,
) -> list[Any]:
    if all(hasattr(tensor, "numpy") for tensor in tensors) and tf.executing_eagerly():
        arrays = [np.asarray(tensor.numpy()) for tensor in tensors]
        results = _moved(collective, arrays, [int(count) for count in rows])
        return [
            tf.convert_to_tensor(r, dtype=t.dtype) for r, t in zip(results, tensors, strict=True)
        ]

    def run(*arrays: Any) -> list[Array]:
        # TensorFlow owns what comes in, and takes over what goes out.
        given = [np.asarray(array) for array in arrays]
        return _moved(collective, given[: len(tensors)], [int(n) for n in given[len(tensors) :]])

    def make() -> list[Any]:
        inputs = [*(tf.identity(tensor) for tensor in tensors), *rows]
        return _by_numpy(tf, run, inputs, [tensor.dtype for tensor in tensors])

    made = make() if place is None else place(tf, make)
    same = not isinstance(collective, Operation) or collective.same_shape
    for result, tensor in zip(made, tensors, strict=True):
        shape = tensor.shape
        if not same:
            shape = (
                tf.TensorShape([None, *shape[1:]])
                if shape.rank
                else tf.TensorShape([None] if shape.rank == 0 else None)
            )
        result.set_shape(shape)
    return made


def _by_numpy(
    tf: Any, run: Callable[..., list[Array]], inputs: Sequence[Any], dtypes: Sequence[Any]
) -> list[Any]:
    """``tf.numpy_function``, whose :class:`HorovodInternalError` is a FailedPreconditionError where an operation of
    fairlead's can make it one; an UnknownError otherwise."""
    from fairlead.comm.frameworks.tensorflow_op import checked

    passed_on = checked()
    if passed_on is None:
        return list(tf.numpy_function(common.in_words()(run), inputs, dtypes))

    @common.in_words()
    def tried(*arrays: Any) -> list[Any]:
        try:
            return [np.int32(0), b"", *run(*arrays)]
        except HorovodInternalError as exc:
            code = np.int32(tf.errors.FAILED_PRECONDITION)
            return [
                code,
                common.words(exc).encode(),
                *(np.zeros((), d.as_numpy_dtype) for d in dtypes),
            ]

    code, text, *results = tf.numpy_function(tried, inputs, [tf.int32, tf.string, *dtypes])
    return list(passed_on(code=code, text=text, tensors=results))


def _ordered(tf: Any, make: Callable[[], list[Any]]) -> list[Any]:
    graph = tf.compat.v1.get_default_graph()
    before = graph.get_collection(_ORDERED)
    with tf.control_dependencies(before[-1:]):
        results = make()
    graph.add_to_collection(_ORDERED, results[0].op)
    if not before:
        _expect(tf, results[0].op)
    return results


def value_of(variable: Any) -> Any:
    """Keras 3's variables hold one of the framework; everything else is itself."""
    keras = sys.modules.get("keras")
    of_keras: bool = keras is not None and isinstance(variable, getattr(keras, "Variable", ()))
    return variable.value if of_keras else variable


def _expect(tf: Any, operation: Any) -> None:
    """Counts a collective of a TF 1 graph, which may run concurrently with the others."""
    operation.graph.add_to_collection(_COUNTED, operation)
    session = tf.compat.v1.Session.__mro__[1]  # the base of Session and of InteractiveSession
    original = session.__init__
    if hasattr(original, _MARK):
        return

    @functools.wraps(original)
    def __init__(self: Any, target: str = "", graph: Any = None, config: Any = None) -> None:
        known = graph if graph is not None else tf.compat.v1.get_default_graph()
        collectives = len(known.get_collection(_COUNTED))
        original(self, target, graph, _with_threads(tf, config, collectives))

    setattr(__init__, _MARK, True)
    session.__init__ = __init__


def _with_threads(tf: Any, config: Any, collectives: int) -> Any:
    """``config`` with a thread for each collective and one more; itself where it has them."""
    given = config.inter_op_parallelism_threads if config is not None else 0
    threads = given or os.cpu_count() or 1
    if collectives < 2 or threads > collectives:
        return config
    more = tf.compat.v1.ConfigProto()
    if config is not None:
        more.CopyFrom(config)
    more.inter_op_parallelism_threads = collectives + 1
    more.use_per_session_threads = True  # the common ones are as many as the first session wanted
    say_on_rank_0(
        f"the session gets {collectives + 1} inter_op threads instead of {threads}: its graph has"
        f" {collectives} collectives, which wait for other ranks at the same time"
    )
    return more
