"""Open MPI's ``mpirun``. Grammar: mpirun(1) of Open MPI 4.1 and prterun(1) of Open MPI 5."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from fairlead.elf.facts import AbiFamily
from fairlead.launchers.identify import identify
from fairlead.launchers.model import Driver, Launcher, Shape, Words, cannot


class OpenMpi(Driver):
    """Also Spectrum MPI's, which is made from it."""

    kind = "openmpi"
    programs = ("mpiexec.openmpi", "mpirun", "mpiexec")
    family = AbiFamily.OPENMPI
    in_profiles = False

    def describe(
        self, program: str, speaks: AbiFamily, pmi: str, preferred_pmi: tuple[str, ...] = ()
    ) -> Launcher:
        return replace(identify(Path(program)), kind=self.kind)

    def words(self, launcher: Launcher, shape: Shape, inner: tuple[str, ...]) -> Words:
        if shape.gpus:
            raise cannot(
                launcher,
                "how many GPUs each rank gets",
                "its ranks all see every GPU of their node",
                "leave out --gpus-per-rank, and choose by OMPI_COMM_WORLD_LOCAL_RANK in the program",
            )
        argv = [launcher.path, *launcher.options]
        if shape.hosts:
            filled = [(h, n) for h, n in zip(shape.hosts, shape.spread, strict=False) if n]
            argv += ["--host", ",".join(f"{h}:{n}" for h, n in filled)]
        pe = f":PE={shape.cores}" if shape.cores else ""
        if shape.each:
            argv += ["--map-by", f"ppr:{shape.each}:node{pe}"]
        elif pe:
            argv += ["--map-by", f"slot{pe}"]
        if shape.bind or shape.cores:
            argv += ["--bind-to", _place(launcher, shape.bind or "core")]
        return Words((*argv, *shape.extra, "-n", str(shape.ranks), *inner))


def _place(launcher: Launcher, bind: str) -> str:
    major = re.search(r"Open MPI (\d+)", launcher.title)
    new = major is not None and int(major[1]) >= 5
    return "package" if bind == "socket" and new else bind


LAUNCHER = OpenMpi()
