"""The staged folder: which parts of the host's MPI go into a container, where, and under which names.

A pure part of the plan; :mod:`fairlead.swap.staging` creates the folder. Each rule comes from a
failure (see ld.so(8) and the MPICH ABI Compatibility Initiative):

* a real file is staged once, under its SONAME; other names are symlinks *in the same folder*,
  because ``$ORIGIN`` is the folder of the name that was opened;
* ``libmpi.so`` is always among the names: mpi4py opens it first, and would map the image's;
* no file of glibc is ever on the search path;
* nor are the MPI's dependencies, if patchelf can set a DT_RPATH in the copies: LD_LIBRARY_PATH
  would give them to the image's programs too, which may need other versions. The DT_RPATH is absolute,
  so a copy also finds its neighbours where it is bound over an image's file, and without LD_LIBRARY_PATH.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import PurePosixPath

from fairlead.elf.facts import AbiFamily, Elf, ImageFacts, expanded
from fairlead.elf.mpi_symbols import GLIBC_PIECES, RUNTIME_PIECES, asked_by
from fairlead.elf.reader import newest, version_key
from fairlead.mpi.host import HostMpi
from fairlead.swap.glibc import GLIBC_FOLDER
from fairlead.swap.model import MOUNT, Line, Request, StagedFile, Staging
from fairlead.swap.remedies.model import Parts

_STAGE_FORMAT = 4  # moves when the layout of a staged folder does

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
    host: HostMpi,
    facts: ImageFacts,
    parts: Sequence[Parts] = (),
    *,
    isolate: bool = True,
    alone: bool = True,
) -> tuple[Staging, tuple[Line, ...]]:
    """The staged folder of ``host``'s MPI for an image, and a line that explains each thing in it.

    Args:
        parts: what remedies add.
        isolate: the copies can be given a DT_RPATH.
        alone: they are given one even if no dependency has to be kept from the image's programs.
    """
    library = host.library
    files = [StagedFile(library.path, f"lib/{library.soname}")]
    lines = [Line("stage", library.soname, "the host MPI itself, under its SONAME", library.path)]
    glibc = newest([facts.glibc, *(part.glibc for part in parts)])
    for elf, place, why in (*_optional(host, glibc), *_closure(host, facts)):
        files += [StagedFile(elf.path, place)] if place else []
        kind = "stage" if place else "left out"
        lines.append(Line(kind, place or elf.name, why, elf.path))
    for plugins in host.plugins:
        modules = PurePosixPath(plugins.folder).name
        files += [StagedFile(p, _place(host, PurePosixPath(p), modules)) for p in plugins.files]
        what = f"{len(plugins.files)} modules of {plugins.folder}"
        lines.append(Line("stage", what, f"opened at run time, found by {plugins.variable}"))
    if isolate and (alone or any(f.target.startswith("dep/") for f in files)):
        searched = _folders(host, files)
        files = [replace(f, rpath=_rpath(f, host, searched)) for f in files]
        why = "each copy looks there by its own DT_RPATH; the image's programs never do"
        lines += [Line("isolate", f"{MOUNT}/dep", why)] if f"{MOUNT}/dep" in searched else []
    for part in parts:
        files += part.files
        lines += part.lines
    files = sorted({f.target: f for f in files}.values(), key=lambda f: f.target)
    aliases = _aliases(host, facts, {f.target for f in files})
    lines += [_alias_line(PurePosixPath(link).name, target) for link, target in aliases]
    folders = tuple((f"{host.prefix}/{d}", d) for d in host.data)
    why = "tables that the host MPI reads at start"
    lines += [Line("stage", f"{place}/", why, source) for source, place in folders]
    return Staging(_key(host, files, aliases), tuple(files), aliases, folders), tuple(lines)


def _optional(host: HostMpi, glibc: str) -> Iterator[tuple[Elf, str, str]]:
    """What modules need: the file, its place (empty: left out), and why.

    Args:
        glibc: version of the newest C library that ranks may have.
    """
    staged = {e.soname for e in (*host.companions, *host.closure)}
    for elf in host.optional:
        if GLIBC_PIECES.match(elf.name) or elf.name in RUNTIME_PIECES or elf.name in staged:
            continue
        if version_key(elf.needs.get("GLIBC", "")) > version_key(glibc):
            yield elf, "", f"it needs GLIBC_{elf.needs['GLIBC']}, and only modules need it"
        else:
            yield elf, _place(host, _named(elf)), "needed by modules of the host MPI"


def _closure(host: HostMpi, facts: ImageFacts) -> Iterator[tuple[Elf, str, str]]:
    """What the MPI needs, and its interfaces for other languages: as :func:`_optional`."""
    newer = _newer_runtime(host, facts)
    for elf in host.companions:
        if not GLIBC_PIECES.match(elf.name):
            place = _place(host, _named(elf), apart=False)
            yield elf, place, "the host MPI's interface for another language"
    for elf in host.closure:
        if elf in host.companions or GLIBC_PIECES.match(elf.name):
            continue
        if elf.name not in RUNTIME_PIECES:
            yield elf, _place(host, _named(elf)), "needed by the host MPI"
        elif elf.name in newer:
            yield elf, f"lib/{elf.name}", "needed by the host MPI"  # one for all: the newest
        else:
            yield elf, "", "the image's own is as new or newer"


def _named(elf: Elf) -> PurePosixPath:
    """Its path, under the name by which it is asked for."""
    return PurePosixPath(elf.path).with_name(elf.name)


def _place(host: HostMpi, path: PurePosixPath, modules: str = "", apart: bool = True) -> str:
    """Below the library's own folder things keep their place, so that ``$ORIGIN`` holds.

    Args:
        modules: the name of the folder of modules that it is in.
        apart: it need not belong to the MPI where that folder is the system's.
    """
    folder = PurePosixPath(host.library.path).parent
    if not (apart and host.shared_folder) and folder in path.parents:
        return str("lib" / path.relative_to(folder))
    return str(PurePosixPath("dep", modules, path.name))


def _folders(host: HostMpi, files: Iterable[StagedFile]) -> tuple[str, ...]:
    """The folders with libraries, as paths in the container, in search order: ``lib`` first, ``dep`` last."""
    modules = {path for plugins in host.plugins for path in plugins.files}
    inner = {str(PurePosixPath(f.target).parent) for f in files if f.source not in modules}
    ordered = sorted(
        inner - {GLIBC_FOLDER}, key=lambda place: (place != "lib", place.startswith("dep"), place)
    )
    return tuple(f"{MOUNT}/{place}" for place in ordered)


def _rpath(file: StagedFile, host: HostMpi, folders: Sequence[str]) -> str:
    """The DT_RPATH of a copy: paths relative to the file as before, then the staged folders.

    The host's absolute folders are different or missing in the container.
    """
    if PurePosixPath(file.target).name in RUNTIME_PIECES:
        return ""
    known = {e.path: (*e.rpath, *e.runpath) for e in (*host.parts, *host.optional)}
    # Not $ORIGIN itself: the file may be shown at another place, and the loader goes by that one.
    place = f"{MOUNT}/{PurePosixPath(file.target).parent}"
    relative = [p for p in known.get(file.source, ()) if p.startswith(("$ORIGIN", "${ORIGIN}"))]
    own = expanded(relative, place)
    return ":".join(dict.fromkeys([*own, *folders]))


def _newer_runtime(host: HostMpi, facts: ImageFacts) -> frozenset[str]:
    """Of the compilers' run time, what the host has newer than the image, with what goes with it, and what the image lacks."""
    newer: set[str] = set()
    for soname, prefix, have, along in (
        ("libstdc++.so.6", "GLIBCXX", facts.libstdcxx, "libgcc_s.so.1"),
        ("libgfortran.so.5", "GFORTRAN", facts.libgfortran, "libquadmath.so.0"),
    ):
        offered = [e.offers.get(prefix, "") for e in host.closure if e.soname == soname]
        if any(version_key(version) > version_key(have) for version in offered):
            newer |= {soname, along}
    lacking = RUNTIME_PIECES.difference(facts.runtime) if facts.runtime else frozenset()
    return frozenset(newer | lacking)


