"""``ml_comm`` and ``dl_comm``: the calls of the Cray PE ML (later DL) Plugin.

    import ml_comm as mc

    mc.init(1, 1, size, "tensorflow")
    mc.config_team(0, 0, ksteps, max_steps, 2, 200)
    ...
    gradients = mc.gradients(gradients, 0)      # their mean over ranks
    ...
    mc.finalize()

Tensors are TensorFlow's (in a graph of TF 1, in a function or eager), torch's, or NumPy arrays.
"""

from __future__ import annotations

import atexit
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from fairlead import comm
from fairlead.base.errors import fail
from fairlead.comm import barrier, local_rank
from fairlead.comm import rank as get_rank
from fairlead.comm import size as get_nranks
from fairlead.comm.core import Array, Comm
from fairlead.comm.dropin import tensors
from fairlead.comm.dropin.teams import Plugin, made_equal, say_on_rank_0
from fairlead.comm.frameworks import common

__all__ = [
    "average",
    "barrier",
    "broadcast",
    "check_buffers_match",
    "config_team",
    "finalize",
    "get_nranks",
    "get_rank",
    "gradients",
    "init",
    "init_mpi",
    "local_rank",
]

_HOOKS = ("AverageEvalMetrics", "AverageTrainMetrics", "BcastTensors", "InitConfigBcastTensors")

# What a training lacks whose ranks begin with other weights.
BROADCAST = "mc.InitConfigBcastTensors, mc.BcastTensors or mc.broadcast"

_plugin: Plugin | None = None
_wanted: set[int] = set()


def __getattr__(name: str) -> Any:
    if name in _HOOKS:
        from fairlead.comm.dropin import session_hooks  # and TensorFlow with it

        return getattr(session_hooks, name)
    raise AttributeError(f"the Cray plugin has no attribute {name!r}")


def init_mpi() -> None:
    """Starts MPI, so that rank and size are known before :func:`init`; may be left out."""
    comm.init()


def init(
    nthreads_per_team: int = 1,
    nteams: int = 1,
    model_size: int = 0,
    framework: str = "tensorflow",
) -> None:
    """Makes the teams. Collective.

    Args:
        nthreads_per_team: helper threads of each, 1 to 16.
        nteams: how many; two networks that are trained at once take one each.
        model_size: elements of all trainable variables. It is compared with the gradients, and a
            mismatch is reported; nothing is ever cut.
        framework: any.
    Raises:
        FairleadError: it was called before with other arguments; MPI cannot be started.
    """
    global _plugin
    if _plugin is not None:
        raise fail("comm-dropin-init-twice")
    ranks = comm.init()
    _plugin = Plugin(nthreads_per_team, nteams, int(model_size), sorted(_wanted))
    atexit.register(_end)
    say_on_rank_0(
        f"{ranks.size} rank(s), {nteams} team(s), gradients by {ranks.backend}, in place of the"
        f" Cray plugin ({framework})"
    )


def started() -> bool:
    return _plugin is not None


def config_team(
    team: int = 0,
    transition_alg: int = 0,
    ksteps: int = 1,
    max_steps: int = 1,
    verbosity: int = 0,
    perf_freq: int = 0,
) -> None:
    """Says which steps of a team are synchronous. Collective.

    Args:
        transition_alg: ignored.
        ksteps: at least ``max_steps``: all steps are. Less, and positive: so many at the beginning;
            then gradients come one step late, which hides the time that they take. Negative: so many
            at the end.
        max_steps: steps of this training, counted on one rank.
        verbosity: 1: a line every ``perf_freq`` steps; 2: the last line of every rank, not only of rank 0.
    Raises:
        FairleadError: ``ksteps`` is 0, or ``max_steps`` below 1.
    """
    if transition_alg:
        say_on_rank_0(f"config_team: transition_alg={transition_alg} is ignored")
    _started().configure(team, int(ksteps), int(max_steps), verbosity, perf_freq)


def broadcast(variables: Sequence[Any], root: int = 0) -> list[Any]:
    """New tensors with rank ``root``'s values, for the caller to assign. Collective."""
    return tensors.in_order(tensors.from_root(root), list(variables))


def gradients(gradients: Sequence[Any], team: int = 0) -> list[Any]:
    """The mean over ranks of each gradient, in their order; None stays None. Collective.

    Those of embeddings (``IndexedSlices``) become dense. In a graph, call it once a team and step.

    Raises:
        FairleadError: by the second call: the weights were never broadcast, or, in a graph, whose weights
            are known, they differ between ranks.
    """
    tf = sys.modules.get("tensorflow")
    if tf is None or tf.executing_eagerly() or tf.inside_function():
        return averaged(gradients, team)
    trained = tf.compat.v1.trainable_variables()
    if not trained:
        return averaged(gradients, team)
    from fairlead.comm.dropin import weights

    checked = weights.before_all(trained, lambda: ranks_of(team), BROADCAST)
    with tf.control_dependencies([checked]):
        copies = common.present(
            lambda given: [tf.identity(tf.convert_to_tensor(t)) for t in given], gradients
        )
    return averaged(copies, team, compared=True)


def averaged(gradients: Sequence[Any], team: int, *, compared: bool = False) -> list[Any]:
    """:func:`gradients`.

    Args:
        compared: whether the caller knows the weights, and compares them.
    """
    if _plugin is None:
        _wanted.add(team)  # a graph may be made first, and run after init

    def aggregate(arrays: list[Array]) -> list[Array]:
        plugin = _started()
        if not compared:
            plugin.require_broadcast(team)
        return plugin.gradients(arrays, team)

    return common.present(lambda given: tensors.gradients(aggregate, given), gradients)


def ranks_of(team: int) -> Comm:
    """Those that average the gradients of a team, in an order of their own."""
    return _started().team(team).ranks


def average(array: Any) -> Any:
    """Makes ``array`` (NumPy's) its mean over ranks, in place; for metrics. Collective.

    Returns:
        The same array.
    """
    if not isinstance(array, np.ndarray):
        raise fail("comm-dropin-call-average", type=type(array).__name__)
    (mean,) = comm.aggregate([array.astype(np.complex128 if array.dtype.kind == "c" else "f8")])
    np.copyto(array, mean, casting="unsafe")
    return array


def check_buffers_match(arrays: Sequence[Any], verbose: int = 0) -> int:
    """0 if all ranks hold the same bytes, else 1. Collective: every rank calls it, not only rank 0.

    Args:
        verbose: 1: rank 0 says which array differs, and on which ranks.
    """
    match = comm.check_buffers_match([np.asarray(array) for array in arrays])
    if match.first is None:
        made_equal.add("check_buffers_match")
        return 0
    if verbose:
        say_on_rank_0(
            f"buffer {match.first} differs on rank {', '.join(map(str, match.ranks))}, of"
            f" {comm.size()} ranks"
        )
    return 1


def finalize() -> None:
    """Ends the teams and MPI, and says what each team waited. Collective; once."""
    global _plugin
    if _plugin is not None:
        _plugin.close()
        _plugin = None
        atexit.unregister(_end)
    comm.finalize()


def _started() -> Plugin:
    if _plugin is None:
        raise fail("comm-dropin-init-missing")
    return _plugin


def _end() -> None:
    """A program that does not finalize still gets its lines; the others learn that this rank ended."""
    # After an exception all ranks are ended; another call would only hide its words.
    if _plugin is not None and comm.init().here and not hasattr(sys, "last_value"):
        finalize()
