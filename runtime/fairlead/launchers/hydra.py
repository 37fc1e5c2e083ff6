"""Hydra, the ``mpiexec`` of MPICH, MVAPICH and Intel MPI.

Grammar: mpiexec(1) of MPICH, "Hydra process management"; of Intel MPI, its Developer Reference,
"Global Hydra options" and "Process pinning".
"""

from __future__ import annotations

from fairlead.elf.facts import AbiFamily
from fairlead.launchers.model import Driver, Launcher, Shape, Words, cannot_share_gpus, pairs


class Hydra(Driver):
    """MPICH's and Intel MPI's."""

    kind = "hydra"
    rank_in = ("PMI_RANK", "MPI_LOCALRANKID")
    programs = ("mpiexec.hydra", "mpiexec.mpich", "mpiexec")
    family = AbiFamily.MPICH
    in_profiles = False
    connects = ("PMI_FD", "PMI_RANK", "PMI_SIZE")
    files_per_rank = 4  # of the proxy: three pipes, and the connection that PMI_FD names

    def words(self, launcher: Launcher, shape: Shape, inner: tuple[str, ...]) -> Words:
        intel = launcher.title.startswith("Intel")
        if shape.gpus:
            why = "Hydra's ranks all see every GPU of their node"
            raise cannot_share_gpus(launcher, why, "MPI_LOCALRANKID")
        # Intel's knows no `host:n`; all but the last node are filled by -ppn.
        hosts = [h if intel else f"{h}:{n}" for h, n in shape.hosts_with_ranks]
        bind = f"core:{shape.cores}" if shape.cores and shape.bind in ("", "core") else shape.bind
        argv = [launcher.path, *launcher.options]
        argv += pairs(
            ("-hosts", ",".join(hosts)),
            ("-ppn", shape.each if intel or not hosts else 0),
            ("-bind-to", "" if intel else bind),
        )
        environ = _pinning(shape) if intel else {}
        return Words((*argv, *shape.extra, "-n", str(shape.ranks), *inner), environ)


def _pinning(shape: Shape) -> dict[str, str]:
    if shape.bind == "none":
        return {"I_MPI_PIN": "0"}
    if shape.cores:
        return {"I_MPI_PIN_DOMAIN": f"{shape.cores}:compact"}
    return {"I_MPI_PIN_DOMAIN": shape.bind} if shape.bind else {}


LAUNCHER = Hydra()