def _aliases(host: HostMpi, facts: ImageFacts, staged: set[str]) -> tuple[tuple[str, str], ...]:
    """The names of the staged MPI: those that its family is known by, and those that are asked for.

    Programs built on a Cray ask for `libmpi_gnu_123.so.12` or `libmpi_cray.so.12`: the same interface.
    """
    soname, family = host.library.soname, host.library.family
    names = ALIASES.get(family, {"main": ()})
    asked = sorted(
        {n for e in facts.consumers for n, f in asked_by(facts, e).items() if f is family}
    )
    links = [
        (f"lib/{link}", soname)
        for link in dict.fromkeys((*names["main"], *asked))
        if f"lib/{link}" not in staged
    ]
    for group in ("fort", "cxx"):
        real = next((n for n in names.get(group, ()) if f"lib/{n}" in staged), None)
        if real:
            links += [(f"lib/{n}", real) for n in names[group] if n != real]
    return tuple(links)


def _alias_line(name: str, target: str) -> Line:
    why = "some programs ask for the MPI by this name: who links, decides"
    if name == "libmpi.so":
        why = "mpi4py opens this name first; without it the image's library would be mapped too"
    return Line("alias", f"{name} -> {target}", why)


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
        apart: without a DT_RPATH in the copies, name every folder with a library: either programs open the MPI
            by another path, where ``$ORIGIN`` does not lead to its neighbours, or folders of the user or the
            image follow, which take precedence over a DT_RUNPATH.
    """
    isolated = any(f.rpath for f in staging.files)
    folders = _folders(host, staging.files)
    wanted = (f"{MOUNT}/lib", *(() if isolated else (f"{MOUNT}/dep",)))
    return tuple(f for f in folders if f in wanted or (apart and not isolated))


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
