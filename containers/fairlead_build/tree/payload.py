"""Our own wheel and the image's description, laid over a finished tree without unpacking it.

A small squashfs is laid over that of the tree (``squashfs/overlay.py``); no file of the tree is read.
``wheel_compile.py`` makes the layer's .pyc files.
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
from fairlead.base.errors import fail
from fairlead.base.serde import to_json
from fairlead.elf.facts import ImageFacts
from fairlead.elf.mpi_standard import standard_floor
from fairlead.elf.mpi_symbols import family_of_soname
from fairlead.image.packages import frameworks
from fairlead.image.sbom import SPECIFICATION
from fairlead.image.tree_digest import Entry, tree_sha256
from fairlead_build.base import tar
from fairlead_build.base.platform import MACHINES
from fairlead_build.formats.wrapping import COMMAND, as_json, engine_files, labels_of
from fairlead_build.recipe.load import CORE_FOLDER, LoadedRecipe
from fairlead_build.recipe.lock import Lock
from fairlead_build.recipe.model import Recipe
from fairlead_build.squashfs.overlay import NotLaid, lay
from fairlead_build.squashfs.squash import squashing
from fairlead_build.tree.job import TreeJob
from fairlead_build.tree.record import Files, TreeRecord
from fairlead_build.tree.tree import compression_of
from fairlead_build.tree.wheel_staging import Built, path_of

SCHEMA_VERSION = 3


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
    sbom: bytes,
    below: Mapping[str, str],
) -> dict[str, Any]:
    """What the image that these make says of itself, in ``/.fairlead/image.json``.

    Args:
        below: the environment of its base.
    """
    wheels = {w.name: w.version for w in lock.wheel if w.role in ("python", "mpi")}
    recipe, python = loaded.recipe, loaded.recipe.python
    base = {"distribution", "suite", *(("image", "digest") if lock.base else ())}
    return {
        "schema": "fairlead/image",
        "version": SCHEMA_VERSION,
        # With its variant: ``mpi-base:openmpi``.
        "recipe": loaded.name,
        "variant": loaded.variant,
        "summary": recipe.recipe.summary,
        "recipe_sha256": loaded.digest,
        "lock_sha256": keys.lock_sha256,
        "tree_key": keys.tree,
        # Empty where its Python cannot run fairlead.
        "wheel_sha256": keys.wheel_sha256,
        "fairlead_version": __version__,
        "architecture": lock.architecture,
        "source_date_epoch": lock.source_date_epoch,
        # Of an image that was built on another, that image and its digest too.
        "base": (lock.base or lock.inputs).model_dump(mode="json", include=base),
        "python": {"version": python.version, "prefix": python.prefix, "site": python.site}
        if python
        else {},
        "mpi": _mpi(recipe, facts),
        # The highest GLIBC_ symbol version that any of its files needs.
        "glibc_floor": facts.glibc_floor,
        "frameworks": frameworks(wheels),
        # What the recipe itself laid into the image.
        "files": [file.target for file in loaded.files],
        "labels": dict(sorted(recipe.labels.items())),
        "env": environment(recipe, below),
        "packages": {"deb": {d.name: d.version for d in lock.deb}, "wheel": wheels},
        "sbom": {
            "format": f"CycloneDX {SPECIFICATION}",
            "components": len(json.loads(sbom)["components"]),
            "sha256": hashlib.sha256(sbom).hexdigest(),
        },
        "facts": to_json(facts),
    }


def _mpi(recipe: Recipe, facts: ImageFacts) -> dict[str, str]:
    """The image's own MPI; empty without one.

    ``level`` is the standard that it reaches, ``floor`` the oldest one that has every MPI function
    called, ``prefix`` its own one if it has any.
    """
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
        "prefix": recipe.mpi_prefix,
    }


def environment(recipe: Recipe, below: Mapping[str, str] = MappingProxyType({})) -> dict[str, str]:
    """The variables that every engine must set in the image.

    Args:
        below: those of the image that it starts from; the recipe's own win.
    """
    # The user's own ~/.local is mounted by most engines, and would leak into the image's Python.
    own = {"PATH": path_of(recipe, below.get("PATH", "")), "PYTHONNOUSERSITE": "1"}
    return {**dict(sorted(below.items())), **own, **dict(sorted(recipe.env.items()))}


def layer(
    loaded: LoadedRecipe,
    description: Mapping[str, Any],
    wheel: bytes | None,
    bytecode: dict[str, bytes],
    sbom: bytes,
) -> Files:
    """All files that an image has beyond its tree."""
    files = _for_engines(description["env"], labels_of(description))
    files[".fairlead/image.json"] = as_json(description), 0o644
    files[".fairlead/sbom.cdx.json"] = sbom, 0o644
    return files | _of_wheel(loaded, wheel, bytecode)


def programs(
    loaded: LoadedRecipe, lock: Lock, wheel: bytes | None, below: Mapping[str, str]
) -> Files:
    """What a look into an image takes in of these files: all but its description, which rests on that look."""
    own = _of_wheel(loaded, wheel, {}) | core(loaded, lock, wheel)
    return _for_engines(environment(loaded.recipe, below), {}) | own


def _for_engines(env: Mapping[str, str], labels: Mapping[str, str]) -> Files:
    return engine_files(
        env,
        labels,
        f'[ $# -gt 0 ] || set -- {shlex.join(COMMAND)}\nexec "$@"\n',
        note=f"# Made by fairlead {__version__}.\n",
    )


def _of_wheel(loaded: LoadedRecipe, wheel: bytes | None, bytecode: dict[str, bytes]) -> Files:
    python = loaded.recipe.python
    if wheel is None or python is None:
        return {}
    site = python.site.lstrip("/")
    with zipfile.ZipFile(io.BytesIO(wheel)) as archive:
        modules = {name: archive.read(name) for name in archive.namelist()} | bytecode
    info = next(name.split("/")[0] for name in modules if name.endswith(".dist-info/RECORD"))
    modules[f"{info}/INSTALLER"] = b"fairlead\n"
    script = f"#!{python.prefix}/bin/python3 -I\nfrom fairlead.cli.main import entry\n\nentry()\n"
    files = {f"{site}/{name}": (body, 0o644) for name, body in modules.items()}
    return {**files, f"{python.prefix}/bin/fairlead".lstrip("/"): (script.encode(), 0o755)}


def core(loaded: LoadedRecipe, lock: Lock, wheel: bytes | None) -> Files:
    """The collective core and its operation where programs look for them, as our wheel has them for the processor."""
    if wheel is None or lock.base or not any(s.core_from_wheel for s in loaded.bundled):
        return {}
    machine = MACHINES[lock.architecture]
    with zipfile.ZipFile(io.BytesIO(wheel)) as archive:
        return {
            f"{CORE_FOLDER}/{name}".lstrip("/"): (
                archive.read(f"fairlead/native/lib/{machine}/{name}"),
                0o755,
            )
            for name in (native.CORE.name, native.TENSORFLOW.name)
        }


def of_sources(built: Iterable[Built]) -> Files:
    """The files of sources that are laid over the tree, not into it."""
    files = {}
    for source in built:
        with tarfile.open(source.folder / "overlay.tar") as archive:
            for info in archive:
                if info.isreg() and (stream := archive.extractfile(info)):
                    mode = 0o755 if info.mode & 0o111 else 0o644
                    files[str(PurePosixPath(info.name))] = stream.read(), mode
    return files


def overlay(
    tree: Path, record: TreeRecord, files: Files, target: Path, job: TreeJob
) -> dict[str, Any]:
    """Writes ``target``: ``tree`` with ``files`` in it.

    Returns:
        What the image's record in the SIF says of it; ``tree_bytes`` is the content of all its files.
    Raises:
        FairleadError: a tool failed, the tree is damaged, or there is no room.
    """
    how = compression_of(job.lock)
    layer = target.with_name("layer.squashfs")
    again = f"rm {tree} && {job.again}"
    with job.progress.stage("lay fairlead over the tree", tree.stat().st_size, "B") as stage:
        with squashing(layer, how, job.again, job.cache) as sink:
            sink.write(_tar(files, how.epoch))
        try:
            below_sha256, sha256 = lay(layer, tree, target, job.cache, stage.advance)
        except NotLaid as exc:
            raise fail("cache-damaged", tree=tree, why=str(exc), remedy=again) from None
        layer.unlink()
    if below_sha256 != record.sha256:
        why = f"it has sha256 {below_sha256[:16]}…, not {record.sha256[:16]}…"
        raise fail("cache-damaged", tree=tree, why=why, remedy=again)
    folders, laid = _entries(files)
    whole = {**folders, **record.entries, **laid}
    size = sum(int(entry.detail) for entry in whole.values() if entry.kind == "file")
    return {
        "squashfs_sha256": sha256,
        "squashfs_bytes": target.stat().st_size,
        "tree_sha256": tree_sha256(whole),
        "tree_bytes": size,
    }


def _entries(files: Files) -> tuple[dict[str, Entry], dict[str, Entry]]:
    """The layer as entries of a tree: its folders, which are the writer's unless the tree has them,
    and its files."""
    folders = {str(above) for path in files for above in PurePosixPath(path).parents}
    return dict.fromkeys(folders - {"."} | {"dev"}, Entry("folder", 0o755)), {
        path: Entry("file", mode, str(len(body)), hashlib.sha256(body).hexdigest())
        for path, (body, mode) in files.items()
    }


def _tar(files: Files, epoch: int) -> bytes:
    # mmdebstrap leaves /dev out together with its device nodes; engines mount over it. Other
    # folders are left out: those of the tree stay, new ones get the writer's defaults.
    dev = tarfile.TarInfo("./dev")
    dev.type, dev.mode, dev.mtime = tarfile.DIRTYPE, 0o755, epoch
    members = [tar.small_file(path, *files[path], epoch) for path in sorted(files)]
    return tar.header(dev) + b"".join(members) + tar.END
