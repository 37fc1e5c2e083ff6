"""``dl_comm.torch``: torch's front of the Cray plugin, over :mod:`fairlead.comm.torch`."""

from __future__ import annotations

import os
from typing import Any

from fairlead import comm
from fairlead.comm.dropin.cray import (
    average,
    barrier,
    broadcast,
    check_buffers_match,
    finalize,
    get_nranks,
    get_rank,
    init_mpi,
    local_rank,
)
from fairlead.comm.dropin.teams import made_equal, say_on_rank_0
from fairlead.comm.dropin.variables import read
from fairlead.comm.torch import DistributedOptimizer as _front
from fairlead.comm.torch import broadcast_optimizer_state, broadcast_parameters

__all__ = [
    "DistributedOptimizer",
    "average",
    "barrier",
    "broadcast",
    "check_buffers_match",
    "finalize",
    "get_nranks",
    "get_rank",
    "init_mpi",
    "local_rank",
]


def DistributedOptimizer(opt: Any, *args: Any, warmup: float | None = None, **named: Any) -> Any:
    """``opt``, whose ``step()`` averages first; parameters and state are rank 0's from here on.

    The other arguments, old (``nsteps, nteams, nthreads, warmup, verb, freq``) and new (``nteam,
    nthread_per_team``), are accepted: here each step is synchronous.
    """
    same_start(opt)
    if args[3:] or (warmup is not None and warmup < 1):
        say_on_rank_0("torch: gradients are synchronous throughout; `warmup` is without meaning")
    if read(os.environ).double:
        say_on_rank_0("torch: DL_COMM_DEFAULT_PREC_LEVEL is without meaning: float32 stays float32")
    return _front(opt)


def same_start(opt: Any) -> None:
    """Gives every rank rank 0's parameters and state of ``opt``. Collective."""
    comm.init()
    parameters = [p for group in opt.param_groups for p in group["params"]]
    broadcast_parameters({f"parameter {i}": p.data for i, p in enumerate(parameters)})
    broadcast_optimizer_state(opt)
    made_equal.add("DistributedOptimizer")
