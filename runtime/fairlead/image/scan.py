"""The facts of a whole tree: every ELF file in it is opened once. :mod:`fairlead.image.open` caches the result."""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from fairlead.base.paths import resolve_in
from fairlead.base.python_imports import package_of
from fairlead.base.regular import open_regular
from fairlead.elf import nccl_symbols
from fairlead.elf import reader as elf_file
from fairlead.elf.facts import Elf, ImageFacts, MpiLibrary
from fairlead.elf.mpi_symbols import (
    GLIBC_PIECES,
    RUNTIME_PIECES,
    contains_mpi,
    homemade,
    identify,
    is_interface,
    is_mpi_library,
    is_request,
)
from fairlead.elf.reader import NotElf, TooCostly, newest
from fairlead.image.budget import Budget
from fairlead.image.imports import own_libraries, with_imports
from fairlead.image.objects import Objects, first_line, target_of
from fairlead.image.packages import Folders, os_release, text_in, walk
from fairlead.image.python_modules import python_modules
from fairlead.image.unpacking import unpacked_mpis

T = TypeVar("T")
_PYTHON = re.compile(r"python(3\.\d+)$")
_DRIVERS = ("libcuda.so.1",)
_GIVEN = (".sh", ".bash")  # scripts that are given to a shell, which need not be executable
# Libraries that programs open, with names of their own: of Octave, MATLAB, Node.js and OCaml.
_MODULES = (".oct", ".mex", ".mexa64", ".node", ".cmxs")


def scan_tree(
    root: Path,
    budget: Budget | None = None,
    folders: Folders | None = None,
    contents: dict[str, Elf | str] | None = None,
) -> ImageFacts:
    """Reads every ELF file below ``root``, a complete root file system.

    Symlinks are resolved inside ``root``, never on this machine.

    Args:
        folders: what ``packages.walk`` yields of it.
        contents: what is known of files by their paths; takes what is read.
    Raises:
        FairleadError: it takes more than ``budget``.
        OSError: a part of it cannot be read.
    """
    budget = budget or Budget(root)
    links: dict[str, str] = {}
    elves: dict[str, Elf] = {}
    scripts: dict[str, str] = {}
    floor: list[str] = []
    pieces: list[tuple[str, str]] = []
    libstdcxx = libgfortran = ""
    folders = list(walk(root, budget)) if folders is None else folders
    candidates = _candidates(root, folders, links)
    for inside, content in _contents(
        root, candidates, {} if contents is None else contents, budget
    ):
        if isinstance(content, str):
            if content:
                scripts[inside] = content
            continue
        elf = elves[inside] = replace(content, path=inside)
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
    small = homemade(elves, objects.behind)
    libraries = [elf for path, elf in elves.items() if path in small or is_mpi_library(elf)]
    budget.mpis(len(libraries))
    mpis = [_mpi(root, elf, objects) for elf in libraries]
    for part in (part for mpi in mpis for part in objects.behind(mpi.path)):
        elves[part.path] = replace(part, holds="")  # Open MPI 6 has its messages in libopen-pal
    paths = {mpi.path for mpi in mpis}
    ends = {*paths, *(p for p, e in elves.items() if _asks(e) or contains_mpi(e))}
    leads = objects.leads(ends)
    parts = {p for p in leads if is_interface(elves[p])}
    consumers = []
    for place, elf in elves.items():
        budget.clock(place)
        tied = objects.tied(elf, paths) if place in leads or elf.opens else ()
        needed = paths.union(parts).intersection(leads.get(place, {}).values())
        if place not in paths and (needed or tied or _asks(elf) or contains_mpi(elf)):
            consumers.append(replace(elf, tied=tied))
    own = own_libraries(root, objects, paths | parts, budget)
    consumers = [with_imports(root, elf, objects, own, budget) for elf in consumers]
    started = [elf.path for elf in consumers if elf.can_start]
    started_alone = {path: line for path, line in scripts.items() if _can_start(root, path)}
    modules = {*leads, *(elf.path for elf in consumers)}
    return ImageFacts(
        arch=libc.machine if libc else "",
        glibc=libc.offers.get("GLIBC", "") if libc else "",
        libstdcxx=libstdcxx,
        os=os_release(root, budget).get("PRETTY_NAME", ""),
        python=_python(root),
        mpis=tuple(sorted(mpis, key=lambda m: m.path)),
        consumers=tuple(sorted(consumers, key=lambda e: e.path)),
        glibc_floor=newest(floor),
        files=len(elves),
        glibc_files=glibc_files,
        runtime=tuple(
            sorted(
                {name for name, _ in pieces} | RUNTIME_PIECES & {e.soname for e in elves.values()}
            )
        ),
        libgfortran=libgfortran,
        leads=leads,
        parts=objects.among({*own, *(e.path for e in consumers)} - paths, set(own)),
        programs=objects.programs(started_alone, links, paths),
        capable=tuple(path for path in started if _is_capable(root, path)),
        set_ids={path: objects.unfound(path) for path in started if _sets_ids(root, path)},
        commands=objects.commands(scripts),
        launchers=objects.launchers(scripts),
        named=objects.named(scripts, {elf.path for elf in consumers if elf.can_start}, mpis),
        nccl=tuple(_identified(root, elves, nccl_symbols.library, budget)),
        net_plugins=tuple(_identified(root, elves, nccl_symbols.plugin, budget)),
        nccl_conf=_nccl_conf(root, budget),
        nccl_mapped={
            path: next((real for name, real in needed.items() if nccl_symbols.is_request(name)), "")
            for path, needed in objects.needs.items()
            if any(map(nccl_symbols.is_request, elves[path].needed))
        },
        drivers=tuple(
            sorted(p for p, e in elves.items() if e.soname in _DRIVERS and "/stubs/" not in p)
        ),
        gpu_libraries={
            e.soname: p for p, e in sorted(elves.items()) if nccl_symbols.is_run_time(e.soname)
        },
        lacking={
            path: lost
            for path in (*started, *(p for p in sorted(modules - {*started}) if package_of(p)[1]))
            if (lost := objects.lacking(path, paths))
        },
        preloaded=objects.preloaded(_preloads(root, budget)),
        python_imports=python_modules(root, folders, started_alone, modules, budget),
        unpacks={
            path: names
            for path, elf in sorted(elves.items())
            if elf.can_start
            and elf.opens
            and (names := unpacked_mpis(root / path.lstrip("/"), budget))
        },
    )


