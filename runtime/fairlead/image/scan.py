"""The facts of a whole tree: every ELF file in it is opened once. :mod:`fairlead.image.open` caches the result."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from fairlead.base.paths import resolve_in
from fairlead.elf import reader as elf_file
from fairlead.elf.facts import Elf, ImageFacts, MpiLibrary
from fairlead.elf.mpi_symbols import (
    GLIBC_PIECES,
    identify,
    is_binding,
    is_mpi_library,
    is_request,
)
from fairlead.elf.reader import NotElf, newest
from fairlead.image.imports import own_libraries, with_imports
from fairlead.image.objects import Objects, first_line, target_of
from fairlead.image.packages import os_release, walk

_PYTHON = re.compile(r"python(3\.\d+)$")


def scan_tree(root: Path) -> ImageFacts:
    """Reads every ELF file below ``root``, a complete root file system.

    Symlinks are resolved inside ``root``, never on this machine.

    Raises:
        OSError: ``root`` cannot be read.
    """
    links: dict[str, str] = {}
    elves: dict[str, Elf] = {}
    scripts: dict[str, str] = {}
    floor: list[str] = []
    pieces: list[tuple[str, str]] = []
    libstdcxx = libgfortran = ""
    for path in _candidates(root, links):
        inside = "/" + str(path.relative_to(root))
        try:
            elf = elf_file.read(path, inside)
        except NotElf:
            if line := first_line(path):
                scripts[inside] = line
            continue
        elves[inside] = elf
        floor.append(elf.needs.get("GLIBC", ""))
        if GLIBC_PIECES.match(elf.soname):
            pieces.append((elf.soname, inside))
        if elf.soname == "libstdc++.so.6":
            libstdcxx = newest([libstdcxx, elf.offers.get("GLIBCXX", "")])
        elif elf.soname == "libgfortran.so.5":
            libgfortran = newest([libgfortran, elf.offers.get("GFORTRAN", "")])
    objects = Objects(root, elves, links)
    glibc_files = _glibc_files(pieces, objects.loaders)
    libc = elves.get(glibc_files.get("libc.so.6", ""))
    mpis = [_mpi(root, elf, objects) for elf in elves.values() if is_mpi_library(elf)]
    paths = {mpi.path for mpi in mpis}
    ends = {*paths, *(p for p, e in elves.items() if _asks(e) or _contains(e))}
    leads = objects.leads(ends)
    parts = {p for p in leads if is_binding(elves[p].soname)}
    consumers = []
    for place, elf in elves.items():
        tied = objects.tied(elf, paths) if place in leads or elf.opens else ()
        needed = paths.union(parts).intersection(leads.get(place, {}).values())
        if place not in paths and (needed or tied or _asks(elf) or _contains(elf)):
            consumers.append(replace(elf, tied=tied))
    own = own_libraries(root, objects, paths | parts)
    consumers = [with_imports(root, elf, objects, own) for elf in consumers]
    return ImageFacts(
        arch=libc.machine if libc else "",
        glibc=libc.offers.get("GLIBC", "") if libc else "",
        libstdcxx=libstdcxx,
        os=os_release(root).get("PRETTY_NAME", ""),
        python=_python(root),
        mpis=tuple(sorted(mpis, key=lambda m: m.path)),
        consumers=tuple(sorted(consumers, key=lambda e: e.path)),
        glibc_floor=newest(floor),
        files=len(elves),
        glibc_files=glibc_files,
        libgfortran=libgfortran,
        leads=leads,
        parts=objects.among({*own, *(e.path for e in consumers)} - paths, set(own)),
        programs=objects.programs(scripts, links),
        named=objects.named(scripts, {elf.path for elf in consumers if elf.can_start}),
    )


def _mpi(root: Path, elf: Elf, objects: Objects) -> MpiLibrary:
    path = root / elf.path.lstrip("/")
    names = tuple(sorted(_names(root, path)))
    behind = tuple(objects.behind(elf.path))
    return identify(path, elf, names, _python_prefix(root, path), behind)


def _glibc_files(pieces: list[tuple[str, str]], loaders: Sequence[str]) -> dict[str, str]:
    """The system's own glibc, which has the loader of most programs: some packages bring another in a folder of theirs."""
    folders = [path.rpartition("/")[0] for name, path in pieces if name == "libc.so.6"]
    used = [place for path in loaders if (place := path.rpartition("/")[0]) in folders]
    own = [*used, *sorted(folders, key=len)][:1]
    return {name: path for name, path in pieces if path.rpartition("/")[0] in own}


def _candidates(root: Path, links: dict[str, str]) -> Iterator[Path]:
    """Regular files that can be ELF files or scripts: a mode bit or a name says so, then the first bytes do.

    Args:
        links: takes the symlinks on the way.
    """
    for folder, folders, files in walk(root):
        folders.sort()
        for name in (*sorted(files), *folders):
            path = folder / name
            try:
                status = path.lstat()
                if stat.S_ISLNK(status.st_mode):
                    links["/" + str(path.relative_to(root))] = target_of(root, path)
                if not stat.S_ISREG(status.st_mode) or status.st_size < 3:
                    continue
                if not status.st_mode & 0o111 and ".so" not in name:
                    continue
                with path.open("rb") as stream:
                    magic = stream.read(4)
                if magic == b"\x7fELF" or (magic[:2] == b"#!" and status.st_mode & 0o111):
                    yield path
            except PermissionError:
                continue


def _asks(elf: Elf) -> bool:
    return any(is_request(name) for name in elf.needed)


def _contains(elf: Elf) -> bool:
    """A program or an extension module with an MPI in it.

    Libraries such as ParMETIS, which neither need nor contain one, rely on the program that loads them.
    """
    return bool(elf.holds) or ("MPI_Init" in elf.mpi_exports and not elf.soname)


def _names(root: Path, path: Path) -> Iterator[str]:
    for entry in os.scandir(path.parent):
        leads = entry.is_symlink() and ".so" in entry.name
        if entry.name == path.name or (leads and resolve_in(root, Path(entry.path)) == path):
            yield entry.name


def _python_prefix(root: Path, library: Path) -> str:
    """mpi4py tries ``sys.prefix/lib`` before everything else."""
    if library.parent.name != "lib":
        return ""
    prefix = library.parent.parent
    python = prefix / "bin" / "python3"
    return "/" + str(prefix.relative_to(root)) if python.exists() or python.is_symlink() else ""


def _python(root: Path) -> str:
    """Version of the newest python3 in the usual places, e.g. ``3.11``."""
    versions = []
    opt = resolve_in(root, root / "opt")
    prefixes = sorted(opt.iterdir()) if opt and opt.is_dir() else []
    for prefix in [root / "usr", root / "usr/local", *prefixes]:
        folder = resolve_in(root, prefix / "bin")
        if folder and folder.is_dir():
            versions += [m[1] for p in folder.iterdir() if (m := _PYTHON.match(p.name))]
    return newest(versions)
