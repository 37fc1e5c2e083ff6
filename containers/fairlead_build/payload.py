"""Our own wheel and the image's description, laid over a finished tree without unpacking it.

The tree streams from its squashfs through a tar pipe into a new one, with a small layer before it.
The layer's .pyc files are made by the image's own Python, in the mounted tree.
"""

from __future__ import annotations

import hashlib
import io
import json
import shlex
import subprocess
import tarfile
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from fairlead import __version__
from fairlead.facts import ImageFacts
from fairlead.findings import fail
from fairlead.progress import Progress
from fairlead.serial import to_json
from fairlead_build.lock import Lock
from fairlead_build.proc import child, clean_environment, run, tool_failed
from fairlead_build.recipe import LoadedRecipe, Recipe
from fairlead_build.squash import CHUNK, squashing, unsquash_argv
from fairlead_build.tree import compression_of

SCHEMA_VERSION = 1
_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# mmdebstrap leaves /dev out together with its device nodes; engines mount over these.
_MOUNT_POINTS = ("dev", "proc", "sys", "run", "tmp")
_BYTECODE = Path(__file__).with_name("inside") / "bytecode.py"


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


@contextmanager
def mounted(squashfs: Path, folder: Path) -> Iterator[Path]:
    """``squashfs`` mounted read-only at ``folder/mnt``, without privileges.

    Raises:
        FairleadError: FUSE cannot be used here.
    """
    mount = folder / "mnt"
    mount.mkdir()
    argv: list[str | Path] = ["squashfuse", "-f", "-o", "ro,nodev,nosuid", squashfs, mount]
    with child(argv, env=clean_environment(), stderr=subprocess.STDOUT) as process:
        deadline = time.monotonic() + 30
        while not mount.is_mount():
            if process.poll() is not None or time.monotonic() > deadline:
                process.terminate()
                said = (
                    process.stdout.read().decode("utf-8", "replace").strip()
                    if process.stdout
                    else ""
                )
                raise fail(
                    "the tree cannot be mounted", where=f"squashfuse, {mount}", why=said or "it did not start",
                    remedy="sudo apt-get install squashfuse fuse3 && sudo chmod 666 /dev/fuse",
                    check="fuse",
                )  # fmt: skip
            time.sleep(0.01)
        yield mount  # SIGTERM makes squashfuse unmount, and it gets that when the block ends


def wheel_bytecode(root: Path, wheel: bytes, prefix: str, site: str) -> dict[str, bytes]:
    """The .pyc files of a wheel, made by the Python of the tree mounted at ``root``.

    Returns:
        Their bytes, by name relative to ``site`` (the tree's site-packages).
    Raises:
        FairleadError: the tree's Python does not run, or cannot compile the wheel.
    """
    asked = io.BytesIO(wheel)
    with zipfile.ZipFile(asked, "a") as archive:
        archive.comment = site.encode()
    # Nothing is written to the tree: the archive goes in by stdin and comes out by stdout.
    argv = [
        "unshare", "--user", "--map-root-user", f"--root={root}", f"{prefix}/bin/python3", "-I", "-S", "-c",
        _BYTECODE.read_text("utf-8"),
    ]  # fmt: skip
    made = run(
        argv, env=clean_environment(), stdin=asked.getvalue(), doing="compile fairlead for the image's Python",
        remedy="fairlead doctor",
    )  # fmt: skip
    with zipfile.ZipFile(io.BytesIO(made)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


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
        site = f"{python.prefix}/lib/python{python.version}/site-packages".lstrip("/")
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
    present: Path,
    target: Path,
    lock: Lock,
    progress: Progress,
    remedy: str,
) -> str:
    """Writes ``target``: ``tree`` with ``members`` in it.

    Args:
        present: the mounted tree; its folders keep their attributes.
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
        sink.write(_tar(members, present, how.epoch))
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


def _tar(members: list[Member], present: Path, epoch: int) -> bytes:
    folders = set(_MOUNT_POINTS)
    for member in members:
        folders.update(str(p) for p in PurePosixPath(member.path).parents if str(p) != ".")
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for folder in sorted(folders):
            if not (present / folder).is_dir():
                archive.addfile(_info(folder, tarfile.DIRTYPE, 0o755, 0, epoch))
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
