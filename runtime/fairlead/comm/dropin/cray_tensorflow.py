"""``dl_comm.tensorflow``: the calls of ``dl_comm``, and an optimizer that averages gradients."""

from __future__ import annotations

from typing import Any

from fairlead.comm.dropin import cray
from fairlead.comm.dropin.cray import (
    average,
    barrier,
    broadcast,
    check_buffers_match,
    config_team,
    finalize,
    get_nranks,
    get_rank,
    gradients,
    init,
    init_mpi,
    local_rank,
)
from fairlead.comm.dropin.optimizers import averaging
from fairlead.comm.dropin.session_hooks import (
    AverageEvalMetrics,
    AverageTrainMetrics,
    BcastTensors,
    InitConfigBcastTensors,
)

__all__ = [
    "AverageEvalMetrics",
    "AverageTrainMetrics",
    "BcastTensors",
    "DistributedOptimizer",
    "InitConfigBcastTensors",
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


def DistributedOptimizer(opt: Any, team: int = 0) -> Any:
    """``opt``, which from now on applies means over ranks; see :func:`averaging`."""
    return averaging(opt, lambda gradients: cray.gradients(gradients, team))
