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
from fairlead.comm.dropin.teams import say_on_rank_0
from fairlead.comm.frameworks import common

# Each array becomes one of the same dtype and shape, but for the first dimension where that may change.
Collective = Callable[[list[Array]], list[Array]]
# Name of the operations that `gradients` makes, by which the hooks find them in a graph.
GRADIENTS = "fairlead_gradients"
# Collections of a graph.
_ORDERED, _COUNTED = "fairlead_ordered", "fairlead_collectives"
_MARK = "_fairlead_threads"


def from_root(root: int) -> Collective:
    """What gives each rank the arrays of rank ``root``."""
    return lambda arrays: common.broadcast(comm.init(), arrays, (), root)


def over(collective: Collective, values: Sequence[Any], *, same_shape: bool = True) -> list[Any]:
    """``collective`` of ``values``, as new tensors of their kind and static shape.

    In a graph, this makes the operation that does it when it is run.
    """
    if not values:
        return []
    kind = _kind(values)
    if kind == "numpy":
        return collective([np.asarray(value) for value in values])
    if kind == "torch":
        return _over_torch(collective, values)
    import tensorflow as tf

    tensors = [tf.convert_to_tensor(value_of(value)) for value in values]
    if all(hasattr(tensor, "numpy") for tensor in tensors) and tf.executing_eagerly():
        results = collective([np.asarray(tensor.numpy()) for tensor in tensors])
        return [
            tf.convert_to_tensor(r, dtype=t.dtype) for r, t in zip(results, tensors, strict=True)
        ]

    @common.in_words()
    def run(*arrays: Any) -> list[Array]:
        # TensorFlow owns what comes in, and takes over what goes out.
        return collective([np.asarray(array) for array in arrays])

    results = tf.numpy_function(run, tensors, [tensor.dtype for tensor in tensors])
    for result, tensor in zip(results, tensors, strict=True):
        shape = tensor.shape
        if not same_shape and shape.rank:
            shape = tf.TensorShape([None, *shape[1:]])
        result.set_shape(shape)
    return list(results)


def in_order(
    collective: Collective, values: Sequence[Any], *, same_shape: bool = True
) -> list[Any]:
    """:func:`over`; in a graph of TF 1 after the previous one, so that all ranks keep one order.

    A session runs operations in any order, and each run of one then runs those before it as well.
    """
    tf = sys.modules.get("tensorflow")
    if tf is None or not _in_session_graph(tf, values):
        return over(collective, values, same_shape=same_shape)
    graph = tf.compat.v1.get_default_graph()
    before = graph.get_collection(_ORDERED)
    with tf.control_dependencies(before[-1:]):
        given = [tf.identity(value_of(value)) for value in values]
        results = over(collective, given, same_shape=same_shape)
    if results:
        graph.add_to_collection(_ORDERED, results[0].op)
        if not before:
            _expect(tf, results[0].op)
    return results


def gradients(collective: Collective, values: Sequence[Any]) -> list[Any]:
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


def _over_torch(collective: Collective, values: Sequence[Any]) -> list[Any]:
    import torch

    if any(value.device.type != "cpu" for value in values):
        raise fail("comm-device-tensor-gpu")
    with torch.no_grad():
        # NumPy has no bfloat16; float32 holds each of its values.
        wide = [v.detach().float() if v.dtype == torch.bfloat16 else v.detach() for v in values]
        results = collective([np.array(v.numpy()) for v in wide])
        return [
            torch.from_numpy(np.asarray(r)).to(v.dtype)
            for r, v in zip(results, values, strict=True)
        ]


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
