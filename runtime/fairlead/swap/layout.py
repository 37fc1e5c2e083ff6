"""The staged folder: what of the host's MPI goes into a container, where, and under which names.

A pure part of the plan (``plan.py``); ``stage.py`` makes the folder. Rules, each learned from a
failure (facts: glibc's ld.so(8), MPICH ABI compatibility initiative):

* a real file is staged once, under its SONAME; other names are symlinks *in the same folder*,
  because ``$ORIGIN`` is the folder of the name that was opened;
* ``libmpi.so`` is always among the names: mpi4py opens it first, and would map the image's;
* no piece of glibc ever comes by search path;
* nor does what the MPI needs behind it, where its copies can be told where that is: by LD_LIBRARY_PATH
  it would be given to the image's own programs too, which may need another version.
"""

from __future__ import annotations

import hashlib
import posixpath
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

from fairlead.elf.facts import AbiFamily, Elf, ImageFacts
from fairlead.elf.mpi_symbols import GLIBC_PIECES, family_of_soname
from fairlead.elf.reader import newest, version_key
from fairlead.mpi.host import RUNTIME_PIECES, HostMpi

ROOM = "/opt/fairlead"  # the folder of all that fairlead shows to a container
MOUNT = "/opt/fairlead/mpi"  # where the staged host MPI appears in every container
WITNESS = "/opt/fairlead/witness.so"  # and the library that proves a launch from within
RUN_MOUNT = "/opt/fairlead/run"  # the run's folder
_STAGE_FORMAT = 3  # moves when the layout of a staged folder does

ALIASES: dict[AbiFamily, dict[str, tuple[str, ...]]] = {
    AbiFamily.MPICH: {
        "main": ("libmpi.so", "libmpi.so.12", "libmpich.so.12"),
        "fort": ("libmpifort.so.12", "libmpichfort.so.12"),
        "cxx": ("libmpicxx.so.12", "libmpichcxx.so.12"),
    },
    AbiFamily.OPENMPI: {"main": ("libmpi.so", "libmpi.so.40"), "fort": (), "cxx": ()},
    AbiFamily.MPI5: {"main": ("libmpi_abi.so", "libmpi_abi.so.1"), "fort": (), "cxx": ()},
}


@dataclass(frozen=True)
class Line:
    """One line of the plan in words: what, why, and the fact behind it."""

    kind: str
    what: str
    why: str
    fact: str = ""


@dataclass(frozen=True)
class StagedFile:
    """A file of the host, and its place below the staged folder.

    Attributes:
        rpath: the DT_RPATH that its copy gets; empty to leave what it has.
    """

    source: str
    target: str
    rpath: str = ""


@dataclass(frozen=True)
class Staging:
    """The folder that holds the host's MPI for a container.

    Attributes:
        key: identity of its content; the folder's name.
        aliases: ``(link, target)``, relative, in the target's own folder.
        folders: ``(folder of the host, place below the staged folder)``, copied whole.
    """

    key: str
    files: tuple[StagedFile, ...]
    aliases: tuple[tuple[str, str], ...]
    folders: tuple[tuple[str, str], ...]


