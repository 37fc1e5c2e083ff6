"""Our own wheel and the image's description, laid over a finished tree without unpacking it.

The tree streams from its squashfs through a tar pipe into a new one, with a small layer before it.
``examine.py`` makes the layer's .pyc files.
"""

from __future__ import annotations

import hashlib
import io
import json
import shlex
import subprocess
import tarfile
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairlead import __version__
from fairlead.facts import ImageFacts
from fairlead.progress import Progress
from fairlead.serial import to_json
from fairlead_build.lock import Lock
from fairlead_build.proc import child, clean_environment, tool_failed
from fairlead_build.recipe import LoadedRecipe, Recipe
from fairlead_build.squash import CHUNK, squashing, unsquash_argv
from fairlead_build.tree import compression_of

SCHEMA_VERSION = 1
_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True)
class Description:
    """What an image says of itself in ``/.fairlead/image.json``."""

    recipe: str
    summary: str
    recipe_sha256: str
    lock_sha256: str
    tree_key: str
    wheel_sha256: str
    fairlead_version: str
    architecture: str
    source_date_epoch: int
    labels: dict[str, str]
    env: dict[str, str]
    packages: dict[str, dict[str, str]]
    facts: ImageFacts

    def to_json(self) -> dict[str, Any]:
        return {"schema": "fairlead/image", "version": SCHEMA_VERSION, **to_json(self)}


def describe(
    loaded: LoadedRecipe,
    lock: Lock,
    facts: ImageFacts,
    *,
    lock_sha256: str,
    tree_key: str,
    wheel_sha256: str,
) -> Description:
    """The description of the image that these make."""
    return Description(
        recipe=loaded.name,
        summary=loaded.recipe.recipe.summary,
        recipe_sha256=loaded.digest,
        lock_sha256=lock_sha256,
        tree_key=tree_key,
        wheel_sha256=wheel_sha256,
        fairlead_version=__version__,
        architecture=lock.architecture,
        source_date_epoch=lock.source_date_epoch,
        labels=dict(sorted(loaded.recipe.labels.items())),
        env=environment(loaded.recipe),
        packages={
            "deb": {d.name: d.version for d in lock.deb},
            "wheel": {w.name: w.version for w in lock.wheel if w.role != "installer"},
        },
        facts=facts,
    )


def environment(recipe: Recipe) -> dict[str, str]:
    """The variables that every engine must set in the image."""
    bins = [f"{recipe.python.prefix}/bin"] if recipe.python else []
    if recipe.mpi and recipe.mpi.source == "wheel":
        bins.append(f"{recipe.mpi.home}/bin")
    # The user's own ~/.local is mounted by most engines, and would leak into the image's Python.
    own = {"PATH": ":".join([*bins, _SYSTEM_PATH]), "PYTHONNOUSERSITE": "1"}
    return {**own, **dict(sorted(recipe.env.items()))}


@dataclass(frozen=True)
class Member:
    """One file of the layer."""

    path: str
    body: bytes
    mode: int = 0o644


def layer(
    loaded: LoadedRecipe, description: Description, wheel: bytes | None, bytecode: dict[str, bytes]
) -> list[Member]:
    """All files that an image has beyond its tree."""
    text = json.dumps(description.to_json(), indent=1, sort_keys=True).encode() + b"\n"
    variables = "".join(f"export {k}={shlex.quote(v)}\n" for k, v in description.env.items())
    labels = {
        **description.labels,
        "org.fairlead.recipe": description.recipe,
        "org.fairlead.lock.sha256": description.lock_sha256,
        "org.fairlead.version": description.fairlead_version,
    }
    members = [
        Member(".fairlead/image.json", text),
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
            b'#!/bin/sh\n[ $# -gt 0 ] || set -- /bin/bash\nexec "$@"\n',
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


def overlay(
    tree: Path,
    members: list[Member],
    target: Path,
    lock: Lock,
    progress: Progress,
    remedy: str,
) -> str:
    """Writes ``target``: ``tree`` with ``members`` in it.

    Args:
        members: what it gets; none of them may be in ``tree`` already.
    Returns:
        The sha256 of ``target``.
    Raises:
        FairleadError: a tool failed, or there is no room.
    """
    how = compression_of(lock)
    with (
        progress.stage("lay fairlead over the tree", unit="B") as stage,
        squashing(target, how, remedy) as sink,
    ):
        # Our layer first, without its end mark: then the tree's own end mark ends both.
        sink.write(_tar(members, how.epoch))
        argv = unsquash_argv(tree)
        with child(argv, env=clean_environment(), stderr=subprocess.PIPE) as source:
            assert source.stdout is not None and source.stderr is not None
            while chunk := source.stdout.read(CHUNK):
                sink.write(chunk)
                stage.advance(len(chunk))
            said = source.stderr.read().decode("utf-8", "replace")
            if code := source.wait():
                raise tool_failed(
                    argv, code, said, "read the cached tree", f"rm {tree} && {remedy}"
                )
    with target.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _tar(members: list[Member], epoch: int) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as archive:
        # mmdebstrap leaves /dev out together with its device nodes; engines mount over it. Other
        # folders are not told of: those of the tree stay, new ones get the writer's defaults.
        archive.addfile(_info("dev", tarfile.DIRTYPE, 0o755, 0, epoch))
        for member in sorted(members, key=lambda m: m.path):
            info = _info(member.path, tarfile.REGTYPE, member.mode, len(member.body), epoch)
            archive.addfile(info, io.BytesIO(member.body))
        size = archive.offset
    return buffer.getvalue()[:size]


def _info(path: str, kind: bytes, mode: int, size: int, epoch: int) -> tarfile.TarInfo:
    info = tarfile.TarInfo(f"./{path}")
    info.type, info.mode, info.size, info.mtime = kind, mode, size, epoch
    info.uname = info.gname = "root"
    return info
