"""Open MPI's ``mpirun``. Grammar: mpirun(1) of Open MPI 4.1 and prterun(1) of Open MPI 5."""

from __future__ import annotations

import re
from collections.abc import Mapping

from fairlead.base.errors import Finding, error
from fairlead.elf.facts import AbiFamily
from fairlead.launchers.model import Driver, Launcher, Shape, Words, cannot_share_gpus, pairs

_ROOT_OPTION = "--allow-run-as-root"
# Both, and no value but 1; Open MPI 5 does not read PRTE's own names for them.
_ROOT_VARIABLES = ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM")


class OpenMpi(Driver):
    """Also Spectrum MPI's, which is made from it."""

    kind = "openmpi"
    rank_in = ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK")
    programs = ("mpiexec.openmpi", "mpirun", "mpiexec")
    family = AbiFamily.OPENMPI
    in_profiles = False
    connects = ("PMIX_NAMESPACE", "PMIX_RANK")
    files_per_rank = 3  # of the daemon: two pipes, and PMIx's connection
    gives_places = ("OPAL_PREFIX", "PMIX_PREFIX", "PMIX_INSTALL_PREFIX", "PRTE_PREFIX")

    def words(self, launcher: Launcher, shape: Shape, inner: tuple[str, ...]) -> Words:
        if shape.gpus:
            why = "its ranks all see every GPU of their node"
            raise cannot_share_gpus(launcher, why, "OMPI_COMM_WORLD_LOCAL_RANK")
        bind = shape.bind or ("core" if shape.cores else "")
        if bind == "socket" and re.search(r"Open MPI ([5-9]|\d\d)", launcher.title):
            bind = "package"
        pe = f":PE={shape.cores}" if shape.cores else ""
        argv = [launcher.path, *launcher.options]
        argv += pairs(
            ("--host", ",".join(f"{host}:{ranks}" for host, ranks in shape.hosts_with_ranks)),
            ("--map-by", f"ppr:{shape.each}:node{pe}" if shape.each else pe and f"slot{pe}"),
            ("--bind-to", bind),
        )
        return Words((*argv, *shape.extra, "-n", str(shape.ranks), *inner))

    def objection(
        self, launcher: Launcher, shape: Shape, uid: int, environ: Mapping[str, str]
    ) -> Finding | None:
        if uid != 0 or _ROOT_OPTION in (*launcher.options, *shape.extra):
            return None
        if all(environ.get(name) == "1" for name in _ROOT_VARIABLES):
            return None
        return error("launcher-root", launcher=launcher.path)


LAUNCHER = OpenMpi()