def stage_layout(
    host: HostMpi,
    facts: ImageFacts,
    lines: list[Line],
    glibc: Sequence[Elf] = (),
    *,
    isolate: bool = True,
    extra: Sequence[Elf] = (),
) -> Staging:
    """The staged folder of ``host``'s MPI for an image.

    Args:
        glibc: pieces of the host's C library that go along, in a folder of their own that is on no
            search path.
        isolate: the copies can be given a DT_RPATH.
        extra: libraries that go beside the MPI under their own file names.
    """
    library = host.library
    folder = PurePosixPath(library.path).parent
    files = [StagedFile(library.path, f"lib/{library.soname}")]
    lines.append(
        Line("stage", library.soname, "the host MPI itself, under its SONAME", library.path)
    )
    outside = False
    newer = _newer_runtime(host, facts)
    have = newest([facts.glibc, *(e.offers.get("GLIBC", "") for e in glibc)])
    staged = {e.soname for e in (*host.companions, *host.closure)}
    for elf in host.optional:
        name = elf.soname or PurePosixPath(elf.path).name
        if GLIBC_PIECES.match(name) or name in RUNTIME_PIECES or name in staged:
            continue
        if version_key(elf.needs.get("GLIBC", "")) > version_key(have):
            why = f"it needs GLIBC_{elf.needs['GLIBC']}, and only modules need it"
            lines.append(Line("left out", name, why, elf.path))
            continue
        place, away = _place(elf.path, name, folder, host.shared_folder)
        outside = outside or away
        files.append(StagedFile(elf.path, place))
        lines.append(Line("stage", place, "needed by modules of the host MPI", elf.path))
    for elf in (*host.companions, *host.closure):
        name = elf.soname or PurePosixPath(elf.path).name
        if GLIBC_PIECES.match(name):
            continue
        if name in RUNTIME_PIECES and name not in newer:
            lines.append(Line("left out", name, "the image's own is as new or newer", elf.path))
            continue
        apart = host.shared_folder and elf not in host.companions
        place, away = _place(elf.path, name, folder, apart)
        if name in RUNTIME_PIECES:
            place, away = f"lib/{name}", False  # one for all: the newest
        outside = outside or away
        files.append(StagedFile(elf.path, place))
        why = "needed by the host MPI"
        if elf in host.companions:
            why = "the host MPI's interface for another language"
        lines.append(Line("stage", place, why, elf.path))
    for elf in extra:
        name = PurePosixPath(elf.path).name
        files.append(StagedFile(elf.path, f"lib/{name}"))
        lines.append(Line("stage", name, "carries messages from GPU to GPU", elf.path))
    for plugins in host.plugins:
        for path in plugins.files:
            inner = PurePosixPath(plugins.folder).name
            place, away = _place(
                path, PurePosixPath(path).name, folder, host.shared_folder, modules=inner
            )
            outside = outside or away
            files.append(StagedFile(path, place))
        lines.append(
            Line(
                "stage",
                f"{len(plugins.files)} modules of {plugins.folder}",
                f"opened at run time, found by {plugins.variable}",
            )
        )
    if isolate and outside:
        files = [replace(f, rpath=_rpath(f, host)) for f in files]
        why = "each copy looks there by its own DT_RPATH; the image's programs never do"
        lines.append(Line("isolate", f"{MOUNT}/dep", why))
    if glibc:
        files += [StagedFile(elf.path, f"glibc/{elf.soname}") for elf in glibc]
        names = ", ".join(elf.soname for elf in glibc)
        why = "the host's C library, whole, in a folder that no search path names"
        lines.append(Line("stage", f"glibc/: {len(glibc)} files", why, names))
    files = sorted({f.target: f for f in files}.values(), key=lambda f: f.target)
    asked = {n for e in facts.consumers for n in e.needed}
    aliases = _aliases(host, {f.target for f in files}, asked, lines)
    folders = tuple((f"{host.prefix}/{d}", d) for d in host.data)
    for source, place in folders:
        lines.append(Line("stage", f"{place}/", "tables that the host MPI reads at start", source))
    return Staging(_key(host, files, aliases), tuple(files), aliases, folders)


def _rpath(file: StagedFile, host: HostMpi) -> str:
    """Where a copy looks: among what was staged, and beside itself as before.

    Folders of the host's own mean something else in the container, or nothing.
    """
    if PurePosixPath(file.target).name in RUNTIME_PIECES:
        return ""
    known = {e.path: (*e.rpath, *e.runpath) for e in (*host.parts, *host.optional)}
    # Not $ORIGIN itself: the file may be shown at another place, and the loader goes by that one.
    place = f"{MOUNT}/{PurePosixPath(file.target).parent}"
    own = [
        posixpath.normpath(p.replace("${ORIGIN}", place).replace("$ORIGIN", place))
        for p in known.get(file.source, ())
        if p.startswith(("$ORIGIN", "${ORIGIN}"))
    ]
    return ":".join(dict.fromkeys([*own, f"{MOUNT}/dep"]))


def _newer_runtime(host: HostMpi, facts: ImageFacts) -> frozenset[str]:
    """Of the compilers' run time, what the host has newer than the image; each with what goes with it."""
    newer: set[str] = set()
    for soname, prefix, have, along in (
        ("libstdc++.so.6", "GLIBCXX", facts.libstdcxx, "libgcc_s.so.1"),
        ("libgfortran.so.5", "GFORTRAN", facts.libgfortran, "libquadmath.so.0"),
    ):
        offered = [e.offers.get(prefix, "") for e in host.closure if e.soname == soname]
        if any(version_key(version) > version_key(have) for version in offered):
            newer |= {soname, along}
    return frozenset(newer)


