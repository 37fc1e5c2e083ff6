"""The staged folder: which parts of the host's MPI go into a container, where, and under which names.

A pure part of the plan; :mod:`fairlead.swap.staging` creates the folder. Each rule comes from a
failure (see ld.so(8) and the MPICH ABI Compatibility Initiative):

* a real file is staged once, under its SONAME; other names are symlinks *in the same folder*,
  because ``$ORIGIN`` is the folder of the name that was opened;
* ``libmpi.so`` is always among the names: mpi4py opens it first, and would map the image's;
* no file of glibc is ever on the search path;
* nor are the MPI's dependencies, if patchelf can set a DT_RPATH in the copies: LD_LIBRARY_PATH
  would give them to the image's programs too, which may need other versions.
"""

from __future__ import annotations

import hashlib
import posixpath
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import PurePosixPath

from fairlead.elf.facts import AbiFamily, Elf, ImageFacts
from fairlead.elf.mpi_symbols import GLIBC_PIECES, family_of_soname
from fairlead.elf.reader import newest, version_key
from fairlead.mpi.host import RUNTIME_PIECES, HostMpi
from fairlead.swap.model import MOUNT, Line, Request, StagedFile, Staging
from fairlead.swap.remedies.model import Parts

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


def stage_layout(
    host: HostMpi, facts: ImageFacts, parts: Sequence[Parts] = (), *, isolate: bool = True
) -> tuple[Staging, tuple[Line, ...]]:
    """The staged folder of ``host``'s MPI for an image, with a line in words for each thing in it.

    Args:
        parts: what remedies add.
        isolate: the copies can be given a DT_RPATH.
    """
    layout = _Layout(host, facts)
    layout.add_library()
    layout.add_optional(newest([facts.glibc, *(part.glibc for part in parts)]))
    layout.add_closure()
    layout.add_modules()
    if isolate and layout.outside:
        layout.isolate()
    for part in parts:
        layout.files += part.files
        layout.lines += part.lines
    files = sorted({f.target: f for f in layout.files}.values(), key=lambda f: f.target)
    asked = {n for e in facts.consumers for n in e.needed}
    aliases = _aliases(host, {f.target for f in files}, asked, layout.lines)
    folders = tuple((f"{host.prefix}/{d}", d) for d in host.data)
    why = "tables that the host MPI reads at start"
    layout.lines += [Line("stage", f"{place}/", why, source) for source, place in folders]
    staging = Staging(_key(host, files, aliases), tuple(files), aliases, folders)
    return staging, tuple(layout.lines)


