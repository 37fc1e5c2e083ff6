"""A collective on tensors of any kind: NumPy arrays, TensorFlow's in a graph or eager, torch's."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fairlead.base.errors import FairleadError, fail
from fairlead.comm.core import Array
from fairlead.comm.dropin.threads import expect

# Each array becomes one of the same dtype and shape, but for the first dimension where that may change.
Collective = Callable[[list[Array]], list[Array]]
_ORDERED = "fairlead_ordered"  # a collection of a graph


def over(collective: Collective, values: Sequence[Any], *, same_shape: bool = True) -> list[Any]:
    """``collective`` of ``values``, as new tensors of their kind and static shape.

    In a graph, this makes the operation that does it when it is run.
    """
    if not values:
        return []
    if all(isinstance(value, (np.ndarray, np.generic)) for value in values):
        return collective([np.asarray(value) for value in values])
    torch = sys.modules.get("torch")
    if torch is not None and any(isinstance(value, torch.Tensor) for value in values):
        return _over_torch(collective, values, torch)
    tf = tensorflow()
    tensors = [tf.convert_to_tensor(value_of(value)) for value in values]
    if all(hasattr(tensor, "numpy") for tensor in tensors) and tf.executing_eagerly():
        results = collective([np.asarray(tensor.numpy()) for tensor in tensors])
        return [
            tf.convert_to_tensor(r, dtype=t.dtype) for r, t in zip(results, tensors, strict=True)
        ]

    def run(*arrays: Any) -> list[Array]:
        # TensorFlow owns what comes in, and takes over what goes out.
        try:
            return collective([np.asarray(array) for array in arrays])
        except FairleadError as exc:
            # It keeps only an exception's text.
            from fairlead.comm.frameworks.common import words

            raise RuntimeError(words(exc)) from exc

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
            expect(tf, results[0].op)
    return results


def gradients(collective: Collective, values: Sequence[Any], name: str) -> list[Any]:
    """:func:`over`, in operations called ``name``, which may run concurrently with all others."""
    tf = sys.modules.get("tensorflow")
    if tf is None:
        return over(collective, values)
    with tf.name_scope(name):
        results = over(collective, values)
    if results and _in_session_graph(tf, values):
        expect(tf, results[0].op)
    return results


def _in_session_graph(tf: Any, values: Sequence[Any]) -> bool:
    torch = sys.modules.get("torch")
    if torch is not None and any(isinstance(v, torch.Tensor) for v in values):
        return False
    numpy = all(isinstance(v, (np.ndarray, np.generic)) for v in values)
    return not (numpy or tf.executing_eagerly() or tf.inside_function())


def _over_torch(collective: Collective, values: Sequence[Any], torch: Any) -> list[Any]:
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


def tensorflow() -> Any:
    import tensorflow

    return tensorflow


def plain(array: Array) -> Array:
    """``array``, as integers of its width where it is bfloat16, which not every part here knows."""
    return array.view(np.uint16) if array.dtype.name == "bfloat16" else array


def broadcast_arrays(arrays: list[Array], root: int) -> list[Array]:
    """Rank ``root``'s, in arrays of their own. Collective."""
    from fairlead import comm

    results = comm.broadcast([plain(array) for array in arrays], root)
    return [result.view(a.dtype) for result, a in zip(results, arrays, strict=True)]
