"""The host's MPI in a separate folder, as an export names it, and the script that makes the folder.

What goes into it, under which names and with which variables, is decided where a launch decides it:
:mod:`fairlead.swap.plan` and :mod:`fairlead.swap.layout`. Here its place changes: a site's module has it at another path than a
launch, and the copies' DT_RPATH is absolute.
"""

from __future__ import annotations

import base64
import hashlib
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Protocol

from fairlead import __version__
from fairlead.base.errors import ExitCode, FairleadError, Severity, fail
from fairlead.elf.facts import Elf, ImageFacts
from fairlead.elf.reader import newest
from fairlead.elf.stub import stub
from fairlead.engines.model import Engine
from fairlead.engines.registry import ENGINES
from fairlead.export.model import STAGE, ExportFile, Facts
from fairlead.launchers.model import Launcher
from fairlead.mpi.host import HostMpi, needs
from fairlead.swap import checks
from fairlead.swap.glibc import GlibcWay
from fairlead.swap.layout import search_folders
from fairlead.swap.model import MOUNT, Inputs, Plan, Request, Staging, Stub
from fairlead.swap.plan import plan

_CACHE = Path("/fairlead-export")  # stands for the cache in the plan; no export shows it
_ANY = "any image"


@dataclass(frozen=True)
class Staged:
    """The folder with the host's MPI.

    Attributes:
        folder: of the machine.
        place: where a container sees it.
        env: what a container needs for it; LD_LIBRARY_PATH is in ``search``.
        search: folders that the loader must search first, as the container sees them.
        over: ``(file of the machine, file of the image)`` to be shown over each other.
        gpu: what messages from GPU to GPU need besides; empty where the site has none.
        plan: where all of it comes from.
    """

    folder: str
    place: str
    staging: Staging
    env: Mapping[str, str]
    search: tuple[str, ...]
    over: tuple[tuple[str, str], ...]
    gpu: Mapping[str, str]
    plan: Plan

    @property
    def title(self) -> str:
        """Vendor and version of the MPI."""
        return self.plan.planned_title

    @property
    def library(self) -> str:
        """The host's MPI as a container sees it."""
        return f"{self.place}/lib/{PurePosixPath(self.plan.planned_file).name}"

    @property
    def variables(self) -> dict[str, str]:
        """``env`` with the search path, which the image's own folders follow."""
        own = filter(None, self.plan.request.image_library_path.split(":"))
        path = ":".join([*self.search, *own])
        return {**self.env, "LD_LIBRARY_PATH": path, "FAIRLEAD_EXPECTS": self.library}


def staged(
    facts: Facts,
    kind: str,
    place: str = MOUNT,
    *,
    binds_files: bool = True,
    glibc: bool = False,
    gpu: bool = False,
    alone: bool = False,
) -> Staged:
    """The folder for ``kind``, whose containers see it at ``place``.

    Args:
        place: with ``{key}`` for the folder's own name.
        binds_files: the engine can show single files over those of an image.
        glibc: the engine brings a newer C library by itself.
        gpu: the library for messages from GPU to GPU goes along, where the site has one.
        alone: copies find each other by their own DT_RPATH, wherever the engine shows them.
    Raises:
        FairleadError: 121 when the image cannot run on this MPI by such a module.
    """
    made = planned(facts, kind, binds_files=binds_files, gpu=gpu, alone=alone)
    assert made.staging is not None and made.host is not None and made.glibc is not None
    bring = made.glibc.way
    if bring is GlibcWay.LOADER and not glibc:
        raise fail("export-glibc", kind=kind, made=made)
    staging = moved(made.staging, place)
    place = place.replace("{key}", staging.key)
    folder = f"{facts.stage_root.rstrip('/')}/{staging.key}"
    inner = str(_CACHE / "stage" / made.staging.key)
    over = tuple(
        (b.source.replace(inner, folder, 1), b.target)
        for b in made.binds
        if b.source.startswith(f"{inner}/")
    )
    # What an image sets of itself may follow: folders next to the MPI are named too.
    search = search_folders(made.staging, made.host, apart=True)
    env = {
        name: value.replace(MOUNT, place)
        for name, value in made.env.items()
        if name not in ("LD_LIBRARY_PATH", "LD_PRELOAD")
    }
    preload = made.env.get("LD_PRELOAD", "").replace(MOUNT, place, 1) if made.request.gpu else ""
    for_gpus = {n: v for n, v in facts.site.gpu.set.items() if made.request.gpu}
    if preload:
        for_gpus["LD_PRELOAD"] = preload
    env = {name: value for name, value in env.items() if name not in for_gpus}
    return Staged(
        folder, place, staging, env,
        tuple(f.replace(MOUNT, place, 1) for f in search), over, for_gpus, made,
    )  # fmt: skip


