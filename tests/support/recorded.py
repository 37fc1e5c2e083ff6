"""Facts of real images and host MPIs, recorded as JSON, and plans made of them.

None of the paths in them exists here, so whatever works with them touches no disk.
"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from fairlead.base.serde import from_json
from fairlead.elf.facts import AbiFamily, ImageFacts
from fairlead.engines.model import Engine
from fairlead.launchers.model import Launcher
from fairlead.mpi.host import HostMpi
from fairlead.proof.verdict import Proof, RankProof, judged
from fairlead.site import Site
from fairlead.site.resolved_paths import NOTHING, Here
from fairlead.swap.model import Inputs, Plan, Request
from fairlead.swap.plan import plan

FOLDER = Path(__file__).parents[1] / "recorded"
HOSTS = tuple(sorted(p.stem for p in (FOLDER / "hosts").glob("*.json")))
IMAGES = tuple(sorted(p.stem for p in (FOLDER / "images").glob("*.json")))
CACHE = Path("/nowhere/cache")
ROOT_ENGINE = Engine("apptainer", "/opt/apptainer", False, (), ())
USER_ENGINE = Engine(
    "apptainer", "/opt/apptainer", True, ("--userns",), (("--userns", "not setuid"),)
)
NO_FILES = replace(ROOT_ENGINE, binds_files=False)  # as Shifter
HYDRA = Launcher("/opt/host/bin/mpiexec.hydra", AbiFamily.MPICH, "MPICH Hydra 5.0.2")
OPENMPI = Launcher("/opt/other/bin/mpiexec", AbiFamily.OPENMPI, "Open MPI 5.0.11")


@cache
def host(name: str = "mpich-5.0.2") -> HostMpi:
    return from_json(HostMpi, json.loads((FOLDER / "hosts" / f"{name}.json").read_text()))


@cache
def image(name: str = "mpi-base") -> ImageFacts:
    return from_json(ImageFacts, json.loads((FOLDER / "images" / f"{name}.json").read_text()))


SITE = Site(
    name="laptop",
    summary="one machine",
    accepts=("shm", "self", "sysv", "posix", "cma", "tcp", "ofi_rxm"),
    start_s=30.0,
)


def planned(
    facts: ImageFacts | None = None,
    mpi: HostMpi | None = None,
    *,
    launcher: Launcher = HYDRA,
    engine: Engine = ROOT_ENGINE,
    here: Here = NOTHING,
    isolate: bool = True,
    **request: Any,
) -> Plan:
    """A plan for two ranks; of mpi-base on MPICH 5.0.2 unless told otherwise."""
    asked = Request(**{"ranks": 2, **request})
    facts, mpi = facts or image(), mpi or host()
    witness = str(CACHE / "native/witness.so")
    return plan(
        Inputs(
            "/images/x.sif", facts, mpi, launcher, SITE, engine, asked, CACHE,
            witness=witness, isolate=isolate, paths=here,
        )
    )  # fmt: skip


def proved(made: Plan, **changes: Any) -> Proof:
    """What two ranks report when all is as planned, with ``changes`` to each of them; judged."""
    said = {"MPICH": "MPICH Version: 5.0.2", "Intel MPI": "Intel(R) MPI Library 2021.18.1"}
    rank = RankProof(
        rank=0,
        size=2,
        host="node",
        mpi_path=made.planned_file,
        mpi_inode=77,
        mpi_count=1,
        version=said[made.host.library.vendor if made.host else "MPICH"],
        netmod="ucx",
        providers=("cma", "sysv"),
        ring_ok=True,
        namespaces={"shm": "27"},
        library_path="/opt/fairlead/mpi/lib",
    )
    ranks = tuple(replace(rank, rank=number, **changes) for number in (0, 1))
    return judged(made, 2, 77, ranks, 0.1)
