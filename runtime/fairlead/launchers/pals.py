"""HPE's PALS ``mpiexec``, on Cray EX with PBS.

Grammar: mpiexec(1) of PALS as used in ALCF's user guides of Polaris, Crux and Aurora (argonne-lcf/user-guides,
"running jobs": -n, --ppn, --depth, --cpu-bind, --hosts).
"""

from __future__ import annotations

from fairlead.elf.facts import AbiFamily
from fairlead.launchers.model import Driver, Launcher, Shape, Words, cannot_share_gpus, pairs


class Pals(Driver):
    kind = "pals"
    rank_in = ("PALS_RANKID", "PALS_LOCAL_RANKID")
    programs = ("mpiexec",)
    title = "PALS"
    family = AbiFamily.MPICH

    def words(self, launcher: Launcher, shape: Shape, inner: tuple[str, ...]) -> Words:
        if shape.gpus:
            why = "PALS shows every rank all GPUs of its node"
            raise cannot_share_gpus(launcher, why, "PALS_LOCAL_RANKID")
        argv = [launcher.path, *launcher.options]
        argv += pairs(
            ("-n", shape.ranks),
            ("--ppn", shape.each),
            ("--depth", shape.cores),
            ("--cpu-bind", "depth" if shape.cores and shape.bind in ("", "core") else shape.bind),
            ("--hosts", ",".join(shape.hosts)),
        )
        return Words((*argv, *shape.extra, *inner))


LAUNCHER = Pals()
