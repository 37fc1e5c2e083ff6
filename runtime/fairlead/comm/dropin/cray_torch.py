"""``dl_comm.torch``: torch's front of the Cray plugin, over :mod:`fairlead.comm.torch`."""

from __future__ import annotations

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
from fairlead.comm.dropin.teams import say_on_rank_0
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
    comm.init()
    if args[3:] or (warmup is not None and warmup < 1):
        say_on_rank_0("torch: gradients are synchronous throughout; `warmup` is without meaning")
    parameters = [p for group in opt.param_groups for p in group["params"]]
    broadcast_parameters({f"parameter {i}": p.data for i, p in enumerate(parameters)})
    broadcast_optimizer_state(opt)
    return _front(opt)
