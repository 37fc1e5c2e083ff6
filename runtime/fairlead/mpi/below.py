"""A library of the host below an MPI, such as its libfabric: where it is, what it needs, what it opens."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from fairlead.elf import reader
from fairlead.elf.carried.model import CarriedLibrary
from fairlead.elf.facts import Elf
from fairlead.elf.loader import Loader, system_folders
from fairlead.elf.reader import NotElf
from fairlead.mpi.host import Plugins, modules_of
from fairlead.site.model import Site
from fairlead.site.resolved_paths import matches


@dataclass(frozen=True)
class HostLibrary:
    """A library of the host that a container can get below its own MPI.

    Attributes:
        name: of the declaration.
        files: those of its SONAMEs, which belong together.
        closure: what else they need, without glibc.
        missing: ``(library, needed by)`` that the host's loader does not find.
        modules: what it opens at run time.
        found_by: why this one, for ``explain``.
    """

    name: str
    library: CarriedLibrary
    files: tuple[Elf, ...]
    closure: tuple[Elf, ...] = ()
    missing: tuple[tuple[str, str], ...] = ()
    modules: tuple[Plugins, ...] = ()
    found_by: str = ""

    @property
    def parts(self) -> tuple[Elf, ...]:
        """Every ELF file of it, without modules."""
        return (*self.files, *self.closure)


def find(
    name: str,
    library: CarriedLibrary,
    machine: str,
    site: Site,
    environ: Mapping[str, str] = os.environ,
    root: Path = Path("/"),
) -> HostLibrary | None:
    """The first that is for a processor and whole; None if there is none. No code of it is run.

    The order: LD_LIBRARY_PATH, as a loaded module sets it; the profile's folders; those of vendors; the system's.

    Args:
        machine: as :class:`~fairlead.elf.facts.Elf` has it.
    """
    for folder, why in _folders(library, site, environ, root):
        files = tuple(_files(folder, library, machine))
        if len(files) != len(library.sonames):
            continue
        first = tuple(matches((*site.nccl.libraries, *library.folders), environ, root))
        loader = Loader(environ.get("LD_LIBRARY_PATH", ""), root, first=(folder, *first))
        closure, missing = loader.closure([Path(elf.path) for elf in files])
        own = {elf.path for elf in files}
        behind = tuple(elf for elf in closure if elf.path not in own)
        modules = tuple(p for p in modules_of(files) if p.variable == library.variable)
        return HostLibrary(name, library, files, behind, tuple(missing), modules, why)
    return None


def _folders(
    library: CarriedLibrary, site: Site, environ: Mapping[str, str], root: Path
) -> Iterator[tuple[Path, str]]:
    for place in environ.get("LD_LIBRARY_PATH", "").split(":"):
        if place:
            yield Path(place), "in a folder of LD_LIBRARY_PATH"
    for folder in matches(site.nccl.libraries, environ, root):
        yield folder, f"in a folder of the profile {site.name}"
    for folder in matches(library.folders, environ, root):
        yield folder, "where its vendor installs it"
    for folder in system_folders(root):
        yield folder, "in the system's library folders"


def _files(folder: Path, library: CarriedLibrary, machine: str) -> Iterator[Elf]:
    for soname in library.sonames:
        try:
            real = (folder / soname).resolve(strict=True)
            elf = reader.read(real, str(real))
        except (NotElf, OSError):
            return
        if elf.machine != machine:
            return
        yield elf
