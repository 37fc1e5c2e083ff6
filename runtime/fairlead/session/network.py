"""What a launch wants of NCCL: gathered from the request, the site, the image and the machine."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from fairlead.base.system import Machine
from fairlead.detect.network import nccl_host
from fairlead.elf.reader import NotElf
from fairlead.mpi.host import HostMpi
from fairlead.nccl.host import providers, rules_of
from fairlead.nccl.model import Ask, HostNccl
from fairlead.session.choose import Situation
from fairlead.session.gradients import shows_gpus
from fairlead.site import fabrics

# By which Slurm gets network options of a job; source: sbatch(1), srun(1).
_NETWORK_VARIABLES = ("SLURM_NETWORK", "SBATCH_NETWORK")


def ask(situation: Situation, nodes: int, on_gpus: bool, mpi: HostMpi | None) -> Ask:
    """What is wanted of NCCL; of the machine, only what that takes is looked at.

    Args:
        nodes: 0 if only the launcher knows.
        on_gpus: gradients go over GPUs.
        mpi: the host's MPI that ranks map; None if they keep the image's.
    Raises:
        FairleadError: exit code 2; ``--nccl`` names a file that is not a plugin.
    """
    request, site, image = situation.request, situation.site, situation.image
    words = (*situation.engine.options, *request.engine_args)
    gpus = on_gpus or request.gpu or bool(request.shape.gpus) or shows_gpus(words)
    wish = Ask(
        want=request.nccl,
        gpus=gpus,
        nodes=nodes,
        rules=rules_of(site),
        user=request.nccl_env,
        image=image.env,
        job=(*request.shape.extra, *site.scheduler.directives, *_of_job(situation)),
        gpu_mpi=request.gpu,
        injects=shows_gpus(words),
        fabric=site.fabric.kind,
    )
    if not image.facts.nccl or not wish.wanted:
        return wish
    host = _host(situation)
    user = {**(host.user_conf if host else {}), **request.nccl_env}
    return replace(
        wish,
        host=host,
        user=user,
        fabric=_fabric(situation),
        mpi_providers=_providers_of(mpi) if mpi and not situation.capture else (),
    )


def _providers_of(mpi: HostMpi) -> tuple[str, ...]:
    with suppress(NotElf, OSError):
        return providers(mpi.closure, mpi.plugins)
    return ()


def _host(situation: Situation) -> HostNccl | None:
    if situation.by_profile:
        return None
    if situation.capture:
        return situation.capture.nccl
    want = situation.request.nccl
    return nccl_host(situation.site, situation.environ, want if "/" in want else "")


def _of_job(situation: Situation) -> tuple[str, ...]:
    if situation.capture or situation.by_profile:
        return ()
    values = (situation.environ.get(name, "") for name in _NETWORK_VARIABLES)
    return tuple(f"--network={value}" for value in values if value)


def _fabric(situation: Situation) -> str:
    """The kind of the network between nodes: the profile's, else that of a device."""
    known = situation.site.fabric.kind
    if known != "none" or situation.capture or situation.by_profile:
        return known
    return next(iter(fabrics.fast(Machine(situation.environ))), "none")
