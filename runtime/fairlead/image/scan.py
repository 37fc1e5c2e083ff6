"""The facts of a whole tree: every ELF file in it is opened once. :mod:`fairlead.image.open` caches the result."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

from fairlead.base.paths import resolve_in
from fairlead.elf import reader as elf_file
from fairlead.elf.facts import Elf, ImageFacts, MpiLibrary
from fairlead.elf.mpi_symbols import GLIBC_PIECES, family_of_soname, identify, is_mpi_library
from fairlead.elf.reader import NotElf, newest
from fairlead.image.packages import os_release, walk

_PYTHON = re.compile(r"python(3\.\d+)$")


def scan_tree(root: Path) -> ImageFacts:
    """Reads every ELF file below ``root``, a complete root file system.

    Symlinks are resolved inside ``root``, never on this machine.

    Raises:
        OSError: ``root`` cannot be read.
    """
    mpis: list[MpiLibrary] = []
    consumers: list[Elf] = []
    tied: list[Elf] = []  # a DT_RPATH rules over the libraries of its program too
    floor: list[str] = []
    pieces: list[tuple[str, str]] = []
    glibc = libstdcxx = libgfortran = arch = ""
    count = 0
    for path in _candidates(root):
        inside = "/" + str(path.relative_to(root))
        try:
            elf = elf_file.read(path, inside)
        except NotElf:
            continue
        count += 1
        floor.append(elf.needs.get("GLIBC", ""))
        if GLIBC_PIECES.match(elf.soname):
            pieces.append((elf.soname, inside))
        if elf.soname == "libc.so.6":
            glibc, arch = newest([glibc, elf.offers.get("GLIBC", "")]), elf.machine
        elif elf.soname == "libstdc++.so.6":
            libstdcxx = newest([libstdcxx, elf.offers.get("GLIBCXX", "")])
        elif elf.soname == "libgfortran.so.5":
            libgfortran = newest([libgfortran, elf.offers.get("GFORTRAN", "")])
        if is_mpi_library(elf):
            names = tuple(sorted(_names(root, path)))
            mpis.append(identify(path, elf, names, _python_prefix(root, path)))
        elif _consumes(elf):
            consumers.append(elf)
        elif elf.rpath and not elf.runpath:
            tied.append(elf)
    folders = {m.path.rpartition("/")[0] for m in mpis}
    consumers += [e for e in tied if folders.intersection(e.rpath_folders)]
    return ImageFacts(
        arch=arch,
        glibc=glibc,
        libstdcxx=libstdcxx,
        os=os_release(root).get("PRETTY_NAME", ""),
        python=_python(root),
        mpis=tuple(sorted(mpis, key=lambda m: m.path)),
        consumers=tuple(sorted(consumers, key=lambda e: e.path)),
        glibc_floor=newest(floor),
        files=count,
        glibc_files=_glibc_files(pieces),
        libgfortran=libgfortran,
    )


def _glibc_files(pieces: list[tuple[str, str]]) -> dict[str, str]:
    """The system's own glibc: some packages bring another in a folder of theirs."""
    libc = min((path for name, path in pieces if name == "libc.so.6"), key=len, default="")
    folder = libc.rpartition("/")[0]
    return {name: path for name, path in pieces if libc and path.rpartition("/")[0] == folder}


def _candidates(root: Path) -> Iterator[Path]:
    """Regular files that can be ELF files: a mode bit or a name says so, then the magic does."""
    for folder, folders, files in walk(root):
        folders.sort()
        for name in sorted(files):
            path = folder / name
            try:
                status = path.lstat()
                if not stat.S_ISREG(status.st_mode) or status.st_size < 64:
                    continue
                if not status.st_mode & 0o111 and ".so" not in name:
                    continue
                with path.open("rb") as stream:
                    if stream.read(4) == b"\x7fELF":
                        yield path
            except PermissionError:
                continue


def _consumes(elf: Elf) -> bool:
    if any(family_of_soname(name) != "unknown" for name in elf.needed):
        return True
    # Without a NEEDED MPI, only a program that contains one matters (a static link); libraries
    # such as ParMETIS rely on the program that loads them.
    return "MPI_Init" in elf.mpi_exports and not elf.soname


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
