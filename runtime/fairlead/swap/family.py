"""Matches an image's MPI with a host's, from their ELF facts."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import PurePosixPath

from fairlead.base.errors import fail
from fairlead.elf.facts import AbiFamily, Elf, ImageFacts, MpiLibrary
from fairlead.elf.mpi_symbols import family_of_soname
from fairlead.engines.model import Engine
from fairlead.mpi.cross_abi import MPI4PY_MODULE, crossing
from fairlead.mpi.host import HostMpi, is_binding
from fairlead.swap.layout import ALIASES
from fairlead.swap.model import Line, Request


def choose_host(
    facts: ImageFacts, hosts: Sequence[HostMpi], request: Request, started: bool = False
) -> tuple[HostMpi | None, tuple[Line, ...]]:
    """The first host MPI of the image's family that has a launcher, and why the others were not chosen.

    If the host has none of that family: the first of a family that the programs can cross to.

    Args:
        started: the site's launcher starts ranks of any MPI, so none needs its own.
    """
    wanted = image_family(facts, programs_of(request))
    near = [h for h in hosts if h.library.family is wanted and (started or h.launcher is not None)]
    chosen: HostMpi | None = None
    left: list[Line] = []
    for host in hosts:
        family = host.library.family
        over = crossing(facts, programs_of(request), family)
        if family is not wanted and (near or not over.allowed):
            why = f"its family is {family}, the image's is {wanted}"
            if not near and over.modules:
                why += f"; {over.why_not}"
        elif host.launcher is None and not started:
            why = "its prefix has no mpiexec to start its ranks"
        elif chosen is not None:
            why = f"{chosen.library.title} comes first: {chosen.found_by}"
        else:
            chosen = host
            continue
        what = f"{host.library.title} in {host.prefix}"
        left.append(Line("left out", what, why, host.library.path))
    return chosen, tuple(left)


def image_family(facts: ImageFacts, programs: Sequence[str] = ()) -> AbiFamily:
    """The family of the image's MPI; without one, the family that most of its consumers need.

    An image may have several MPIs, so the family that a named program is compiled for takes precedence. If
    one MPI offers several families, as MPICH 5 does with libmpi.so.12 and libmpi_abi.so.1, the family that
    most consumers need wins; programs that come with an MPI do not count.
    """
    for elf in facts.consumers:
        asked = _families(elf)
        if asked and elf.interpreter and _is_called(elf, programs):
            return asked[0]
    with_mpi = {PurePosixPath(m.path).parents[1] / "bin" for m in facts.mpis}
    others = (e for e in facts.consumers if PurePosixPath(e.path).parent not in with_mpi)
    wanted = [family for elf in others for family in _families(elf)]
    own = {m.family for m in facts.mpis}
    offered = [f for f in (AbiFamily.MPICH, AbiFamily.OPENMPI, AbiFamily.MPI5) if f in own]
    if offered:
        return max(offered, key=wanted.count)  # the first of equals
    return max(set(wanted), key=wanted.count) if wanted else AbiFamily.UNKNOWN


def _families(elf: Elf) -> list[AbiFamily]:
    """The families of the MPI libraries that a file needs."""
    families = map(family_of_soname, elf.needed)
    return [family for family in families if family is not AbiFamily.UNKNOWN]


def _is_called(elf: Elf, names: Collection[str]) -> bool:
    return elf.path in names or PurePosixPath(elf.path).name in names


def replaceable(
    image: str,
    facts: ImageFacts,
    host: HostMpi | None,
    engine: Engine,
    request: Request,
    notes: tuple[Line, ...] = (),
    machine: str = "",
) -> AbiFamily:
    """The family of the image's MPI, after checking that a plan is possible.

    Args:
        machine: name of the other machine that the plan is for; empty for this one.

    Raises:
        FairleadError: exit code 121; the image uses no MPI, or the host has no MPI to replace it.
    """
    family = image_family(facts, programs_of(request))
    if family is AbiFamily.UNKNOWN:
        raise fail("no-mpi", image=image, engine=engine)
    if request.mpi == "host" and host is None:
        seen = "\n".join(f"{n.what}: {n.why}" for n in notes)
        if machine:
            raise fail("host-mpi-none-on-machine", machine=machine, family=family, seen=seen)
        raise fail("host-mpi-none-here", family=family, seen=seen)
    return family


def own_mpi(facts: ImageFacts, family: AbiFamily) -> MpiLibrary | None:
    """The image's MPI of ``family``; one outside every Python prefix is preferred."""
    own = [m for m in facts.mpis if m.family is family]
    return min(own, key=lambda m: (bool(m.python_prefix), m.path), default=None)


def programs_of(request: Request) -> tuple[str, ...]:
    """The programs that will run, as far as the user named them."""
    return request.apps or request.command[:1]


def speaks(library: MpiLibrary | None, family: AbiFamily) -> AbiFamily:
    """The family whose launchers can start an MPI's ranks.

    The MPI-5 ABI does not cover launchers, so for it the vendor decides.
    """
    if library is None or library.family is not AbiFamily.MPI5:
        return library.family if library else family
    return AbiFamily.OPENMPI if library.vendor == "Open MPI" else AbiFamily.MPICH


def relevant(facts: ImageFacts, request: Request, family: AbiFamily) -> tuple[Elf, ...]:
    """The consumers that this request can run: its programs, and all libraries and extension modules."""
    programs = set(request.apps)
    if not programs:
        called = (
            e for e in facts.consumers if e.interpreter and _is_called(e, request.command[:1])
        )
        programs = {e.path for e in called}
    kept: list[Elf] = []
    homes = {PurePosixPath(mpi.path).parent for mpi in facts.mpis}
    asked = {name for elf in facts.consumers for name in elf.needed}
    for elf in facts.consumers:
        part_of_mpi = PurePosixPath(elf.path).parent in homes and is_binding(elf.soname)
        if part_of_mpi and elf.soname not in asked:
            continue  # a Fortran or C++ interface that nothing in the image uses
        if programs and elf.interpreter and not elf.soname and elf.path not in programs:
            continue
        if MPI4PY_MODULE.match(elf.path) and family not in map(family_of_soname, elf.needed):
            continue  # mpi4py has one module for each family and chooses at import
        kept.append(elf)
    return tuple(kept)


def names_of(
    consumers: Sequence[Elf], family: AbiFamily, own: MpiLibrary | None
) -> tuple[str, ...]:
    """The SONAMEs by which programs request an MPI of ``family``; without any, the usual one."""
    asked = {n for e in consumers for n in e.needed if family_of_soname(n) is family}
    if asked:
        return tuple(sorted(asked))
    return (own.soname if own and own.family is family else ALIASES[family]["main"][1],)
