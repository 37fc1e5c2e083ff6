"""Hydra, the ``mpiexec`` of MPICH, MVAPICH and Intel MPI.

Grammar: mpiexec(1) of MPICH, "Hydra process management"; of Intel MPI, its Developer Reference,
"Global Hydra options" and "Process pinning".
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from fairlead.elf.facts import AbiFamily
from fairlead.launchers.identify import identify
from fairlead.launchers.model import Driver, Launcher, Shape, Words, cannot


class Hydra(Driver):
    """MPICH's and Intel MPI's."""

    kind = "hydra"
    programs = ("mpiexec.hydra", "mpiexec.mpich", "mpiexec")
    family = AbiFamily.MPICH
    in_profiles = False

    def describe(
        self, program: str, speaks: AbiFamily, pmi: str, preferred_pmi: tuple[str, ...] = ()
    ) -> Launcher:
        return replace(identify(Path(program)), kind=self.kind)

    def words(self, launcher: Launcher, shape: Shape, inner: tuple[str, ...]) -> Words:
        intel = launcher.title.startswith("Intel")
        argv = [launcher.path, *launcher.options]
        environ: dict[str, str] = {}
        if shape.gpus:
            raise cannot(
                launcher,
                "how many GPUs each rank gets",
                "Hydra's ranks all see every GPU of their node",
                "leave out --gpus-per-rank, and choose by MPI_LOCALRANKID in the program",
            )
        if shape.hosts:
            filled = [(h, n) for h, n in zip(shape.hosts, shape.spread, strict=False) if n]
            if intel:  # it knows no `host:n`; all but the last node are filled by -ppn
                argv += ["-hosts", ",".join(h for h, _ in filled), "-ppn", str(shape.each)]
            else:
                argv += ["-hosts", ",".join(f"{h}:{n}" for h, n in filled)]
        elif shape.each:
            argv += ["-ppn", str(shape.each)]
        if intel:
            environ = _pinning(shape)
        elif shape.bind or shape.cores:
            place = shape.bind or "core"
            argv += [
                "-bind-to",
                f"core:{shape.cores}" if place == "core" and shape.cores else place,
            ]
        return Words((*argv, *shape.extra, "-n", str(shape.ranks), *inner), environ)


def _pinning(shape: Shape) -> dict[str, str]:
    if shape.bind == "none":
        return {"I_MPI_PIN": "0"}
    if shape.cores:
        return {"I_MPI_PIN_DOMAIN": f"{shape.cores}:compact"}
    return {"I_MPI_PIN_DOMAIN": shape.bind} if shape.bind else {}


LAUNCHER = Hydra()
