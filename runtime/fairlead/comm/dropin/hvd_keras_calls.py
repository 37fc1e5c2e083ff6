"""The collectives of ``horovod.keras``, whose parameters have names and an order of their own."""

from __future__ import annotations

from typing import Any

from fairlead.comm.dropin import hvd
from fairlead.comm.dropin.parameters import takes

__all__ = ["allgather", "allreduce", "broadcast", "reducescatter"]
# What `DistributedOptimizer` takes.
OPTIMIZER = (
    "optimizer name device_dense device_sparse compression sparse_as_dense gradient_predivide_factor op"
    " backward_passes_per_step average_aggregated_gradients num_groups groups process_set scale_local_gradients"
)


@takes("value name average prescale_factor postscale_factor op compression")
def allreduce(value: Any, **how: Any) -> Any:
    """:func:`fairlead.comm.dropin.hvd.allreduce`."""
    return hvd.allreduce(value, **how)


@takes("value name")
def allgather(value: Any, **how: Any) -> Any:
    """:func:`fairlead.comm.dropin.hvd.allgather`."""
    return hvd.allgather(value, **how)


@takes("value root_rank name")
def broadcast(value: Any, root_rank: int, **how: Any) -> Any:
    """:func:`fairlead.comm.dropin.hvd.broadcast`."""
    return hvd.broadcast(value, root_rank, **how)


@takes("value name op")
def reducescatter(value: Any, **how: Any) -> Any:
    """:func:`fairlead.comm.dropin.hvd.reducescatter`."""
    return hvd.reducescatter(value, **how)
