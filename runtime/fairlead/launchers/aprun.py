"""Cray's ``aprun``, of ALPS on Cray XC. Grammar: aprun(1); used as in ALCF's "Running Jobs on XC40"."""

from __future__ import annotations

from fairlead.elf.facts import AbiFamily
from fairlead.launchers.model import Driver, Launcher, Shape, Words, cannot, pairs

_BIND = {"none": "none", "core": "cpu", "numa": "numa_node"}


class Aprun(Driver):
    kind = "aprun"
    rank_in = ("ALPS_APP_PE", "")
    programs = ("aprun",)
    title = "ALPS"
    family = AbiFamily.MPICH

    def words(self, launcher: Launcher, shape: Shape, inner: tuple[str, ...]) -> Words:
        if shape.gpus or shape.bind == "socket":
            raise cannot(
                launcher,
                "how many GPUs each rank gets" if shape.gpus else "to bind to sockets",
                "aprun has no option for it",
                "leave out --gpus-per-rank" if shape.gpus else "use --bind-to numa",
            )
        deep = shape.cores > 1 and shape.bind in ("", "core")
        bind = "depth" if deep else _BIND[shape.bind or "core"]
        argv = [launcher.path, *launcher.options]
        argv += pairs(
            ("-n", shape.ranks),
            ("-N", shape.each),
            ("-d", shape.cores),
            ("-cc", (shape.bind or shape.cores) and bind),
            ("-L", ",".join(shape.hosts)),
        )
        return Words((*argv, *shape.extra, *inner))


LAUNCHER = Aprun()
