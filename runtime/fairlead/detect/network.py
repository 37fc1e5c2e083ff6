"""What this machine has for NCCL: its plugins, and the GPUs and devices that they are for."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace

from fairlead.base.system import Machine, View
from fairlead.detect.probes import gpu
from fairlead.nccl.host import discover, rules_of
from fairlead.nccl.model import HostNccl
from fairlead.site import Site


def nccl_host(site: Site, environ: Mapping[str, str] = os.environ, named: str = "") -> HostNccl:
    """Looks; starts no program, and runs no code of a plugin.

    Args:
        named: path of a plugin.
    Raises:
        FairleadError: exit code 2; what is named is not a plugin.
    """
    view = Machine(environ)
    return with_gpus(discover(rules_of(site), view, environ, named=named), view)


def with_gpus(nccl: HostNccl, view: View) -> HostNccl:
    """What there is for NCCL, with the GPUs that it is for."""
    cards = gpu.probe(view)["gpus"]
    if not cards:
        return nccl
    card = cards[0]
    return replace(nccl, gpu=card.vendor, gpu_model=card.model, driver=card.driver)
