"""Matches an image's MPI with a host's, from their ELF facts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fairlead.base.errors import FairleadError, fail
from fairlead.base.text import some
from fairlead.elf.facts import AbiFamily, Elf, ImageFacts, MpiLibrary
from fairlead.elf.mpi_symbols import asked_by, contains_mpi, is_request
from fairlead.engines.model import Engine
from fairlead.mpi.cross_abi import crossing
from fairlead.mpi.host import HostMpi
from fairlead.mpi.wheels import install_line
from fairlead.swap.layout import ALIASES
from fairlead.swap.model import Line, Request
from fairlead.swap.reach import (
    Kind,
    Reach,
    by_family,
    families_of,
    in_text,
    inside_of,
    interpreted,
    mpis_behind,
    reach,
)

NOTHING_NAMED = Request()


def choose_host(
    facts: ImageFacts, hosts: Sequence[HostMpi], request: Request, started: bool = False
) -> tuple[HostMpi | None, tuple[Line, ...]]:
    """The first host MPI of the image's family that has a launcher, and why the others were not chosen.

    If the host has none of that family: the first of a family that the programs can cross to.

    Args:
        started: the site's launcher starts ranks of any MPI, so none needs its own.
    """
    wanted, reached = image_family(facts, request), in_reach(facts, request)
    if not any(_starts(h, started) and h.library.family is wanted for h in hosts):
        may = reach(facts, request)
        others = possible(facts, may)
        usable = (h.library.family for h in hosts if _starts(h, started))
        wanted = next((family for family in usable if family in others), wanted)
    near = [h for h in hosts if h.library.family is wanted and _starts(h, started)]
    chosen: HostMpi | None = None
    left: list[Line] = []
    for host in hosts:
        family = host.library.family
        over = crossing(reached, interpreted(facts, request), family)
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


def _starts(host: HostMpi, started: bool) -> bool:
    return started or host.launcher is not None


def in_reach(facts: ImageFacts, request: Request) -> ImageFacts:
    """``facts`` without the consumers that the request's programs cannot load."""
    return replace(facts, consumers=reach(facts, request).files)


def image_family(facts: ImageFacts, request: Request = NOTHING_NAMED) -> AbiFamily:
    """The family that the named programs are compiled for; of all files, if none is named or those use no MPI.

    If an image offers several families, as MPICH 5 does with libmpi.so.12 and libmpi_abi.so.1, the family that
    most files in reach need wins; programs that come with an MPI do not count. Of a program that opens libraries or
    starts others, any of those in reach may be meant: that of ``request.family``.
    """
    reached = reach(facts, request)
    if certain := _certain(facts, reached):
        return certain
    families = by_family(facts, reached)
    if request.family in possible(facts, reached):
        return request.family
    families = families or by_family(facts, Reach((), facts.consumers))
    wanted = {family: len(files) for family, files in families.items()}
    siblings = [f for e in facts.consumers for f in asked_by(facts, e).values() if f not in wanted]
    own = {m.family for m in facts.mpis}
    known = (AbiFamily.MPICH, AbiFamily.OPENMPI, AbiFamily.MPI5)
    for candidates in (own & set(wanted), own, set(wanted), set(siblings)):
        if offered := [family for family in known if family in candidates]:
            return max(offered, key=lambda family: wanted.get(family, 0))  # the first of equals
    return AbiFamily.UNKNOWN


def _certain(facts: ImageFacts, reached: Reach) -> AbiFamily | None:
    """The family that named programs ask for by their links, or that what a text names asks for."""
    if (behind := mpis_behind(facts, reached)) and all(
        m.family is AbiFamily.UNKNOWN for m in behind
    ):
        return AbiFamily.UNKNOWN
    if any(program.perhaps for program in reached.programs):
        several = by_family(facts, reached)
        return next(iter(several)) if len(several) == 1 else None
    for program in reached.programs:
        for elf in (e for e in reached.files if program.path == e.path and program.path):
            if asked := list(asked_by(facts, elf).values()):
                return asked[0]
            if elf.holds:
                return AbiFamily(elf.holds)
    if reached.exact and (
        inside := [e.holds for e in reached.files if contains_mpi(e) and e.holds]
    ):
        return AbiFamily(inside[0])
    if reached.exact and not by_family(facts, reached):  # Fortran may link an MPI's interface alone
        return next((f for elf in reached.files for f in asked_by(facts, elf).values()), None)
    named = in_text(facts, reached)
    asked = [f for e in facts.consumers if e.path in named for f in families_of(facts, e)]
    families = {*asked, *(mpi.family for mpi in facts.mpis if mpi.path in named)}
    return families.pop() if len(families) == 1 else None


