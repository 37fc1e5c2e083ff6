"""Every probe asked at once, each in its own time box, and one :class:`SiteFacts` made of what they say."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from fairlead.base.errors import FairleadError
from fairlead.base.timeboxed import PATIENCE_S, at_once
from fairlead.detect.machine import MpiMachine
from fairlead.detect.model import SiteFacts, Unknown
from fairlead.detect.probes import (
    engines,
    fabric,
    gpu,
    kernel,
    launchers,
    mpi,
    nccl,
    pmi,
    processor,
    scheduler,
    storage,
    system,
    transports,
)
from fairlead.schedulers.registry import SCHEDULERS
from fairlead.site.model import Site

LIMIT_S = 4.0
# Reading all that is behind several MPIs or plugins for the first time is work, which takes long on a busy machine.
LONGER_S = {"MPI": 30.0, "NCCL": 30.0}


# Values of fields of SiteFacts; and `unknown`, what it could not learn.
Probe = Callable[[MpiMachine], dict[str, Any]]

PROBES: dict[str, Probe] = {
    "system": system.probe,
    "processor": processor.probe,
    "kernel": kernel.probe,
    "scheduler": scheduler.probe,
    "launchers": launchers.probe,
    "PMI": pmi.probe,
    "engines": engines.probe,
    "MPI": mpi.probe,
    "fabric": fabric.probe,
    "GPUs": gpu.probe,
    "NCCL": nccl.probe,
    "storage": storage.probe,
    "transports": transports.probe,
}


def here(environ: Mapping[str, str] = os.environ) -> SiteFacts:
    """The facts of the machine we are on."""
    return gather(MpiMachine(environ, patience_s=PATIENCE_S))


def gather(world: MpiMachine, limit_s: float = LIMIT_S) -> SiteFacts:
    """Collects the facts of a machine. Never fails, and ends every program that it starts.

    Args:
        limit_s: seconds that the slowest probe may take; facts of a probe that exceeds them are unknown.
    """

    longer = {name: max(limit, limit_s) for name, limit in LONGER_S.items()}
    tasks = {name: partial(probe, world) for name, probe in PROBES.items()}
    answers = at_once(tasks, limit_s, longer)
    facts: dict[str, Any] = {}
    unknown: list[Unknown] = []
    for name in PROBES:
        answer = answers.get(name)
        if isinstance(answer, dict):
            unknown += answer.pop("unknown", ())
            facts |= answer
        elif isinstance(answer, FairleadError):
            unknown.append(Unknown(name, "; ".join(f.what for f in answer.findings)))
        elif answer is None:
            unknown.append(Unknown(name, f"no answer within {longer.get(name, limit_s):g} s"))
        else:
            unknown.append(Unknown(name, f"{type(answer).__name__}: {answer}"))
    probed = facts.get("transports", ())
    facts["transports"] = (*probed, *transports.of_modules(world, facts.get("mpis", ()), probed))
    once = tuple(dict.fromkeys(unknown))
    return SiteFacts(node=world.hostname, uid=world.uid, unknown=once, **facts)


def cautions(facts: SiteFacts, site: Site | None) -> tuple[str, ...]:
    """What the facts may not show, and how to see it."""
    expected = site.fabric.kind if site else ""
    if not facts.schedulers or facts.fast_fabrics or expected in ("none", "ethernet"):
        return ()
    scheduler = facts.schedulers[0]
    look = SCHEDULERS.get(scheduler.kind).interactive.format(command="fairlead site detect")
    awaited = f" of {expected}" if expected else ""
    if scheduler.job:
        return (f"no fabric device{awaited} on this node, though it is in job {scheduler.job}: if it is a compute "
                "node, MPI will use TCP",)  # fmt: skip
    return (
        f"no fabric device{awaited} on this node. A login node may lack what compute nodes have; look from one:\n"
        f"{look}",
    )
