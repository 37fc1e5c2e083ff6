"""Threads enough for the collectives of a session's graph.

Each collective occupies a thread of TensorFlow's until all ranks have come to it, and a session runs what is
ready in any order. With fewer threads than collectives, one rank could wait in one of them and another rank
in another, forever.
"""

from __future__ import annotations

import functools
import os
from typing import Any

from fairlead.comm.dropin.teams import say_on_rank_0

_COUNTED = "fairlead_collectives"
_MARK = "_fairlead_threads"


def expect(tf: Any, operation: Any) -> None:
    """Counts a collective of a TF 1 graph, which may run concurrently with the others."""
    operation.graph.add_to_collection(_COUNTED, operation)
    session = tf.compat.v1.Session.__mro__[1]  # the base of Session and of InteractiveSession
    original = session.__init__
    if hasattr(original, _MARK):
        return

    @functools.wraps(original)
    def __init__(self: Any, target: str = "", graph: Any = None, config: Any = None) -> None:
        known = graph if graph is not None else tf.compat.v1.get_default_graph()
        original(self, target, graph, enough(tf, config, len(known.get_collection(_COUNTED))))

    setattr(__init__, _MARK, True)
    session.__init__ = __init__


def enough(tf: Any, config: Any, collectives: int) -> Any:
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
