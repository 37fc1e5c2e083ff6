"""Our own wheel and the image's description, laid over a finished tree without unpacking it.

A small squashfs is laid over that of the tree (``squashfs/overlay.py``); no file of the tree is read.
``tree_scan.py`` makes the layer's .pyc files.
"""

from __future__ import annotations

import hashlib
import io
import json
import shlex
import tarfile
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Any

from fairlead import __version__, native
from fairlead.base.errors import FairleadError, fail
from fairlead.base.serde import to_json
from fairlead.elf.facts import ImageFacts
from fairlead.elf.mpi_standard import standard_floor
from fairlead.elf.mpi_symbols import family_of_soname
from fairlead.image.packages import frameworks
from fairlead.image.sbom import SPECIFICATION
from fairlead.image.tree_digest import Entry, tree_sha256
from fairlead_build.formats.wrapping import COMMAND, labels_of
from fairlead_build.recipe.load import CORE_FOLDER, LoadedRecipe
from fairlead_build.recipe.lock import Lock
from fairlead_build.recipe.model import Recipe
from fairlead_build.squashfs.overlay import NotLaid, lay
from fairlead_build.squashfs.squash import squashing
from fairlead_build.tree.job import TreeJob
from fairlead_build.tree.record import TreeRecord
from fairlead_build.tree.sbom import BillOfMaterials
from fairlead_build.tree.sources import Built
from fairlead_build.tree.tree import compression_of
from fairlead_build.tree.wheel_staging import path_of

SCHEMA_VERSION = 3


@dataclass(frozen=True)
class Description:
    """What an image says of itself in ``/.fairlead/image.json``.

    Attributes:
        recipe: its name, with its variant: ``mpi-base:openmpi``.
        base: ``distribution`` and ``suite``; of an image that was built on another, ``image`` and
            ``digest`` too.
        python: ``version``, ``prefix``, ``site`` (where modules lie); empty without a Python.
        mpi: ``family``, ``vendor``, ``version``, ``path`` of the image's own MPI, its ``prefix``
            when it has one of its own, ``level`` (the standard it reaches), and ``floor``: the
            oldest standard that has every MPI function called. Empty without an MPI.
        glibc_floor: the highest ``GLIBC_`` symbol version that any of its files needs.
        frameworks: versions by name.
        files: what the recipe itself laid into the image.
        sbom: ``format``, number of ``components`` and ``sha256`` of ``/.fairlead/sbom.cdx.json``.
    """

    recipe: str
    variant: str
    summary: str
    recipe_sha256: str
    lock_sha256: str
    tree_key: str
    wheel_sha256: str
    fairlead_version: str
    architecture: str
    source_date_epoch: int
    base: dict[str, str]
    python: dict[str, str]
    mpi: dict[str, str]
    glibc_floor: str
    frameworks: dict[str, str]
    files: list[str]
    labels: dict[str, str]
    env: dict[str, str]
    packages: dict[str, dict[str, str]]
    sbom: dict[str, str | int]
    facts: ImageFacts

    def to_json(self) -> dict[str, Any]:
        return {"schema": "fairlead/image", "version": SCHEMA_VERSION, **to_json(self)}


@dataclass(frozen=True)
class Keys:
    """What an image is made from: sha256 of its lock and of fairlead's wheel, and its tree's key."""

    lock_sha256: str
    wheel_sha256: str
    tree: str


def describe(
    loaded: LoadedRecipe,
    lock: Lock,
    facts: ImageFacts,
    keys: Keys,
    sbom: BillOfMaterials,
    below: Mapping[str, str] = MappingProxyType({}),
) -> Description:
    """The description of the image that these make; ``below`` is the environment of its base."""
    wheels = {w.name: w.version for w in lock.wheel if w.role in ("python", "mpi")}
    python = loaded.recipe.python
    return Description(
        recipe=loaded.name,
        variant=loaded.variant,
        summary=loaded.recipe.recipe.summary,
        recipe_sha256=loaded.digest,
        lock_sha256=keys.lock_sha256,
        tree_key=keys.tree,
        wheel_sha256=keys.wheel_sha256,
        fairlead_version=__version__,
        architecture=lock.architecture,
        source_date_epoch=lock.source_date_epoch,
        base=_base(lock),
        python={"version": python.version, "prefix": python.prefix, "site": python.site}
        if python
        else {},
        mpi=_mpi(loaded.recipe, facts),
        glibc_floor=facts.glibc_floor,
        frameworks=frameworks(wheels),
        files=[file.target for file in loaded.files],
        labels=dict(sorted(loaded.recipe.labels.items())),
        env=environment(loaded.recipe, below),
        packages={
            "deb": {d.name: d.version for d in lock.deb},
            "wheel": wheels,
        },
        sbom={
            "format": f"CycloneDX {SPECIFICATION}",
            "components": sbom.components,
            "sha256": hashlib.sha256(sbom.text).hexdigest(),
        },
        facts=facts,
    )


