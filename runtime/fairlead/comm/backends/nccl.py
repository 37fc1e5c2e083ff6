"""NCCL through torch, for tensors on GPUs; arrays of the host go by the core, or by mpi4py.

:mod:`fairlead.comm.frameworks.torch_nccl` moves the tensors, once torch has some on GPUs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING

from fairlead.base.comm_backend import Availability, CommBackend, CommFacts

if TYPE_CHECKING:
    from fairlead.comm.backend import Backend
    from fairlead.comm.core import Comm


def _available(facts: CommFacts) -> Availability:
    if facts.wheels is None:
        return Availability(None, "the packages of this image are unknown; the ranks will show")
    version = facts.wheels.get("torch")
    if version is None:
        return Availability(False, "the image has no torch, by which it is used")
    if not re.search(r"\+(cu|rocm)", version) and not any("nccl" in name for name in facts.wheels):
        return Availability(False, f"torch {version} of the image was built without it")
    return _gpus(facts)


def _gpus(facts: CommFacts) -> Availability:
    if facts.gpus == "intel":
        return Availability(
            False, f"the GPUs of {facts.site} are Intel's, which it does not support"
        )
    if not facts.gpus_given:
        return Availability(
            None,
            "no GPU is known to reach the ranks: `--gpus-per-rank 1`, and what shows it to the container,"
            " as `--engine-arg=--nv`",
        )
    if facts.gpus == "none":
        return Availability(None, f"the profile {facts.site} knows no GPUs")
    return Availability()


def _why_chosen(facts: CommFacts) -> str:
    version = (facts.wheels or {}).get("torch", "")
    return f"ranks have GPUs, and torch {version} has NCCL: nothing is faster in a node"


def _connect(mpi: Backend, environ: Mapping[str, str]) -> Comm:
    from fairlead.comm.startup import automatic, unavailable

    if find_spec("torch") is None:
        raise unavailable("nccl", mpi, "NCCL is used through torch, and this Python has none")
    return automatic(mpi, environ)


BACKENDS = (
    CommBackend(
        name="nccl",
        summary="NCCL through torch for tensors on GPUs, the core for arrays of the host",
        available=_available,
        connect=_connect,
        provided_by="use an image with torch for GPUs, such as that of the recipe pytorch-cuda",
        not_chosen="not asked for",
        priority=30,
        why_chosen=_why_chosen,
        host_arrays="native",
        position=5,
    ),
)
