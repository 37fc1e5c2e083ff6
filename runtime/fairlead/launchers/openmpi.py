"""Open MPI's ``mpirun``. Grammar: mpirun(1) of Open MPI 4.1 and prterun(1) of Open MPI 5."""

from __future__ import annotations

import re

from fairlead.elf.facts import AbiFamily
from fairlead.launchers.model import Driver, Launcher, Shape, Words, cannot_share_gpus, pairs


class OpenMpi(Driver):
    """Also Spectrum MPI's, which is made from it."""

    kind = "openmpi"
    programs = ("mpiexec.openmpi", "mpirun", "mpiexec")
    family = AbiFamily.OPENMPI
    in_profiles = False

    def words(self, launcher: Launcher, shape: Shape, inner: tuple[str, ...]) -> Words:
        if shape.gpus:
            why = "its ranks all see every GPU of their node"
            raise cannot_share_gpus(launcher, why, "OMPI_COMM_WORLD_LOCAL_RANK")
        pe = f":PE={shape.cores}" if shape.cores else ""
        argv = [launcher.path, *launcher.options]
        argv += pairs(
            ("--host", ",".join(f"{host}:{ranks}" for host, ranks in shape.hosts_with_ranks)),
            ("--map-by", f"ppr:{shape.each}:node{pe}" if shape.each else pe and f"slot{pe}"),
            ("--bind-to", _place(launcher, shape.bind or (shape.cores and "core") or "")),
        )
        return Words((*argv, *shape.extra, "-n", str(shape.ranks), *inner))


def _place(launcher: Launcher, bind: str) -> str:
    major = re.search(r"Open MPI (\d+)", launcher.title)
    new = major is not None and int(major[1]) >= 5
    return "package" if bind == "socket" and new else bind


LAUNCHER = OpenMpi()