def _base(lock: Lock) -> dict[str, str]:
    if lock.base is None:
        return {"distribution": lock.inputs.distribution, "suite": lock.inputs.suite}
    base = lock.base.model_dump(mode="json")
    return {key: base[key] for key in ("distribution", "suite", "image", "digest")}


def _mpi(recipe: Recipe, facts: ImageFacts) -> dict[str, str]:
    own = recipe.mpi
    library = next((m for m in facts.mpis if own is None or m.family.value == own.family), None)
    if library is None:
        return {}
    calls = [
        name
        for elf in facts.consumers
        if any(family_of_soname(needed) is library.family for needed in elf.needed)
        for name in elf.mpi_imports
    ]
    return {
        "family": library.family.value,
        "vendor": library.vendor,
        # Open MPI's version is not in its file.
        "version": library.version or (own.version if own and own.version else ""),
        "level": library.level,
        "floor": standard_floor(calls),
        "path": library.path,
        "prefix": own.home if own and own.source == "wheel" else "",
    }


def environment(recipe: Recipe, below: Mapping[str, str] = MappingProxyType({})) -> dict[str, str]:
    """The variables that every engine must set in the image.

    Args:
        below: those of the image that it starts from; the recipe's own win.
    """
    # The user's own ~/.local is mounted by most engines, and would leak into the image's Python.
    own = {"PATH": path_of(recipe, below.get("PATH", "")), "PYTHONNOUSERSITE": "1"}
    return {**dict(sorted(below.items())), **own, **dict(sorted(recipe.env.items()))}


@dataclass(frozen=True)
class Member:
    """One file of the layer."""

    path: str
    body: bytes
    mode: int = 0o644


def layer(
    loaded: LoadedRecipe,
    description: Description,
    wheel: bytes | None,
    bytecode: dict[str, bytes],
    sbom: BillOfMaterials,
) -> list[Member]:
    """All files that an image has beyond its tree."""
    text = json.dumps(description.to_json(), indent=1, sort_keys=True).encode() + b"\n"
    variables = "".join(f"export {k}={shlex.quote(v)}\n" for k, v in description.env.items())
    labels = labels_of(
        description.labels,
        description.recipe,
        description.lock_sha256,
        description.fairlead_version,
    )
    members = [
        Member(".fairlead/image.json", text),
        Member(".fairlead/sbom.cdx.json", sbom.text),
        Member(
            ".singularity.d/env/90-environment.sh",
            f"# Made by fairlead {__version__}.\n{variables}".encode(),
        ),
        # Apptainer adds APPTAINERENV_* variables when it comes to a script of this very name:
        # without one, a run's LD_LIBRARY_PATH would be dropped without a word.
        Member(
            ".singularity.d/env/99-base.sh",
            b"# Apptainer adds the caller's variables after this file.\n",
        ),
        Member(
            ".singularity.d/labels.json",
            json.dumps(labels, indent=1, sort_keys=True).encode() + b"\n",
        ),
        Member(
            ".singularity.d/runscript",
            f'#!/bin/sh\n[ $# -gt 0 ] || set -- {shlex.join(COMMAND)}\nexec "$@"\n'.encode(),
            0o755,
        ),
    ]
    python = loaded.recipe.python
    if wheel is not None and python is not None:
        site = python.site.lstrip("/")
        with zipfile.ZipFile(io.BytesIO(wheel)) as archive:
            names = archive.namelist()
            members += [Member(f"{site}/{name}", archive.read(name)) for name in names]
        info = next(name.split("/")[0] for name in names if name.endswith(".dist-info/RECORD"))
        members.append(Member(f"{site}/{info}/INSTALLER", b"fairlead\n"))
        members += [Member(f"{site}/{name}", body) for name, body in sorted(bytecode.items())]
        script = (
            f"#!{python.prefix}/bin/python3 -I\nfrom fairlead.cli.main import entry\n\nentry()\n"
        )
        members.append(Member(f"{python.prefix}/bin/fairlead".lstrip("/"), script.encode(), 0o755))
    return members


