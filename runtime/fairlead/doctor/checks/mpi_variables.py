"""Variables of this shell, or of the profile, that make MPI fail or slow."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from fairlead.doctor.diagnosis import Check, Diagnosis, Topic, ill, well
from fairlead.doctor.site_expectations import says, variables
from fairlead.doctor.world import World
from fairlead.elf.facts import AbiFamily
from fairlead.mpi.host import HostMpi

_PATTERNS = ("I_MPI_", "MPICH_", "MPIR_CVAR_", "MV2_", "OMPI_", "UCX_", "FI_", "PMIX_", "PRTE_")


@dataclass(frozen=True)
class Rule:
    """A setting that spoils runs.

    Attributes:
        harms: whether a value of the variable does.
        why: what comes of it.
        remedy: what to type besides ``unset``.
    """

    variable: str
    harms: Callable[[str], bool]
    why: str
    remedy: str = ""


def _is(*values: str) -> Callable[[str], bool]:
    return lambda value: value.strip().lower() in values


def _words(value: str) -> set[str]:
    return set(value.replace("^", "").split(","))


_OLD_FABRICS = {"dapl", "tcp", "tmi", "ofa"}
_NODE_ALONE = "ranks of one node talk through the network card: many times slower"
_SHORTER = "MPI takes the slower of two ways within a node"
# Sources: Intel MPI's developer reference; MPICH's and Cray's intro_mpi(3); MVAPICH2's and Open MPI's
# manuals; facts of trials with real libraries for PREFIX variables.
RULES = (
    Rule(
        "I_MPI_FABRICS",
        lambda value: value.strip() == "shm",
        "only shared memory: a job over two nodes fails in MPI_Init",
        ", or shm:ofi",
    ),
    Rule(
        "I_MPI_FABRICS",
        lambda value: bool(_OLD_FABRICS & set(value.split(":"))),
        "Intel MPI has supported only shm and ofi since 2019, and ends in MPI_Init",
        ", or shm:ofi",
    ),
    Rule("I_MPI_FABRICS", lambda value: value.strip() == "ofi", _NODE_ALONE, ", or shm:ofi"),
    Rule(
        "OMPI_MCA_btl",
        lambda value: (
            not value.startswith("^")
            and bool(_words(value))
            and not {"sm", "vader"} & _words(value)
        ),
        f"no shared memory among the transports: {_NODE_ALONE}",
    ),
    Rule(
        "OMPI_MCA_btl",
        lambda value: value.startswith("^") and bool({"sm", "vader", "self"} & _words(value)),
        f"shared memory is excluded: {_NODE_ALONE}",
    ),
    Rule(
        "OMPI_MCA_btl",
        lambda value: not value.startswith("^") and "openib" in _words(value),
        "Open MPI 5 has no openib, and every rank reports it; InfiniBand uses UCX",
    ),
    Rule(
        "OMPI_MCA_mtl",
        lambda value: "^ofi" in value,
        "libfabric is excluded, which Omni-Path, Slingshot and EFA need",
    ),
    Rule("MPIR_CVAR_NOLOCAL", _is("1", "yes", "true", "on"), _NODE_ALONE),
    Rule("MPIR_CVAR_NO_LOCAL", _is("1", "yes", "true", "on"), _NODE_ALONE),
    Rule("MPICH_NO_LOCAL", _is("1"), _NODE_ALONE),
    Rule("MV2_USE_SHARED_MEM", _is("0"), _SHORTER),
    Rule("MPICH_SMP_SINGLE_COPY_MODE", _is("none"), _SHORTER),
    Rule(
        "SLURM_MPI_TYPE",
        _is("none"),
        "srun starts ranks that do not know each other: rank 0 of 1, with exit code 0",
    ),
    Rule(
        "MPICH_MAX_THREAD_SAFETY",
        _is("single", "funneled", "serialized"),
        "frameworks with their own threads request more, and so does mpi4py; between nodes, collectives lose the threads "
        "that overlap them with computing",
    ),
)


def examine(world: World) -> Iterator[Diagnosis]:
    mpis = world.host_mpis()
    problems = [
        *_broken(world.environ),
        *_gpu(world.environ, mpis),
        *_prefixes(world, mpis),
        *_files(world),
    ]
    site = world.profile().site
    if site:
        for key, values in variables(site).items():
            for broken in _broken(values):
                where = says(site, key, broken.finding.where)
                problems.append(
                    ill("mpi-variables-set-by-profile", found=broken.finding, where=where)
                )
    names = sorted(n for n in world.environ if n.startswith(_PATTERNS))
    what = f"{len(names)} variables of MPIs are set, none of them harms" if names else ""
    fine = well(what or "no variable of this shell controls MPI", ", ".join(names))
    yield from problems or [fine]


def _broken(values: Mapping[str, str]) -> Iterator[Diagnosis]:
    for rule in RULES:
        value = values.get(rule.variable, "")
        if value and rule.harms(value):
            yield ill("mpi-variables-breaks-runs", rule=rule, value=value)


def _gpu(values: Mapping[str, str], mpis: tuple[HostMpi, ...]) -> Iterator[Diagnosis]:
    """Cray MPICH ends in MPI_Init: "GTL library is not linked"."""
    cray = [m for m in mpis if m.library.vendor == "Cray MPICH"]
    if values.get("MPICH_GPU_SUPPORT_ENABLED") != "1" or not cray:
        return
    if not any(mpi.gpu_transport for mpi in cray):
        yield ill("mpi-variables-no-gpu-transport", mpi=cray[0])


def _prefixes(world: World, mpis: tuple[HostMpi, ...]) -> Iterator[Diagnosis]:
    """A prefix of Open MPI's leads every Open MPI astray, the image's too."""
    for name in ("OPAL_PREFIX", "PMIX_PREFIX", "PRTE_PREFIX"):
        value = world.environ.get(name, "")
        if not value:
            continue
        here = {world.real(m.prefix) for m in mpis if m.library.family is AbiFamily.OPENMPI}
        if world.real(value) not in here:
            yield ill("mpi-variables-opal-prefix", name=name, value=value)


def _files(world: World) -> Iterator[Diagnosis]:
    """Variables that name a file."""
    for name in ("I_MPI_PMI_LIBRARY", "MPI4PY_LIBMPI"):
        value = world.environ.get(name, "")
        if value.startswith("/") and not world.access(value, os.F_OK):
            yield ill("mpi-variables-file-missing", name=name, value=value)


CHECK = Check("mpi-variables", "MPI variables that break runs", examine, Topic.MPI, order=40)
