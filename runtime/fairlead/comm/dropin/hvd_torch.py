"""``horovod.torch``, on CPUs."""

from __future__ import annotations

from typing import Any

from fairlead.comm.dropin import hvd, hvd_torch_handles
from fairlead.comm.dropin.hvd import *  # noqa: F403
from fairlead.comm.dropin.hvd import _basics as _basics
from fairlead.comm.dropin.hvd_torch_handles import *  # noqa: F403
from fairlead.comm.dropin.hvd_torch_handles import broadcast_async_, synchronize
from fairlead.comm.dropin.hvd_torch_optimizer import DistributedOptimizer
from fairlead.comm.dropin.hvd_torch_sync import SyncBatchNorm
from fairlead.comm.dropin.hvd_util import check_extension
from fairlead.comm.dropin.parameters import takes
from fairlead.comm.torch import broadcast_optimizer_state as _broadcast_state
from fairlead.comm.torch import broadcast_parameters as _broadcast_parameters

__all__ = [
    *{*hvd.__all__, *hvd_torch_handles.__all__},
    "DistributedOptimizer",
    "SyncBatchNorm",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "check_extension",
]


def broadcast_parameters(
    params: Any, root_rank: int = 0, process_set: hvd.ProcessSet = hvd.global_process_set
) -> None:
    """Gives tensors (a ``state_dict``, or ``named_parameters``) rank ``root_rank``'s values, in place."""
    named = params if hasattr(params, "items") else dict(params)
    if process_set is hvd.global_process_set:
        _broadcast_parameters(named, root=root_rank)
        return
    tensors = [tensor for tensor in named.values() if hasattr(tensor, "detach")]
    asked = [broadcast_async_(each, root_rank, process_set=process_set) for each in tensors]
    for handle in asked:
        synchronize(handle)


@takes("optimizer root_rank model")
def broadcast_optimizer_state(optimizer: Any, root_rank: int = 0) -> None:
    """Gives an optimizer rank ``root_rank``'s state. Collective."""
    _broadcast_state(optimizer, root=root_rank)