def core(loaded: LoadedRecipe, lock: Lock, wheel: bytes | None) -> list[Member]:
    """The collective core where programs look for it, as our wheel has it for the image's processor."""
    if wheel is None or lock.base or not any(s.core_from_wheel for s in loaded.bundled):
        return []
    machine = {"amd64": "x86_64", "arm64": "aarch64"}[lock.architecture]
    with zipfile.ZipFile(io.BytesIO(wheel)) as archive:
        body = archive.read(f"fairlead/native/lib/{machine}/{native.CORE}")
    return [Member(f"{CORE_FOLDER}/{native.CORE}".lstrip("/"), body, 0o755)]


def of_sources(built: Iterable[Built]) -> list[Member]:
    """The files of sources that are laid over the tree, not into it."""
    members = []
    for source in built:
        with tarfile.open(source.folder / "overlay.tar") as archive:
            for info in archive:
                if info.isreg() and (stream := archive.extractfile(info)):
                    path, mode = (
                        str(PurePosixPath(info.name)),
                        0o755 if info.mode & 0o111 else 0o644,
                    )
                    members.append(Member(path, stream.read(), mode))
    return members


@dataclass(frozen=True)
class Overlaid:
    """A finished squashfs: its sha256, the digest of the tree in it (``fairlead.image.tree_digest``), and
    the bytes of all files of that tree."""

    sha256: str
    tree_sha256: str
    tree_bytes: int


def overlay(
    tree: Path, record: TreeRecord, members: list[Member], target: Path, job: TreeJob
) -> Overlaid:
    """Writes ``target``: ``tree`` with ``members`` in it.

    Raises:
        FairleadError: a tool failed, the tree is damaged, or there is no room.
    """
    how = compression_of(job.lock)
    layer = target.with_name("layer.squashfs")
    again = f"rm {tree} && {job.again}"
    with job.progress.stage("lay fairlead over the tree", tree.stat().st_size, "B") as stage:
        with squashing(layer, how, job.again, job.cache) as sink:
            sink.write(_tar(members, how.epoch))
        try:
            laid = lay(layer, tree, target, job.cache, stage.advance)
        except NotLaid as exc:
            raise _damaged(tree, str(exc), again) from None
        layer.unlink()
    if laid.below_sha256 != record.sha256:
        why = f"it has sha256 {laid.below_sha256[:16]}…, not {record.sha256[:16]}…"
        raise _damaged(tree, why, again)
    above = _entries(members)
    files = {path: entry for path, entry in above.items() if entry.kind == "file"}
    whole = {**above, **record.entries, **files}
    size = sum(int(entry.detail) for entry in whole.values() if entry.kind == "file")
    return Overlaid(laid.sha256, tree_sha256(whole), size)


def _damaged(tree: Path, why: str, remedy: str) -> FairleadError:
    return fail("cache-damaged", tree=tree, why=why, remedy=remedy)


def _entries(members: list[Member]) -> dict[str, Entry]:
    """The layer as entries of a tree; its folders are the writer's, unless the tree has them."""
    paths = [PurePosixPath(member.path) for member in members]
    folders = {str(above) for path in paths for above in path.parents} - {"."} | {"dev"}
    entries = {folder: Entry("folder", 0o755) for folder in folders}
    for member in members:
        digest = hashlib.sha256(member.body).hexdigest()
        entries[member.path] = Entry("file", member.mode, str(len(member.body)), digest)
    return entries


def _tar(members: list[Member], epoch: int) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as archive:
        # mmdebstrap leaves /dev out together with its device nodes; engines mount over it. Other
        # folders are left out: those of the tree stay, new ones get the writer's defaults.
        archive.addfile(_info("dev", tarfile.DIRTYPE, 0o755, 0, epoch))
        for member in sorted(members, key=lambda m: m.path):
            info = _info(member.path, tarfile.REGTYPE, member.mode, len(member.body), epoch)
            archive.addfile(info, io.BytesIO(member.body))
    return buffer.getvalue()


def _info(path: str, kind: bytes, mode: int, size: int, epoch: int) -> tarfile.TarInfo:
    info = tarfile.TarInfo(f"./{path}")
    info.type, info.mode, info.size, info.mtime = kind, mode, size, epoch
    info.uname = info.gname = "root"
    return info