def planned(
    facts: Facts, kind: str, *, binds_files: bool = True, gpu: bool = False, alone: bool = False
) -> Plan:
    """The plan that the export puts into another tool's words.

    Args:
        gpu: with the library for messages from GPU to GPU, where site and host have one.
        alone: as of :func:`staged`.
    Raises:
        FairleadError: exit code 121; it would not work.
    """
    if facts.against:
        raise fail("export-site", facts=facts, against="; ".join(facts.against), kind=kind)
    if facts.host is None:
        raise fail("host-mpi-nothing-to-export", facts_node=facts.node)
    host = facts.host
    launcher = facts.launcher or host.launcher or Launcher("mpiexec", host.library.family, "")
    known = facts.engine
    if known is None or known.kind != kind:
        known = None
    driver = ENGINES.get(kind) if kind in ENGINES else None
    # For a kind that fairlead does not start, the worst is assumed: a separate user namespace for each container.
    userns_per_rank = bool(known.userns_per_rank if known else not driver or driver.userns_per_rank)
    engine = Engine(kind, kind, userns_per_rank, (), (), binds_files)
    inside = facts.image.facts if facts.image else as_new_as(host)
    own = facts.image.env if facts.image else {}
    # The words by which a plan knows whose GPUs are meant; no engine is given them here.
    word = {"nvidia": "--nv", "amd": "--rocm"}.get(facts.site.gpu.vendor, "")
    asked = gpu and bool(word) and bool(host.gpu_transport)
    request = Request(
        ranks=2,
        gpu=asked,
        engine_args=(word,) if asked else (),
        image_library_path=own.get("LD_LIBRARY_PATH", ""),
        image_preload=own.get("LD_PRELOAD", ""),
    )
    name = facts.image.path if facts.image else _ANY
    made = plan(
        Inputs(
            name, inside, host, launcher, facts.site, engine, request, _CACHE,
            isolate=facts.isolate, alone=alone, paths=facts.here,
        )
    )  # fmt: skip
    errors = [f for f in checks.check(made) if f.severity is Severity.ERROR]
    if errors:
        raise FairleadError(errors, ExitCode.PREFLIGHT_REFUSED)
    return made


def as_new_as(host: HostMpi) -> ImageFacts:
    """An image that lacks nothing that this MPI needs of it, for an export that serves every image.

    What is too old for it is found by the proof of a launch, and by `fairlead preflight`.
    """
    need = needs(host.parts)[0]
    soname = host.library.soname

    def most(prefix: str) -> str:
        parts = (*host.parts, *host.optional)
        return newest([v.get(prefix, "") for e in parts for v in (e.offers, e.needs)])

    program = Elf("/any", host.library.elf.machine, needed=(soname,), interpreter="/any")
    return ImageFacts(
        arch=host.library.elf.machine,
        glibc=need or "2.17",
        libstdcxx=most("GLIBCXX"),
        libgfortran=most("GFORTRAN"),
        os="",
        python="",
        mpis=(),
        consumers=(program,),
    )


def lowest(facts: Facts) -> str:
    """What an image must have for this MPI, in words; empty when it needs nothing of it."""
    need = needs(facts.host.parts)[0] if facts.host else ""
    return f"glibc {need} or newer" if need else ""


def moved(staging: Staging, place: str) -> Staging:
    """The same folder, seen at another place of the container; another one when that changes it."""
    if place == MOUNT:
        return staging
    slug, _, old = staging.key.rpartition("-")
    key = f"{slug}-{hashlib.sha256(f'{old} {place}'.encode()).hexdigest()[:12]}"
    there = place.replace("{key}", key)
    files = tuple(
        replace(f, rpath=f.rpath.replace(f"{MOUNT}/", f"{there}/")) for f in staging.files
    )
    return replace(staging, key=key, files=files)


