"""HPE's PALS ``mpiexec``, on Cray EX with PBS.

Grammar: mpiexec(1) of PALS as used in ALCF's user guides of Polaris, Crux and Aurora (argonne-lcf/user-guides,
"running jobs": -n, --ppn, --depth, --cpu-bind, --hosts).
"""

from __future__ import annotations

from fairlead.elf.facts import AbiFamily
from fairlead.launchers.model import Driver, Launcher, Shape, Words, cannot


class Pals(Driver):
    """Cray's own launcher."""

    kind = "pals"
    programs = ("mpiexec",)
    title = "PALS"
    family = AbiFamily.MPICH

    def words(self, launcher: Launcher, shape: Shape, inner: tuple[str, ...]) -> Words:
        if shape.gpus:
            raise cannot(
                launcher,
                "how many GPUs each rank gets",
                "PALS shows every rank all GPUs of its node",
                "leave out --gpus-per-rank, and choose by PALS_LOCAL_RANKID in the program",
            )
        argv = [launcher.path, *launcher.options, "-n", str(shape.ranks)]
        if shape.each:
            argv += ["--ppn", str(shape.each)]
        if shape.cores:
            argv += ["--depth", str(shape.cores)]
        if shape.bind or shape.cores:
            deep = shape.cores and shape.bind in ("", "core")
            argv += ["--cpu-bind", "depth" if deep else shape.bind]
        if shape.hosts:
            argv += ["--hosts", ",".join(shape.hosts)]
        return Words((*argv, *shape.extra, *inner))


LAUNCHER = Pals()