def _place(
    path: str, name: str, folder: PurePosixPath, apart: bool, modules: str = ""
) -> tuple[str, bool]:
    """Below the library's own folder things keep their place, so that ``$ORIGIN`` holds.

    Args:
        apart: that folder is the system's: what is in it need not belong to the MPI.
        modules: the name of the folder of modules that it is in.
    """
    parent = PurePosixPath(path).parent
    if not apart and (parent == folder or folder in parent.parents):
        inner = parent.relative_to(folder)
        return str(PurePosixPath("lib") / inner / name), False
    return (f"dep/{modules}/{name}" if modules else f"dep/{name}"), True


def _aliases(
    host: HostMpi, staged: set[str], asked: set[str], lines: list[Line]
) -> tuple[tuple[str, str], ...]:
    """The names of the staged MPI: those that its family is known by, and those that are asked for.

    Programs built on a Cray ask for `libmpi_gnu_123.so.12` or `libmpi_cray.so.12`: the same interface.
    """
    names = ALIASES.get(host.library.family, {"main": ()})
    own = sorted(n for n in asked if family_of_soname(n) is host.library.family)
    links: list[tuple[str, str]] = []
    for link in dict.fromkeys((*names["main"], *own)):
        if f"lib/{link}" not in staged:
            links.append((f"lib/{link}", host.library.soname))
    for group in ("fort", "cxx"):
        real = next((n for n in names.get(group, ()) if f"lib/{n}" in staged), None)
        if real:
            links += [(f"lib/{n}", real) for n in names[group] if n != real]
    for link, target in links:
        name = PurePosixPath(link).name
        why = "mpi4py opens this name first; without it the image's library would be mapped too"
        if name != "libmpi.so":
            why = "some programs ask for the MPI by this name: who links, decides"
        lines.append(Line("alias", f"{name} -> {target}", why))
    return tuple(links)


def _key(host: HostMpi, files: Sequence[StagedFile], aliases: Sequence[tuple[str, str]]) -> str:
    """Changes when a library changes (build id, versions, path) or the layout does."""
    ids = {e.path: e.build_id or f"{e.needs}{len(e.mpi_exports)}" for e in host.parts}
    text = [f"{_STAGE_FORMAT} {host.library.title}", *host.data]
    text += [f"{f.source} {f.target} {f.rpath} {ids.get(f.source, '')}" for f in files]
    text += [f"{link} {target}" for link, target in aliases]
    digest = hashlib.sha256("\n".join(text).encode()).hexdigest()[:12]
    slug = re.sub(r"[^a-z0-9.]+", "-", host.library.title.lower()) or "mpi"
    return f"{slug}-{digest}"


def search_folders(staging: Staging, host: HostMpi, *, apart: bool = False) -> tuple[str, ...]:
    """The folders of the staged MPI that the loader must search, as the container sees them.

    Args:
        apart: every folder with a library in it is named: the MPI will be opened by another path than
            its own, where ``$ORIGIN`` does not lead to what is beside it; or folders of the user or the
            image follow, which come before a DT_RUNPATH.
    """
    modules = {path for plugins in host.plugins for path in plugins.files}
    inner = {str(PurePosixPath(f.target).parent) for f in staging.files if f.source not in modules}
    isolated = any(f.rpath for f in staging.files)
    wanted = {"lib"} | {place for place in inner if place == "dep" and not isolated}
    if apart:
        wanted |= inner - {"dep", "glibc"}
    ordered = sorted(wanted, key=lambda place: (place != "lib", place.startswith("dep"), place))
    return tuple(f"{MOUNT}/{place}" for place in ordered)


def search_path(
    folders: Sequence[str], user_path: str, env: dict[str, str], lines: list[Line]
) -> None:
    """Sets the search path.

    Args:
        folders: of the host's MPI, then the user's and the image's.
        user_path: the user's alone, to tell of them.
    """
    path = ":".join(folders)
    env["LD_LIBRARY_PATH"] = path
    why = "searched before the image's own library folders and its RUNPATHs"
    if user_path:
        why += "; the user's own entries follow"
    lines.append(Line("env", f"LD_LIBRARY_PATH={path}", why))


def module_paths(staging: Staging, host: HostMpi, env: dict[str, str], lines: list[Line]) -> None:
    placed = {f.source: f.target for f in staging.files}
    for plugins in host.plugins:
        targets = [placed[p] for p in plugins.files if p in placed]
        if targets:
            value = f"{MOUNT}/{PurePosixPath(targets[0]).parent}"
            env[plugins.variable] = value
            lines.append(
                Line(
                    "env",
                    f"{plugins.variable}={value}",
                    "the host's modules, not the image's: mixed ones crash",
                )
            )
