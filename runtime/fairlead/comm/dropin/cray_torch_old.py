"""``ml_comm_torch``: the first torch front of the Cray ML plugin, whose optimizer knows its steps.

    optimizer = DistributedOptimizer(optimizer, nsteps, nteams, nthreads, warmup, verb, freq)

Source: the calls as public user code makes them; ``warmup=0.10`` is the synchronous fraction there.
"""

from __future__ import annotations

from typing import Any

import torch

from fairlead import comm
from fairlead.base.errors import fail
from fairlead.comm.dropin import cray, cray_torch
from fairlead.comm.dropin.cray_torch import *  # noqa: F403
from fairlead.comm.frameworks import common
from fairlead.comm.frameworks.watched import Watched
from fairlead.comm.torch import held

__all__ = [*cray_torch.__all__]

_optimizers = 0


def DistributedOptimizer(  # type: ignore[no-redef]  # the one name that differs
    opt: Any,
    nsteps: int,
    nteams: int = 1,
    nthreads: int = 1,
    warmup: float = 1.0,
    verb: int = 0,
    freq: int = 0,
) -> Any:
    """``opt``, whose ``step()`` applies means over ranks; parameters and state are rank 0's from here on.

    Collective. The first call makes the teams; each optimizer takes the next of them.

    Args:
        nsteps: steps of this training, of one rank.
        nteams, nthreads: teams, and helper threads of each.
        warmup: part of the steps that is synchronous, at the beginning; gradients of the others come one
            step late. 1: all are synchronous.
        verb, freq: as ``verbosity`` and ``perf_freq`` of :func:`fairlead.comm.dropin.cray.config_team`.
    Raises:
        FairleadError: there are more optimizers than teams, or no steps. Later, by ``step``: it was given a
            closure, or as :func:`fairlead.comm.torch.DistributedOptimizer`.
    """
    global _optimizers
    parameters = [p for group in opt.param_groups for p in group["params"] if p.requires_grad]
    cray_torch.same_start(opt)
    if not cray.started():
        cray.init(nthreads, nteams, sum(p.numel() for p in parameters), "torch")
    team, _optimizers = _optimizers, _optimizers + 1
    if team >= nteams:
        raise fail("comm-dropin-call-nteams", team=team + 1, nteams=nteams)
    names = [f"parameter {i}" for i in range(len(parameters))]
    watched = Watched(
        comm.init,
        "DistributedOptimizer",
        lambda: (names, [held(p, n) for p, n in zip(parameters, names, strict=True)]),
    )
    cray.config_team(team, 0, max(int(warmup * nsteps), 1), nsteps, verb, freq)

    def before(optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if kwargs.get("closure", args[1] if len(args) > 1 else None) is not None:
            raise fail("comm-dropin-call-closure")
        for parameter in parameters:
            if parameter.grad is None:  # a list that is the same in every step and on every rank
                parameter.grad = torch.zeros_like(parameter)
        watched.step()
        means = cray.averaged([p.grad for p in parameters], team, compared=True)
        for parameter, mean in zip(parameters, means, strict=True):
            parameter.grad.copy_(mean)

    opt.register_step_pre_hook(before)
    common.end_together()
    return opt
