"""Which files a rank may map as the planned MPI: the library itself, its parts, and what is behind it.

The libraries of one MPI work only with each other: Open MPI 4's `libopen-pal` next to Open MPI 5's ends with exit
code 0 and wrong results. A name decides whether a file is looked at, the file's inode whether it is the staged one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from fairlead.elf.mpi_symbols import GLIBC_PIECES, RUNTIME_PIECES, is_core, is_interface
from fairlead.prove import BINDINGS, MPI_FILE
from fairlead.swap.model import Plan

# Parts of an MPI, and libraries that open modules by themselves: no other file will do in their place.
_OWN = re.compile(r"lib(p?mpi|p?mpich|open[-_](pal|rte|mpi)|oshmem|uc[mpst]|fabric|pmix)(?![a-z])")
# What is not staged has no inode to compare with: of these, there must not be two.
_IMAGES_OWN = (
    "libopen-pal",
    "libopen-rte",
    "libopen_mpi",
    "libucp",
    "libuct",
    "libucs",
    "libfabric",
    "libpmix",
)
_OTHER_NAMES = re.compile(
    r"/lib(pmpi|open_mpi)[^/]*\.so"
)  # libpmpi_abi.so.1; libopen_mpi.so.40 of Open MPI 6
_HASH = re.compile(r"-[0-9a-f]{8}$")  # auditwheel's


class Library(NamedTuple):
    """One library that belongs to the planned MPI.

    Attributes:
        stem: its name up to ``.so``.
        inode: of its staged file; 0 for the image's own.
        loose: another file will do in its place, and only two at once will not. The image's own that is not loose is an
            interface of its MPI to Fortran, which has an MPI's name and stays whatever MPI is planned.
    """

    stem: str
    inode: int
    loose: bool


class File(NamedTuple):
    """A file that a process has mapped."""

    path: str
    inode: int


class Mapped(NamedTuple):
    """What a process has mapped, judged.

    Attributes:
        planned: of the planned MPI.
        foreign: of another MPI.
        odd: in the place of a library that belongs to the planned MPI; none where no MPI is mapped, since a program
            may use UCX or libfabric by itself.
    """

    planned: tuple[File, ...]
    foreign: tuple[File, ...]
    odd: tuple[File, ...]


def libraries(plan: Plan, cache: Path) -> tuple[Library, ...]:
    """The libraries that belong to the planned MPI. Its files must be staged.

    Libraries with version definitions are left out, unless they are the MPI's own: the loader checks these itself,
    and two of them can be mapped at once.
    """
    parts = (e for e in plan.facts.consumers if is_interface(e) and not is_core(e.soname))
    stems = dict.fromkeys(_stem(e.path) for e in parts if is_mpi(e.path))
    kept = tuple(Library(stem, 0, False) for stem in stems)
    if plan.staging is None or plan.host is None:
        brought = tuple(_carried(plan, cache))
        there = {library.stem for library in brought}
        return (*kept, *brought, *(Library(s, 0, True) for s in _IMAGES_OWN if s not in there))
    folder = cache / "stage" / plan.staging.key
    of_host = {elf.path: elf for elf in plan.host.parts}
    mapped = list(kept)
    for item in plan.staging.files:
        elf = of_host.get(item.source)
        if not elf or GLIBC_PIECES.match(elf.name) or elf.name in RUNTIME_PIECES:
            continue
        staged, own = folder / item.target, bool(_OWN.match(elf.name))
        if own or not _has_versions(staged):
            stem = _stem(item.target)
            mapped.append(
                Library(_HASH.sub("", stem) if own else stem, staged.stat().st_ino, not own)
            )
    return tuple(mapped)


def _carried(plan: Plan, cache: Path) -> Iterator[Library]:
    """The host's libraries below the image's own MPI: no other file may be mapped in their place."""
    staging = plan.carried_staging
    for item in staging.files if staging else ():
        if item.target.startswith("lib/"):
            stem = _stem(item.target)
            inode = (cache / "stage" / staging.key / item.target).stat().st_ino if staging else 0
            yield Library(stem, inode, False)


def _stem(path: str) -> str:
    return PurePosixPath(path).name.partition(".so")[0]


def _has_versions(library: Path) -> bool:
    """Whether it defines symbol versions: then the names of its sections have this one."""
    return b".gnu.version_d\0" in library.read_bytes()


def setting(known: Iterable[Library]) -> str:
    """The value of FAIRLEAD_PROOF_LIBS, as witness.c reads it."""
    return "|".join(f"{lib.inode}/{lib.stem}{'+' * lib.loose}" for lib in known)


def is_mpi(path: str) -> bool:
    """Whether a file is an MPI library, or the main part of one under another name; by its name, as in witness.c."""
    if BINDINGS.search(path):
        return False
    return bool(MPI_FILE.search(path) or _OTHER_NAMES.search(path))


def is_front(plan: Plan) -> bool:
    """Whether the image's MPI may be the front of another one, which it opens: MPItrampoline, wi4mpi, a filter."""
    opens = any(m.elf.opens for m in plan.facts.mpis if m.path == plan.planned_file)
    return bool(plan.unknown_mpi) and opens


def is_planned(mpi: File, plan: Plan, inode: int, known: Sequence[Library]) -> bool:
    """Whether a mapped MPI is the planned one, or a part of it; behind a front, any.

    Args:
        inode: of the planned MPI's file; 0 when the path decides.
        known: the libraries that belong to it.
    """
    if inode:
        return mpi.inode in {inode, *(lib.inode for lib in known)}
    if is_front(plan):
        return True
    places = (plan.planned_file, *plan.bound)
    folders = {PurePosixPath(place).parent for place in places}
    part = not MPI_FILE.search(mpi.path) and PurePosixPath(mpi.path).parent in folders
    return mpi.path in places or part


def judged(files: Sequence[File], plan: Plan, inode: int, known: Sequence[Library]) -> Mapped:
    """What ``files``, each once, are to the plan; the arguments are those of :func:`is_planned`."""
    interfaces = {library.stem for library in known if not (library.inode or library.loose)}
    mpis = [file for file in files if is_mpi(file.path) and _stem(file.path) not in interfaces]
    planned = tuple(file for file in mpis if is_planned(file, plan, inode, known))
    foreign = tuple(file for file in mpis if file not in planned)
    odd, counts = [], dict[str, int]()
    for file in files if mpis else ():
        stem = _stem(file.path)
        # Python packages bring libraries under names with a hash: only an MPI's own may not come that way.
        named = [lib for lib in known if lib.stem == (stem if lib.loose else _HASH.sub("", stem))]
        if not named or file in mpis:
            continue
        other = all(lib.inode != file.inode for lib in named)
        first = counts.setdefault(named[0].stem, file.inode)
        if first != file.inode or (other and any(lib.inode and not lib.loose for lib in named)):
            odd.append(file)
    return Mapped(planned, foreign, tuple(odd))
