"""A machine as its profile describes it, for plans made without the machine and without its capture.

The values of the profile become a :class:`~fairlead.detect.capture.Capture` that consists of names: the
MPI's family and version, its dependencies, the engine, the launcher. What the profile does not say is
assumed in the plan's favour and reported: the answer is then conditional.
"""

from __future__ import annotations

from collections.abc import Iterator

from fairlead import __version__
from fairlead.base.errors import Finding, Severity, finding_of, warning
from fairlead.detect.capture import Capture
from fairlead.detect.model import SiteFacts
from fairlead.elf.facts import AbiFamily, Elf, ImageFacts, MpiLibrary
from fairlead.elf.mpi_standard import edition_of
from fairlead.engines.model import Engine
from fairlead.engines.registry import ENGINES
from fairlead.launchers.model import Launcher
from fairlead.mpi.host import HostMpi
from fairlead.site.model import Site, Status

_FAMILIES = {
    "mpich": (AbiFamily.MPICH, "libmpi.so.12"),
    "openmpi": (AbiFamily.OPENMPI, "libmpi.so.40"),
    "mpi5": (AbiFamily.MPI5, "libmpi_abi.so.1"),
}
# Processor families as archspec names them, and as ELF files are described.
_MACHINES = {"x86_64": "x64", "aarch64": "AArch64", "ppc64le": "64-bit PowerPC"}


def tells_enough(site: Site) -> bool:
    """Whether a profile says whose MPI a site has, without which nothing can be said."""
    return site.mpi.family in _FAMILIES


def machine(site: Site, facts: ImageFacts) -> Capture:
    """The site as its profile describes it.

    Args:
        facts: of the image; of the functions that it calls, the MPI has those of its edition.
    """
    kind = site.engine.kinds[0]
    binds_files = ENGINES.get(kind).binds_files
    engine = Engine(
        kind, kind, userns_per_rank=False, options=(), reasons=(), binds_files=binds_files
    )
    return Capture(
        node=site.name,
        taken="",
        fairlead=__version__,
        site=site,
        reason="named by --site; nothing but its profile is known here",
        engine=engine,
        mpis=(_mpi(site, facts),),
        facts=SiteFacts(site.name, 0),
    )


def _mpi(site: Site, facts: ImageFacts) -> HostMpi:
    family, soname = _FAMILIES[site.mpi.family]
    folder = site.mpi.search[0] if site.mpi.search else f"(the MPI of {site.name})"
    arch = _machine(site) or facts.arch
    called = {name for elf in facts.consumers for name in elf.mpi_imports}
    level = site.mpi.level or "5.0"
    exports = tuple(sorted(name for name in called if edition_of(name) <= level))
    needs = {"GLIBC": site.mpi.glibc} if site.mpi.glibc else {}

    def file(name: str) -> Elf:
        return Elf(f"{folder}/{name}", arch, soname=name, needs=needs)

    library = Elf(
        f"{folder}/{soname}",
        arch,
        soname=soname,
        needed=site.dependencies.expected,
        needs=needs,
        mpi_exports=(*exports, "MPI_Init", "MPI_Comm_rank"),
    )
    vendor = site.mpi.vendor or "MPI"
    kind = site.launcher.kinds[0]
    return HostMpi(
        library=MpiLibrary(library, family, vendor, "", site.mpi.level or "unknown", (soname,)),
        prefix=folder,
        closure=tuple(file(name) for name in site.dependencies.expected),
        companions=(),
        plugins=(),
        data=(),
        missing=(),
        launcher=Launcher(kind, family, kind, kind),
        found_by=f"the profile {site.name} says so",
    )


def _machine(site: Site) -> str:
    if not site.node.processor:
        return ""
    import archspec.cpu

    known = archspec.cpu.TARGETS.get(site.node.processor[0])
    return _MACHINES.get(str(known.family), "") if known else ""


def assumptions(site: Site) -> Iterator[Finding]:
    """What the answer stands on."""
    relied = ("mpi.family", "mpi.level", "mpi.glibc", "engine.kinds", "launcher.kinds")
    values = {key: site.value(key) for key in relied}
    texts = {k: ", ".join(v) if isinstance(v, tuple) else v for k, v in values.items()}
    known = [f"{key}: {text} ({site.known_by(key)})" for key, text in texts.items() if text]
    why = "\n".join(known)
    if unknown := ", ".join(key for key, text in texts.items() if not text):
        why += f"\nnot stated, and assumed to fit: {unknown}"
    yield warning("profile-only", site_name=site.name, why=why)


def policy(site: Site, mpi: str) -> Iterator[Finding]:
    """What the site itself exchanges in a container, when that is not its MPI."""
    if mpi == "container" or site.mpi.replaces == "mpi":
        return
    known_by = site.known_by("mpi.replaces")
    if site.mpi.replaces == "none":
        guess = site.status("mpi.replaces") is Status.GUESS
        severity = Severity.WARNING if guess else Severity.ERROR
        yield finding_of("site-mpi-none", site_name=site.name, known_by=known_by, severity=severity)
    else:
        yield warning("site-mpi-libfabric", site_name=site.name, known_by=known_by)
