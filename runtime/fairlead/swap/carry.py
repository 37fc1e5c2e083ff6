"""The step of the plan that brings libraries of the host below the image's own MPI: its libfabric, its UCX.

They are in a folder of their own, as the MPI would be: ``lib`` with the SONAMEs that the image's MPI asks for, which is
on the search path; ``dep`` with what they need, found by the DT_RPATH of the copies only. The variable of their modules
always names a folder of the staged ones: modules of the image are of another build, and crash.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import PurePosixPath

from fairlead.base.errors import Finding, error, warning
from fairlead.elf.facts import Elf
from fairlead.elf.mpi_symbols import GLIBC_PIECES, RUNTIME_PIECES
from fairlead.elf.reader import version_key
from fairlead.mpi.below import HostLibrary
from fairlead.mpi.host import needs
from fairlead.swap.family import own_library
from fairlead.swap.layout import folders_behind
from fairlead.swap.model import CARRIED_MOUNT, Bind, Line, Plan, StagedFile, Staging
from fairlead.swap.remedies.model import Changes, Draft

_STAGE_FORMAT = 1  # moves when the layout of the folder does


def with_carried(draft: Draft) -> Draft:
    """Adds the host's libraries below the image's own MPI, where they are wanted."""
    inputs, carried = draft.inputs, draft.inputs.carried
    if not carried or inputs.swapped_in:
        return draft
    staging, lines = _layout(carried, isolate=inputs.isolate)
    folder = str(inputs.cache / "stage" / staging.key)
    env = {"LD_LIBRARY_PATH": ":".join((*_searched(inputs.isolate), *_before(draft)))}
    for library in carried:
        if library.library.variable:
            env[library.library.variable] = _modules_folder(library)
    why = "searched first: the image's MPI gets the host's library under the name that it asks for"
    modules = "the host's modules, not the image's: mixed ones crash"
    lines = (
        *map(_brought, carried),
        *lines,
        Line("bind", f"{folder} -> {CARRIED_MOUNT} (read-only)", "the carried libraries"),
        *(
            Line("env", f"{n}={v}", why if n == "LD_LIBRARY_PATH" else modules)
            for n, v in env.items()
        ),
    )
    made = Bind(folder, CARRIED_MOUNT, read_only=True)
    return replace(draft, carried_staging=staging).plus(Changes((made,), env, lines))


def _brought(library: HostLibrary) -> Line:
    what = f"{library.library.title} of the host -> the image's own MPI"
    paths = ", ".join(elf.path for elf in library.files)
    why = f"one binary interface, SONAME {library.library.sonames[0]}; the MPI stays the image's"
    return Line("carry", what, why, f"{paths}; found: {library.found_by}")


def _before(draft: Draft) -> list[str]:
    given = draft.env.get("LD_LIBRARY_PATH", "")
    return [p for p in given.split(":") if p] or list(folders_behind(draft.inputs.request))


def _searched(isolate: bool) -> tuple[str, ...]:
    return (f"{CARRIED_MOUNT}/lib", *(() if isolate else (f"{CARRIED_MOUNT}/dep",)))


def _modules_folder(library: HostLibrary) -> str:
    folders = [PurePosixPath(plugins.folder).name for plugins in library.modules]
    return f"{CARRIED_MOUNT}/dep/{folders[0] if folders else 'no-modules'}"


def _layout(carried: tuple[HostLibrary, ...], *, isolate: bool) -> tuple[Staging, tuple[Line, ...]]:
    files: list[StagedFile] = []
    lines: list[Line] = []
    for library in carried:
        for elf in library.files:
            files.append(StagedFile(elf.path, f"lib/{elf.soname}"))
            lines.append(
                Line("stage", elf.soname, f"{library.library.title} of the host", elf.path)
            )
        for elf in library.closure:
            if GLIBC_PIECES.match(elf.name):
                continue
            if elf.name in RUNTIME_PIECES:
                lines.append(Line("left out", elf.name, "the process has the image's", elf.path))
                continue
            files.append(StagedFile(elf.path, f"dep/{elf.name}"))
            why = f"needed by {library.library.title}"
            lines.append(Line("stage", f"dep/{elf.name}", why, elf.path))
        for plugins in library.modules:
            folder = PurePosixPath(_modules_folder(library)).name
            files += [
                StagedFile(path, f"dep/{folder}/{PurePosixPath(path).name}")
                for path in plugins.files
            ]
            what = f"{len(plugins.files)} modules of {plugins.folder}"
            lines.append(Line("stage", what, f"opened at run time, found by {plugins.variable}"))
    own = {file.target.removeprefix("lib/") for file in files if file.target.startswith("lib/")}
    files = [f for f in files if f.target.removeprefix("dep/") not in own or "dep/" not in f.target]
    if isolate:
        files = [replace(f, rpath=f"{CARRIED_MOUNT}/lib:{CARRIED_MOUNT}/dep") for f in files]
    staged = tuple(sorted({f.target: f for f in files}.values(), key=lambda f: f.target))
    return Staging(_key(carried, staged), staged, ()), tuple(lines)


def _key(carried: tuple[HostLibrary, ...], files: tuple[StagedFile, ...]) -> str:
    ids = {elf.path: elf.build_id or str(elf.needs) for library in carried for elf in library.parts}
    text = [
        str(_STAGE_FORMAT),
        *(f"{f.source} {f.target} {f.rpath} {ids.get(f.source, '')}" for f in files),
    ]
    digest = hashlib.sha256("\n".join(text).encode()).hexdigest()[:12]
    return f"{'-'.join(library.name for library in carried)}-{digest}"


def check(plan: Plan) -> Iterator[Finding]:
    """The carried libraries must be whole, run on the image's glibc, and offer what its MPI needs."""
    if plan.carried_staging is None:
        return
    own = own_library(plan.facts, plan.request)
    for library in plan.carried:
        for name, by in library.missing:
            yield error("carried-closure", one=library, name=name, by=by)
        version, who = needs(tuple(e for e in library.parts if _is_brought(e)))
        if version_key(version) > version_key(plan.facts.glibc):
            given = {"version": version, "have": plan.facts.glibc or "none", "os": plan.facts.os}
            yield error("carried-glibc", one=library, who=who, **given)
        if own:
            yield from _of_mpi(library, own.elf)


def _is_brought(elf: Elf) -> bool:
    return not GLIBC_PIECES.match(elf.name) and elf.name not in RUNTIME_PIECES


def _of_mpi(library: HostLibrary, mpi: Elf) -> Iterator[Finding]:
    asks = library.library.sonames[0] in mpi.needed
    wanted = mpi.needs.get(library.library.versions, "") if asks else ""
    offered = library.files[0].offers.get(library.library.versions, "")
    if library.library.versions and version_key(wanted) > version_key(offered):
        yield error("carried-old", one=library, mpi=mpi, wanted=wanted, offered=offered or "none")
    if asks and mpi.rpath_folders:
        yield warning("carried-rpath", one=library, mpi=mpi, rpath=":".join(mpi.rpath_folders))