def _identified(
    root: Path,
    elves: Mapping[str, Elf],
    identify: Callable[[Path, Elf], T | None],
    budget: Budget,
) -> Iterator[T]:
    """What ``identify`` makes of the files of a tree, by path."""
    for path, elf in sorted(elves.items()):
        try:
            made = identify(root / path.lstrip("/"), elf)
        except TooCostly as exc:
            raise budget.costly(root / path.lstrip("/"), str(exc)) from None
        except NotElf:
            continue  # damaged where nothing else looks
        if made:
            budget.clock(path)
            yield made


def _preloads(root: Path, budget: Budget) -> list[str]:
    """What the loader preloads into every program (ld.so(8))."""
    text = text_in(root, "etc/ld.so.preload", budget)
    return re.sub(r"#.*", "", text).replace(":", " ").split()


def _nccl_conf(root: Path, budget: Budget) -> dict[str, str]:
    """What NCCL or RCCL reads in the image's /etc, as it reads it: ``NAME=VALUE`` lines, the first of a name."""
    values: dict[str, str] = {}
    for name in ("etc/nccl.conf", "etc/rccl.conf"):
        there = resolve_in(root, root / name)
        with suppress(OSError):
            text = budget.text(there) if there else ""
            for key, value in nccl_symbols.conf(text).items():
                values.setdefault(key, value)
    return values


def _contents(
    root: Path,
    candidates: Iterable[tuple[Path, tuple[int, int]]],
    contents: dict[str, Elf | str],
    budget: Budget,
) -> Iterator[tuple[str, Elf | str]]:
    """What is in each of them, by its path in the tree."""
    known: dict[tuple[int, int], Elf | str] = {}  # hard links cost nothing
    for path, inode in candidates:
        inside = "/" + str(path.relative_to(root))
        content = contents.get(inside) or known.get(inode)
        if content is None:
            content = _content(path, budget)
        contents[inside] = known[inode] = content
        yield inside, content


def _content(path: Path, budget: Budget) -> Elf | str:
    """The facts of an ELF file, or the first line of a script; empty for another file."""
    try:
        return elf_file.read(path)
    except TooCostly as exc:
        raise budget.costly(path, str(exc)) from None
    except NotElf:
        return first_line(path)


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


def _candidates(
    root: Path, folders: Folders, links: dict[str, str]
) -> Iterator[tuple[Path, tuple[int, int]]]:
    """Regular files that can be ELF files or scripts, each with what its hard links share: a mode bit or a name says
    so, then the first bytes do.

    Args:
        links: takes the symlinks on the way.
    """
    for folder, _, files in folders:
        for name in files:
            try:
                status = os.lstat(f"{folder}/{name}")
                if stat.S_ISLNK(status.st_mode):
                    path = folder / name
                    links["/" + str(path.relative_to(root))] = target_of(root, path)
                if not stat.S_ISREG(status.st_mode) or status.st_size < 3:
                    continue
                is_library = ".so" in name or name.endswith(_MODULES)
                is_started = status.st_mode & 0o111 or name.endswith(_GIVEN)
                if not is_started and not is_library:
                    continue
                path = folder / name
                with open_regular(path) as stream:
                    magic = stream.read(4)
                if magic == b"\x7fELF" or (magic[:2] == b"#!" and is_started):
                    yield path, (status.st_dev, status.st_ino)
            except PermissionError:
                continue


def _can_start(root: Path, script: str) -> bool:
    """Whether a script needs no shell that it is given to."""
    return bool((root / script.lstrip("/")).lstat().st_mode & 0o111)


def _is_capable(root: Path, path: str) -> bool:
    try:
        return bool(os.getxattr(root / path.lstrip("/"), "security.capability"))
    except OSError as exc:
        # So it is within a user namespace to whose ids they do not belong.
        return exc.errno == errno.EOVERFLOW


def _sets_ids(root: Path, path: str) -> bool:
    status = (root / path.lstrip("/")).lstat()
    user = status.st_mode & stat.S_ISUID and status.st_uid
    return bool(user or (status.st_mode & stat.S_ISGID and status.st_gid))


def _asks(elf: Elf) -> bool:
    return any(is_request(name) for name in elf.needed)


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
