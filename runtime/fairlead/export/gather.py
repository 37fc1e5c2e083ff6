"""Finds the facts of an export: on this machine, or in the capture of another."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

import fairlead
from fairlead import site as sites
from fairlead.base.errors import ExitCode, FairleadError, fail
from fairlead.detect import capture
from fairlead.detect.capture import Capture
from fairlead.detect.network import nccl_host
from fairlead.elf.facts import AbiFamily
from fairlead.elf.patchelf import find_patchelf
from fairlead.engines import registry as engines
from fairlead.engines.model import Engine
from fairlead.export.audience import closed, closed_of
from fairlead.export.model import Facts
from fairlead.image.open import Image, open_image
from fairlead.mpi import host as hostmpi
from fairlead.mpi.host import HostMpi
from fairlead.site.match import why_not
from fairlead.site.model import Site
from fairlead.site.resolved_paths import look
from fairlead.swap.family import choose_host, image_family
from fairlead.swap.model import Request

_TOOLS = ("modprobe", "insmod", "cp", "mv", "chmod", "dd", "true", "ldconfig", "ldd", "readelf")


@dataclass(frozen=True)
class Wanted:
    """What the command line says of an export; empty where it leaves it to be found."""

    site: str | None = None
    mpi: str = "host"
    image: str = ""
    engine: str | None = None
    programs: tuple[str, ...] = ()
    stage_root: str = "/opt/fairlead/stage"
    form: str = "copy"
    name: str = ""
    private: bool = False
    nccl: bool = False


def gather(wanted: Wanted, environ: Mapping[str, str] = os.environ) -> Facts:
    """The facts.

    Raises:
        FairleadError: exit code 2; an unknown site, image or MPI, or a file that is not a capture.
    """
    there = None
    if wanted.site and capture.is_capture(wanted.site):
        there = capture.read(Path(wanted.site))
    site = there.site if there else sites.resolve(wanted.site, environ)[0]
    image = open_image(wanted.image, environ) if wanted.image else None
    host = None if wanted.nccl else _host(wanted, there, image, site, environ)
    here = there.here if there else look(site, environ)
    mpi = "" if wanted.mpi == "host" else str(Path(wanted.mpi).absolute())
    named = (image.path if image else "", mpi, wanted.stage_root, *here.binds, *here.devices)
    path = f"/usr/sbin:/sbin:/usr/bin:/bin:{environ.get('PATH', '')}"
    return Facts(
        site=site,
        node=there.node if there else platform.node(),
        host=host,
        launcher=host.launcher if host else None,
        engine=_theirs(there) if there else _engine(wanted, site.engine.kinds, environ),
        image=image,
        against=() if there or wanted.mpi != "host" else why_not(site, environ),
        here=here,
        stage_root=wanted.stage_root,
        isolate=bool(there or find_patchelf()),
        form=wanted.form,
        name=wanted.name,
        programs=wanted.programs or _programs(image),
        fairlead=("fairlead",) if there else (_fairlead(private=wanted.private),),
        mpi=mpi,
        closed={} if there else closed_of(named),
        private=wanted.private,
        carries="nccl" if wanted.nccl else "mpi",
        nccl=(there.nccl if there else nccl_host(site, environ)) if wanted.nccl else None,
        tools={} if there else {t: p for t in _TOOLS if (p := shutil.which(t, path=path))},
    )


def placed(facts: Facts, folder: Path) -> Facts:
    """The facts of an export that is written to ``folder``, by whose path some of its files name each other."""
    path = str(folder.absolute())
    private = closed_of([path]) if facts.node == platform.node() else {}
    return replace(facts, folder=path, closed={**facts.closed, **private})


def _fairlead(*, private: bool) -> str:
    """This fairlead, by its path: what an export is read by may have another PATH. One that others cannot run, by name."""
    own = Path(sys.executable).with_name("fairlead")
    # Its interpreter may be behind a link into a folder that is closed, and so may the code of a checkout.
    usable = private or not any(map(closed, (str(own), sys.executable, fairlead.__file__)))
    return str(own) if own.is_file() and usable else "fairlead"


def _engine(
    wanted: Wanted, preferred: tuple[str, ...], environ: Mapping[str, str]
) -> Engine | None:
    """The engine as those who use the export have it, who are not the one who makes it."""
    try:
        chosen = engines.choose(wanted.engine, preferred, environ)
        return engines.ENGINES.get(chosen.kind).ordinary(environ)
    except FairleadError as exc:
        if wanted.engine and exc.code is ExitCode.USAGE:
            raise
        return None  # an export may be for an engine that is not here yet


def _theirs(there: Capture) -> Engine | None:
    """A captured engine; of one that root captured, as ordinary users have it."""
    engine = there.engine
    if engine is None or there.facts.uid != 0:
        return engine
    setuid = {fact.kind: fact.setuid for fact in there.facts.engines}.get(engine.kind)
    return replace(
        engine, options=(), reasons=(), userns_per_rank=engine.userns_per_rank or setuid is False
    )


def _host(
    wanted: Wanted,
    there: Capture | None,
    image: Image | None,
    site: Site,
    environ: Mapping[str, str],
) -> HostMpi | None:
    if wanted.mpi == "container":
        raise fail("usage-export-needs-host-mpi")
    if wanted.mpi == "host":
        mpis = there.mpis if there else hostmpi.discover(environ, site=site)
    elif there:
        mpis = capture.mpi_below(there, Path(wanted.mpi))
    else:
        mpis = hostmpi.from_prefix(Path(wanted.mpi), environ, site=site)
    if image and image_family(image.facts) is not AbiFamily.UNKNOWN:
        launched = site.launcher.kinds[0] != "mpiexec"
        chosen = choose_host(image.facts, mpis, Request(), launched)[0]
        # What no user would choose is refused by the checks, which say why.
        return chosen or (mpis[0] if wanted.mpi != "host" else None)
    with_launcher = [mpi for mpi in mpis if mpi.launcher]
    return next(iter(with_launcher or mpis), None)


def _programs(image: Image | None) -> tuple[str, ...]:
    """Programs of the image that use MPI and do not belong to it, and its Python."""
    if image is None:
        return ()
    homes = {str(PurePosixPath(m.path).parents[1] / "bin") for m in image.facts.mpis}
    own = [
        e.path
        for e in image.facts.consumers
        if e.interpreter and str(PurePosixPath(e.path).parent) not in homes and not e.holds
    ]
    return (*own, *(["python3"] if image.facts.python else []))