_SCRIPT = """\
#!/bin/sh
# Lays @TITLE@ and what is behind it into one folder, for @KIND@:
#   @FOLDER@
# Written by fairlead @VERSION@ for @NODE@ from what it found there. Run it as the user who may write
# there, on the machine itself, and again after each update of the system: what is whole and still the
# same stays as it is, so jobs that use it are not disturbed. Another MPI gets another folder.
set -eu
umask 022
folder=${1:-@FOLDER@}
patchelf=${PATCHELF:-patchelf}

stop() {
    echo "$0: $*" >&2
    exit 1
}

# Each file of the host, its place in the folder, and the folders that its copy must search.
files() {
@FILES@
}

# Other names of the same libraries: a link lies next to the file, since $ORIGIN is the folder of the
# name that was opened.
links() {
@LINKS@
}

# Libraries with nothing in them but the need of another: names that are opened without a version.
stubs() {
@STUBS@
}

# Folders that are copied whole.
folders() {
@FOLDERS@
}

put() {
    [ -r "$1" ] || stop "$1 is not there: was the system updated? Write this script again: fairlead site export"
    mkdir -p "$work/$(dirname "$2")"
    cp -L "$1" "$work/$2"
    chmod 755 "$work/$2"
    [ -z "$3" ] || "$patchelf" --force-rpath --set-rpath "$3" "$work/$2"
    touch -r "$1" "$work/$2"
}
link() { ln -s "$2" "$work/$1"; }
stub() {
    mkdir -p "$work/$(dirname "$1")"
    printf '%s' "$2" | base64 -d >"$work/$1"
    chmod 755 "$work/$1"
}
copy() {
    [ -d "$1" ] || stop "the folder $1 is not there"
    mkdir -p "$work/$(dirname "$2")"
    cp -R "$1" "$work/$2"
    chmod -R a+rX "$work/$2"
}
sum() { cksum <"$1" || echo gone; }

# Tests whether a folder is complete and made from the present files.
state() {
    files sum
    (
        cd "$1"
        find . -type f ! -path ./.state | LC_ALL=C sort | while read -r name; do
            printf '%s ' "$name"
            cksum <"$name"
        done
        find . -type l | LC_ALL=C sort | while read -r name; do
            printf '%s -> %s\\n' "$name" "$(readlink "$name")"
        done
    )
}

if [ -f "$folder/.state" ] && state "$folder" 2>/dev/null | cmp -s - "$folder/.state"; then
    echo "$folder"
    exit 0
fi
@PATCHELF@
parent=$(dirname "$folder")
name=$(basename "$folder")
mkdir -p "$parent"
work=$(mktemp -d "$parent/.$name.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM
chmod 755 "$work"
files put
links link
stubs stub
folders copy
state "$work" >"$work/.state"
if [ -e "$folder" ]; then
    # Jobs may have it mounted: what is old goes out of the way, and is deleted a month later.
    find "$parent" -maxdepth 1 -name ".$name.*.old" -mtime +30 -exec rm -rf {} +
    mv "$folder" "$parent/.$name.$$.old"
    touch "$parent/.$name.$$.old"
fi
mv "$work" "$folder"
echo "$folder"
"""


class Folder(Protocol):
    """What ``stage.sh`` makes."""

    @property
    def title(self) -> str: ...
    @property
    def folder(self) -> str: ...
    @property
    def staging(self) -> Staging: ...


def stage_script(facts: Facts, made: Folder, kind: str, goes: str) -> ExportFile:
    """``stage.sh``, a POSIX shell script that makes ``made.folder``, or leaves it as it is."""

    def lines(calls: list[tuple[str, ...]]) -> str:
        return "\n".join(f'    "$1" {shlex.join(words)}' for words in calls) or "    :"

    staging = made.staging
    rpaths = any(f.rpath for f in staging.files)
    need = 'command -v "$patchelf" >/dev/null || stop "there is no patchelf: install it, or name it in PATCHELF"'
    text = {
        "TITLE": _comment(made.title),
        "KIND": kind,
        "FOLDER": made.folder,
        "VERSION": __version__,
        "NODE": _comment(facts.node),
        "FILES": lines([(f.source, f.target, f.rpath) for f in staging.files]),
        "LINKS": lines(list(staging.aliases)),
        "STUBS": lines([(s.target, _content(s)) for s in staging.stubs]),
        "FOLDERS": lines(list(staging.folders)),
        "PATCHELF": need if rpaths else "",
    }
    if any(c in made.folder for c in " \t\n'\"$`\\*?[;&|<>(){}"):
        raise fail("export-value-needs-quotes", folder=made.folder)
    script = _SCRIPT
    for name, value in text.items():
        script = script.replace(f"@{name}@", value)
    return ExportFile(STAGE, script, goes, 0o755)


def _content(made: Stub) -> str:
    content = stub(PurePosixPath(made.target).name, made.needed, made.machine)
    return base64.b64encode(content).decode()


def _comment(text: str) -> str:
    return " ".join(text.split()).replace("@", "(at)")
