"""Which libraries of the host the image's own MPI gets: those that are asked for, else those of the site."""

from __future__ import annotations

from collections.abc import Iterator

from fairlead.base.errors import Finding, fail, info
from fairlead.elf.carried.registry import LIBRARIES
from fairlead.mpi.below import HostLibrary, find
from fairlead.session.choose import Situation


def wanted(situation: Situation) -> tuple[str, ...]:
    """Their names; none where the host's MPI takes the place of the image's."""
    request, site = situation.request, situation.site
    if request.mpi != "container" or "none" in request.carry:
        return ()
    sites = (site.mpi.replaces,) if site.mpi.replaces in LIBRARIES.names() else ()
    return tuple(dict.fromkeys(request.carry or sites))


def carried(situation: Situation) -> tuple[HostLibrary, ...]:
    """The libraries, as this machine has them; none of another machine, of which that is not known.

    Raises:
        FairleadError: exit code 121; one is not here.
    """
    if _elsewhere(situation):
        return ()
    libraries = []
    for name in wanted(situation):
        library = LIBRARIES.get(name)
        arch = situation.image.facts.arch
        library_found = find(name, library, arch, situation.site, situation.environ)
        if library_found is None:
            folders = ", ".join((*situation.site.nccl.libraries, *library.folders))
            files = ", ".join(library.sonames)
            raise fail("carried-none", library=library, files=files, folders=folders, arch=arch)
        libraries.append(library_found)
    return tuple(libraries)


def findings(situation: Situation) -> Iterator[Finding]:
    """What of it cannot be planned for another machine."""
    if _elsewhere(situation) and (names := wanted(situation)):
        yield info("carried-elsewhere", names=", ".join(names), site=situation.site.name)


def _elsewhere(situation: Situation) -> bool:
    return situation.capture is not None or situation.by_profile