def possible(facts: ImageFacts, reached: Reach) -> frozenset[AbiFamily]:
    """The families of which programs that open libraries or start others may use one; empty where that is certain.

    What opens libraries may open any MPI of the image, by its name.
    """
    if not reached.open_ended or _certain(facts, reached):
        return frozenset()
    opened = any(program.kind is Kind.OPENS for program in reached.programs)
    return frozenset(by_family(facts, reached)).union(m.family for m in facts.mpis if opened)


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
        FairleadError: exit code 121; the image uses no MPI, or none whose ranks could be started, or the host has no
            MPI to replace it.
    """
    family = image_family(facts, request)
    kept = request.mpi == "container" and own_place(facts, request)[0]
    if family is AbiFamily.UNKNOWN and not kept:
        raise _no_family(image, facts, engine)
    if request.mpi == "host" and host is None:
        reasons = "\n".join(f"{n.what}: {n.why}" for n in notes)
        if machine:
            raise fail("host-mpi-none-on-machine", machine=machine, family=family, seen=reasons)
        install = install_line(family)
        raise fail("host-mpi-none-here", family=family, seen=reasons, install=install)
    return family


def own_place(facts: ImageFacts, request: Request) -> tuple[str, str]:
    """The file with the MPI that the named programs run on if the image keeps its own, and what it is; empty ones if
    nothing is there. What a static program contains is not known, if it is not a known MPI.
    """
    if inside := inside_of(facts, request):
        return inside.path, f"the MPI inside {inside.path}"
    if own := own_library(facts, request):
        return own.path, own.title
    reached = reach(facts, request)
    static = (
        p.path for p in reached.programs if "static" in facts.programs.get(p.path, "").split()
    )
    if path := next(static, ""):
        return path, f"what {path} contains"
    return "", ""


def own_library(facts: ImageFacts, request: Request) -> MpiLibrary | None:
    """The MPI library of the image that the named programs run on if the image keeps its own; None if it has none for
    them, or they contain one."""
    family = image_family(facts, request)
    if inside_of(facts, request):
        return None
    behind = mpis_behind(facts, reach(facts, request))
    linked = (mpi for mpi in behind if family in (mpi.family, AbiFamily.UNKNOWN))
    return next(linked, _own_mpi(facts, family))


def _no_family(image: str, facts: ImageFacts, engine: Engine) -> FairleadError:
    """Why there is nothing to plan for: no MPI, none that could be replaced, or none that is known."""
    contain = [elf.path for elf in facts.consumers if contains_mpi(elf)]
    unknown = [m.path for m in facts.mpis if m.family is AbiFamily.UNKNOWN]
    missing = [f"{n} of {e.path}" for e in facts.consumers for n in e.needed if is_request(n)]
    if unknown:
        return fail("mpi-unknown", image=image, names=some(unknown))
    if missing:
        return fail("mpi-missing", image=image, names=some(missing))
    if contain:
        return fail("mpi-static-only", image=image, programs=some(contain))
    return fail("no-mpi", image=image, engine=engine)


def _own_mpi(facts: ImageFacts, family: AbiFamily) -> MpiLibrary | None:
    """The image's MPI of ``family``; one outside every Python prefix is preferred."""
    own = [m for m in facts.mpis if m.family is family]
    return min(own, key=lambda m: (bool(m.python_prefix), m.path), default=None)


def speaking(facts: ImageFacts, request: Request, mapped: MpiLibrary | None = None) -> AbiFamily:
    """The family whose launchers can start the ranks.

    Args:
        mapped: the host's MPI that takes the place of the image's; None where the image keeps its own.
    """
    return _speaks(mapped or own_library(facts, request), image_family(facts, request))


def _speaks(library: MpiLibrary | None, family: AbiFamily) -> AbiFamily:
    """As :func:`speaking`, of one MPI.

    The MPI-5 ABI does not cover launchers, so for it the vendor decides; for an unknown MPI, how its ranks find each other.
    """
    if library and library.pmi:
        return AbiFamily.OPENMPI if library.pmi == "pmix" else AbiFamily.MPICH
    if library is None or library.family is not AbiFamily.MPI5:
        return library.family if library else family
    return AbiFamily.OPENMPI if library.vendor == "Open MPI" else AbiFamily.MPICH


def names_of(
    facts: ImageFacts, consumers: Sequence[Elf], family: AbiFamily, own: MpiLibrary | None
) -> tuple[str, ...]:
    """The SONAMEs by which programs request an MPI of ``family``; without any, the usual one."""
    asked = {n for e in consumers for n, of in asked_by(facts, e).items() if of is family}
    if asked or (own is None and family is AbiFamily.UNKNOWN):
        return tuple(sorted(asked))
    return (own.soname if own and own.family is family else ALIASES[family]["main"][1],)
