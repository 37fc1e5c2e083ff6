"""TensorFlow's variables whose gradients an old script averages, watched by :class:`~fairlead.comm.frameworks.watched.Watched`."""

from __future__ import annotations

import functools
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from fairlead import comm
from fairlead.comm.core import Array, Comm
from fairlead.comm.dropin.tensors import value_of
from fairlead.comm.frameworks import common
from fairlead.comm.frameworks.watched import Watched

# Collections of a graph.
_WATCHED, _FIRST = "fairlead_watched", "fairlead_compared_first"
_MARK = "_fairlead_compares"
_known: dict[tuple[int, ...], tuple[Watched, list[Any]]] = {}
_last: list[
    Any
] = []  # of the last tape: they may belong to a function, and are compared when MPI ends


def of_tape(sources: Sequence[Any], ranks: Callable[[], Comm], broadcast: str) -> Watched | None:
    """What watches the variables among ``sources``, which live outside of graphs; None without any.

    Args:
        ranks: those that train them together.
    """
    variables = [value_of(source) for source in sources]
    variables = [v for v in variables if isinstance(v, tf.Variable)]
    if not variables:
        return None
    _last[:] = variables
    key = (id(ranks()), *map(id, variables))
    watched, refs = _known.get(key, (None, []))
    if watched is None or any(ref() is None for ref in refs):
        refs = [weakref.ref(v) for v in variables]
        watched = Watched(ranks, broadcast, functools.partial(_read, refs))
        _known[key] = watched, refs
    return watched


def _read(refs: Sequence[Callable[[], Any]]) -> tuple[list[str], list[Array]]:
    alive = [variable for ref in refs if (variable := ref()) is not None]
    return [v.name.removesuffix(":0") for v in alive], [np.asarray(v.numpy()) for v in alive]


def before_all(variables: Sequence[Any], ranks: Callable[[], Comm], broadcast: str) -> Any:
    """:func:`in_graph`, once a graph: all that averages gradients has to come after it.

    So no update is made while the variables are read, whichever network each belongs to.
    """
    graph = tf.compat.v1.get_default_graph()
    if not graph.get_collection(_FIRST):
        graph.add_to_collection(_FIRST, in_graph(variables, ranks, broadcast))
    return graph.get_collection(_FIRST)[0]


def in_graph(variables: Sequence[Any], ranks: Callable[[], Comm], broadcast: str) -> Any:
    """The operation of a TF 1 graph that compares ``variables`` in the second step.

    They are compared once more when the session is closed.

    Args:
        ranks: by which to compare, in an order of their own.
    """
    v1 = tf.compat.v1
    watched, names = Watched(ranks, broadcast), [v.op.name for v in variables]
    reads = [v.read_value() for v in variables]

    def begins() -> Array:
        return np.array(watched.due())

    @common.in_words()
    def compare(*arrays: Any) -> Array:
        watched.compare(names, [np.asarray(array) for array in arrays])
        return np.array(True)

    def compared() -> Any:
        return tf.numpy_function(compare, [v.read_value() for v in variables], tf.bool)

    checked = tf.cond(tf.numpy_function(begins, [], tf.bool), compared, lambda: tf.constant(False))
    v1.add_to_collection(_WATCHED, (watched, names, reads))
    _compare_when_closed(v1.Session.__mro__[1])  # the base of Session and of InteractiveSession
    return checked.op


def _compare_when_closed(session: Any) -> None:
    original = session.close
    if hasattr(original, _MARK):
        return

    @functools.wraps(original)
    def close(self: Any) -> None:
        # Not while an exception ends it, for which TensorFlow has a thread, nor when garbage is collected, at a time
        # of each rank's own.
        by_script = sys._getframe(1).f_code.co_name != "__del__" and sys.exc_info()[0] is None
        main = threading.current_thread() is threading.main_thread()
        if by_script and main and comm._comm is not None:
            _finish(self)
        original(self)

    setattr(close, _MARK, True)
    session.close = close


def _finish(session: Any) -> None:
    for watched, names, reads in session.graph.get_collection(_WATCHED):
        if not watched.pending():
            continue
        try:
            arrays = session.run(reads)
        except (tf.errors.FailedPreconditionError, RuntimeError):
            continue  # another session trained, or this one is closed
        watched.finish(names, [np.asarray(array) for array in arrays])
