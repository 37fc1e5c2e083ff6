"""Creates a plan's staged folder with the host's MPI, once, and keeps it.

The folder is created next to its final path and renamed when complete; ``is_whole`` checks it
before each use, so an emptied or damaged folder is created again.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path, PurePosixPath

from fairlead.base.errors import os_error_as
from fairlead.base.exposure import refuse_exposed
from fairlead.base.paths import atomic_folder, locked
from fairlead.elf.patchelf import set_rpath
from fairlead.swap.model import MOUNT, RUN_MOUNT, WITNESS, Plan, Staging
from fairlead.swap.remedies.folders_only import room_folder

KEPT_S = 30 * 86400.0  # an unused folder; longer than any job runs
_SIZES = "patched.json"  # sizes of the copies that differ from their sources


def ensure(plan: Plan, cache: Path) -> Path | None:
    """Makes the staged folder unless a whole one is there; returns it.

    Raises:
        FairleadError: exit code 123; a file vanished, or there is no room. Exit code 121; others can write there.
    """
    refuse_exposed(cache / "stage", cache)
    if not plan.engine.binds_files:
        _furnish(plan, cache)
    if plan.staging is None:
        return None
    folder = cache / "stage" / plan.staging.key
    if is_whole(folder, plan.staging):
        return folder
    lock = locked(cache / "locks" / f"stage-{folder.name}.lock")
    with os_error_as("stage-failed", filename=folder), lock:
        if not is_whole(folder, plan.staging):  # another process may have made it meanwhile
            for old in folder.parent.glob(".*.old"):
                if time.time() - old.stat().st_mtime > KEPT_S:
                    shutil.rmtree(old, ignore_errors=True)
            set_aside(folder)
            with atomic_folder(folder) as tree:
                _fill(tree, plan.staging)
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
    if whole:
        return
    lock = locked(cache / "locks" / f"room-{room.name}.lock")
    with os_error_as("stage-failed", filename=room), lock, atomic_folder(room) as tree:
        for place in (MOUNT, RUN_MOUNT):
            (tree / PurePosixPath(place).name).mkdir()
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


def is_whole(folder: Path, staging: Staging) -> bool:
    """Every file is there with its source's size and time, every alias points where it should."""
    try:
        sizes_file = folder / _SIZES
        sizes = json.loads(sizes_file.read_bytes()) if any(f.rpath for f in staging.files) else {}
        for item in staging.files:
            source, target = Path(item.source).stat(), (folder / item.target).lstat()
            size = sizes[item.target] if item.rpath else source.st_size
            if size != target.st_size or source.st_mtime_ns != target.st_mtime_ns:
                return False
        aliases = all(str((folder / link).readlink()) == target for link, target in staging.aliases)
        return aliases and all((folder / place).is_dir() for _, place in staging.folders)
    except (OSError, ValueError, KeyError):
        return False


def _fill(tree: Path, staging: Staging) -> None:
    sizes: dict[str, int] = {}
    for item in staging.files:
        target = tree / item.target
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(item.source, target)
        if item.rpath:
            target.chmod(0o755)
            set_rpath(target, item.rpath)
            sizes[item.target] = target.stat().st_size
        shutil.copystat(item.source, target)
        target.chmod(0o755)
    if sizes:
        (tree / _SIZES).write_text(json.dumps(sizes), "utf-8")
    for link, name in staging.aliases:
        (tree / link).symlink_to(name)
    for source, place in staging.folders:
        shutil.copytree(source, tree / place)
