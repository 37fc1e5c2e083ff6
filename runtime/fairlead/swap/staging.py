"""Creates a plan's staged folder with the host's MPI, once, and keeps it.

The folder is created next to its final path and renamed when complete; ``is_whole`` checks it before each use, so a
folder that was damaged or changed, or whose sources were, is created again.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path, PurePosixPath

from fairlead import native
from fairlead.base import bounded_json, seals
from fairlead.base.errors import os_error_as
from fairlead.base.exposure import refuse_exposed
from fairlead.base.paths import atomic_folder, atomic_write, locked
from fairlead.base.seals import Seal
from fairlead.elf.patchelf import set_rpath
from fairlead.elf.stub import stub
from fairlead.swap.model import (
    CARRIED_MOUNT,
    MOUNT,
    NCCL_MOUNT,
    RUN_MOUNT,
    WITNESS,
    Plan,
    Staging,
    Stub,
)
from fairlead.swap.remedies.folders_only import room_folder

KEPT_S = 30 * 86400.0  # an unused folder; longer than any job runs
_SEALS = "copies.json"  # what each copy and its source held


def ensure(plan: Plan, cache: Path, environ: Mapping[str, str] = os.environ) -> Path | None:
    """Makes the files of the cache that a plan binds, its witness and staged folders, unless whole ones are there.

    Returns:
        the staged folder of the MPI.
    Raises:
        FairleadError: exit code 123; a file vanished, or there is no room. Exit code 121; others can write there.
    """
    refuse_exposed(cache / "stage", cache)
    if plan.witness:
        native.ensure(native.witness(calls=plan.unknown_mpi), cache, environ)
    if not plan.engine.binds_files:
        _furnish(plan, cache)
    for staging in (plan.nccl_staging, plan.carried_staging):
        if staging is not None:
            _made(staging, cache)
    return None if plan.staging is None else _made(plan.staging, cache)


def _made(staging: Staging, cache: Path) -> Path:
    folder = cache / "stage" / staging.key
    if is_whole(folder, staging):
        return folder
    lock = locked(cache / "locks" / f"stage-{folder.name}.lock")
    with os_error_as("stage-failed", filename=folder), lock:
        if not is_whole(folder, staging):  # another process may have made it meanwhile
            for old in folder.parent.glob(".*.old"):
                if time.time() - old.stat().st_mtime > KEPT_S:
                    shutil.rmtree(old, ignore_errors=True)
            set_aside(folder)
            with atomic_folder(folder) as tree:
                _fill(tree, staging)
    return folder


def _furnish(plan: Plan, cache: Path) -> None:
    """The folder that an engine shows which shows folders only."""
    room = room_folder(cache, plan.witness)
    witness = Path(plan.witness)
    there = room / PurePosixPath(WITNESS).name
    if plan.witness and witness.is_file():
        whole = there.is_file() and there.read_bytes() == witness.read_bytes()
    else:
        whole = room.is_dir()
    places = [
        room / PurePosixPath(place).name for place in (MOUNT, NCCL_MOUNT, CARRIED_MOUNT, RUN_MOUNT)
    ]
    if whole and all(place.is_dir() for place in places):
        return
    lock = locked(cache / "locks" / f"room-{room.name}.lock")
    with os_error_as("stage-failed", filename=room), lock, atomic_folder(room) as tree:
        for place in places:
            (tree / place.name).mkdir()
        if plan.witness and witness.is_file():
            shutil.copy(witness, tree / there.name)
        tree.chmod(0o755)


def set_aside(folder: Path) -> None:
    """Renames an outdated folder, if there is one, instead of deleting it: running jobs have it mounted."""
    if folder.exists():
        aside = folder.with_name(f".{folder.name}.{os.urandom(4).hex()}.old")
        folder.rename(aside)
        os.utime(aside)


def planned_inode(plan: Plan, cache: Path) -> int:
    """The inode of the staged MPI; 0 when nothing is staged."""
    if plan.staging is None or plan.host is None:
        return 0
    return (cache / "stage" / plan.staging.key / "lib" / plan.host.library.soname).stat().st_ino


def digests(staging: Staging, cache: Path) -> dict[str, str]:
    """sha256 of each copy in a staged folder, by its path in it; empty where the folder has gone."""
    try:
        noted = _noted(cache / "stage" / staging.key)
    except (OSError, ValueError, LookupError, TypeError):
        return {}
    return {target: copy.sha256 for target, (_, copy) in noted.items()}


def is_whole(folder: Path, staging: Staging) -> bool:
    """Every copy holds what it held when it was made, and so does its source; every alias points where it should; nothing
    else is there."""
    try:
        noted = _noted(folder)
        copied = dict(_copies(folder, staging))
        if noted.keys() != copied.keys():
            return False
        now = {}
        for target, source in copied.items():
            before = noted[target]
            now[target] = seals.again(source, before[0]), seals.again(folder / target, before[1])
            if [seal.sha256 for seal in now[target]] != [seal.sha256 for seal in before]:
                return False
        if any(str((folder / link).readlink()) != target for link, target in staging.aliases):
            return False
        if not all((folder / place).is_dir() for _, place in staging.folders):
            return False
        if any((folder / s.target).read_bytes() != _content(s) for s in staging.stubs):
            return False
        made = {*(link for link, _ in staging.aliases), *(s.target for s in staging.stubs)}
        if _others(folder, {*copied, *made, _SEALS}):
            return False
    except (OSError, ValueError, LookupError, TypeError):
        return False
    if now != noted:
        with suppress(OSError):
            _note(folder, now)
    return True


def _copies(folder: Path, staging: Staging) -> Iterator[tuple[str, Path]]:
    """Every file of the staged ``folder`` by its place in it, with its source."""
    for item in staging.files:
        if (folder / item.target).is_symlink():
            raise OSError(None, "a link in place of a copy")
        yield item.target, Path(item.source)
    for source, place in staging.folders:
        for inside in _files(source):
            yield f"{place}/{inside}", Path(source, inside)


def _files(folder: str | Path) -> Iterator[str]:
    """Paths of what is not a folder, below ``folder``; behind links too, as they are copied."""
    for parent, _, names in os.walk(folder, followlinks=True):
        for name in names:
            yield os.path.relpath(os.path.join(parent, name), folder)  # noqa: PTH118


def _others(folder: Path, known: set[str]) -> bool:
    """Whether there is anything but the ``known`` files; a library more would be found by the loader."""
    for parent, folders, names in os.walk(folder):
        for name in (*names, *(f for f in folders if os.path.islink(os.path.join(parent, f)))):  # noqa: PTH114, PTH118
            if name.startswith(f".{_SEALS}."):  # another launch is writing it
                continue
            if os.path.relpath(os.path.join(parent, name), folder) not in known:  # noqa: PTH118
                return True
    return False


def _noted(folder: Path) -> dict[str, tuple[Seal, Seal]]:
    data = bounded_json.loads((folder / _SEALS).read_bytes())
    return {path: (Seal(*source), Seal(*copy)) for path, (source, copy) in data.items()}


def _note(folder: Path, noted: Mapping[str, tuple[Seal, Seal]]) -> None:
    with atomic_write(folder / _SEALS, "w", 0o644) as out:
        json.dump({path: [(s.sha256, s.state) for s in pair] for path, pair in noted.items()}, out)


def _content(made: Stub) -> bytes:
    return stub(PurePosixPath(made.target).name, made.needed, made.machine, made.rpath)


def _fill(tree: Path, staging: Staging) -> None:
    sources: dict[str, Seal] = {}
    for item in staging.files:
        sources[item.target] = seals.seal(Path(item.source))
        target = tree / item.target
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(item.source, target)
        if item.rpath:
            target.chmod(0o755)
            set_rpath(target, item.rpath)
        shutil.copystat(item.source, target)
        target.chmod(0o755)
    for made in staging.stubs:
        (tree / made.target).parent.mkdir(parents=True, exist_ok=True)
        (tree / made.target).write_bytes(_content(made))
    for link, name in staging.aliases:
        (tree / link).parent.mkdir(parents=True, exist_ok=True)
        (tree / link).symlink_to(name)
    for source, place in staging.folders:
        shutil.copytree(source, tree / place)
    copied = _copies(tree, staging)
    _note(
        tree, {to: (sources.get(to) or seals.seal(of), seals.seal(tree / to)) for to, of in copied}
    )
