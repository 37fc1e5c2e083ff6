"""``horovod.torch``, on CPUs, over :mod:`fairlead.comm.torch`."""

from __future__ import annotations

import contextlib
from typing import Any

import torch

from fairlead.comm.dropin import hvd
from fairlead.comm.dropin.hvd import *  # noqa: F403
from fairlead.comm.dropin.teams import say_on_rank_0
from fairlead.comm.torch import DistributedOptimizer as _front
from fairlead.comm.torch import average_gradients
from fairlead.comm.torch import broadcast_optimizer_state as _broadcast_state
from fairlead.comm.torch import broadcast_parameters as _broadcast_parameters

__all__ = [
    *hvd.__all__,
    "DistributedOptimizer",
    "allreduce_",
    "broadcast_",
    "broadcast_optimizer_state",
    "broadcast_parameters",
]


def DistributedOptimizer(
    optimizer: Any,
    named_parameters: Any = None,
    compression: Any = hvd.Compression.none,
    backward_passes_per_step: int = 1,
    op: Any = hvd.Average,
    **more: Any,
) -> Any:
    """:func:`fairlead.comm.torch.DistributedOptimizer`, with ``synchronize`` and ``skip_synchronize``.

    However many backward passes a step has, their sum is averaged once, in the step.

    Raises:
        FairleadError: gradients are to be reduced in another way than averaged.
    """
    hvd.require(op == hvd.Average, f"op={op} in torch", "op=Average")
    hvd.no_sets(more)
    if compression != hvd.Compression.none:
        say_on_rank_0("torch: gradients travel in full precision; `compression` is without meaning")
    wrapped = _front(optimizer, named_parameters)
    wrapped.synchronize = lambda: average_gradients(wrapped)
    wrapped.skip_synchronize = contextlib.nullcontext
    return wrapped


def broadcast_parameters(params: Any, root_rank: int = 0, **more: Any) -> None:
    """Gives tensors (a ``state_dict``, or ``named_parameters``) rank ``root_rank``'s values, in place."""
    named = params if hasattr(params, "items") else dict(params)
    _broadcast_parameters(named, root=root_rank)


def broadcast_optimizer_state(optimizer: Any, root_rank: int = 0, **more: Any) -> None:
    """Gives an optimizer rank ``root_rank``'s state. Collective."""
    _broadcast_state(optimizer, root=root_rank)


def allreduce_(tensor: Any, *args: Any, **named: Any) -> Any:
    """:func:`allreduce`, into ``tensor`` itself."""
    with torch.no_grad():
        return tensor.copy_(hvd.allreduce(tensor, *args, **named))


def broadcast_(tensor: Any, root_rank: int = 0, *args: Any, **named: Any) -> Any:
    """:func:`broadcast`, into ``tensor`` itself."""
    with torch.no_grad():
        return tensor.copy_(hvd.broadcast(tensor, root_rank))