class _Layout:
    """The files of a staged folder, as they are collected.

    Attributes:
        outside: something lies in another folder than the library's.
    """

    def __init__(self, host: HostMpi, facts: ImageFacts):
        self.host, self.facts = host, facts
        self.folder = PurePosixPath(host.library.path).parent
        self.files: list[StagedFile] = []
        self.lines: list[Line] = []
        self.outside = False

    def add_library(self) -> None:
        library = self.host.library
        self.files.append(StagedFile(library.path, f"lib/{library.soname}"))
        why = "the host MPI itself, under its SONAME"
        self.lines.append(Line("stage", library.soname, why, library.path))

    def add_optional(self, glibc: str) -> None:
        """What modules need; ``glibc`` is the newest C library that ranks may have."""
        staged = {e.soname for e in (*self.host.companions, *self.host.closure)}
        for elf in self.host.optional:
            name = _name(elf)
            if GLIBC_PIECES.match(name) or name in RUNTIME_PIECES or name in staged:
                continue
            if version_key(elf.needs.get("GLIBC", "")) > version_key(glibc):
                why = f"it needs GLIBC_{elf.needs['GLIBC']}, and only modules need it"
                self.lines.append(Line("left out", name, why, elf.path))
                continue
            place = self._placed(elf.path, name, self.host.shared_folder)
            self.files.append(StagedFile(elf.path, place))
            why = "needed by modules of the host MPI"
            self.lines.append(Line("stage", place, why, elf.path))

    def add_closure(self) -> None:
        """What the MPI needs, and its interfaces for other languages."""
        newer = _newer_runtime(self.host, self.facts)
        for elf in (*self.host.companions, *self.host.closure):
            name, companion = _name(elf), elf in self.host.companions
            if GLIBC_PIECES.match(name):
                continue
            if name in RUNTIME_PIECES and name not in newer:
                why = "the image's own is as new or newer"
                self.lines.append(Line("left out", name, why, elf.path))
                continue
            if name in RUNTIME_PIECES:
                place = f"lib/{name}"  # one for all: the newest
            else:
                apart = self.host.shared_folder and not companion
                place = self._placed(elf.path, name, apart)
            self.files.append(StagedFile(elf.path, place))
            why = "needed by the host MPI"
            if companion:
                why = "the host MPI's interface for another language"
            self.lines.append(Line("stage", place, why, elf.path))

    def add_modules(self) -> None:
        """What libraries open by themselves."""
        for plugins in self.host.plugins:
            inner = PurePosixPath(plugins.folder).name
            for path in plugins.files:
                name = PurePosixPath(path).name
                place = self._placed(path, name, self.host.shared_folder, modules=inner)
                self.files.append(StagedFile(path, place))
            what = f"{len(plugins.files)} modules of {plugins.folder}"
            why = f"opened at run time, found by {plugins.variable}"
            self.lines.append(Line("stage", what, why))

    def isolate(self) -> None:
        """Copies find each other by DT_RPATH, so that the image's programs never find them."""
        self.files = [replace(f, rpath=_rpath(f, self.host)) for f in self.files]
        why = "each copy looks there by its own DT_RPATH; the image's programs never do"
        self.lines.append(Line("isolate", f"{MOUNT}/dep", why))

    def _placed(self, path: str, name: str, apart: bool, modules: str = "") -> str:
        place, away = _place(path, name, self.folder, apart, modules)
        self.outside = self.outside or away
        return place


def _name(elf: Elf) -> str:
    return elf.soname or PurePosixPath(elf.path).name


def _rpath(file: StagedFile, host: HostMpi) -> str:
    """The DT_RPATH of a copy: the staged folders, and paths relative to the file as before.

    The host's absolute folders are different or missing in the container.
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
    """The folders of the staged MPI that the loader must search, as paths in the container.

    Args:
        apart: name every folder with a library: either programs open the MPI by another path, where
            ``$ORIGIN`` does not lead to its neighbours, or folders of the user or the
            image follow, which take precedence over a DT_RUNPATH.
    """
    modules = {path for plugins in host.plugins for path in plugins.files}
    inner = {str(PurePosixPath(f.target).parent) for f in staging.files if f.source not in modules}
    isolated = any(f.rpath for f in staging.files)
    wanted = {"lib"} | {place for place in inner if place == "dep" and not isolated}
    if apart:
        wanted |= inner - {"dep", "glibc"}
    ordered = sorted(wanted, key=lambda place: (place != "lib", place.startswith("dep"), place))
    return tuple(f"{MOUNT}/{place}" for place in ordered)


def folders_behind(request: Request) -> tuple[str, ...]:
    """What is searched behind the host's MPI: the user's folders, then the image's own."""
    given = [p for p in request.library_path.split(":") if p]
    own = [p for p in request.image_library_path.split(":") if p and p not in given]
    return (*given, *own)


def module_paths(staging: Staging, host: HostMpi) -> dict[str, str]:
    """Variables that lead libraries of the host to their modules in the staged folder."""
    placed = {f.source: f.target for f in staging.files}
    env = {}
    for plugins in host.plugins:
        targets = [placed[path] for path in plugins.files if path in placed]
        if targets:
            env[plugins.variable] = f"{MOUNT}/{PurePosixPath(targets[0]).parent}"
    return env
