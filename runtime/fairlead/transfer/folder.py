"""The folder that a run has on a node's storage: whose it is, and what is left of others.

``ROOT/fairlead-stage.ID`` has ``data`` (what the container sees), ``new`` (copies that are not whole
yet), ``owner.json``, ``manifest.json`` and ``lock``. The run's own process holds the lock as long as it
lives, so that the next run on the node recognises what a killed one left. A job step ends before
the run does and holds none: what it made goes with the run, or with the job.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from fairlead.base.errors import ExitCode, FairleadError, error, fail
from fairlead.transfer import copying
from fairlead.transfer.model import PREFIX, Entry, Kind, Tree, node_name


@dataclass(frozen=True)
class Owner:
    """Whose a folder is.

    Attributes:
        job: the scheduler's job; empty outside of one.
        held: by a process that lives as long as the run, and not by a step that has ended since.
        keep: it is to be left to the next run of the same job.
        free: its own run has ended, and has left it.
    """

    node: str
    job: str
    held: bool
    keep: bool
    free: bool = False


@dataclass(frozen=True)
class Lock:
    """A lock that is held until it is let go, or the process ends."""

    handle: int

    def release(self) -> None:
        os.close(self.handle)


def usable(root: str) -> None:
    """Looks whether folders can be made in ``root``.

    Raises:
        FairleadError: exit code 121; they cannot.
    """
    why = ""
    if not os.path.isdir(root):
        why = "no such folder on this node"
    elif not os.access(root, os.W_OK | os.X_OK):
        why = "you cannot write there"
    if why:
        raise fail("stage-place-unusable", root=root, node_name=node_name(), why=why)


def make(folder: str, owner: Owner) -> Lock | None:
    """Makes a run's folder, for its user alone; the lock on it, where one is held.

    Raises:
        FileExistsError: it is there.
    """
    os.mkdir(folder, 0o700)
    lock = _locked(folder) if owner.held else None
    os.mkdir(f"{folder}/data", 0o700)
    os.mkdir(f"{folder}/new", 0o700)
    _write(f"{folder}/owner.json", asdict(owner))
    return lock


def owner_of(folder: str) -> Owner | None:
    """Whose a folder is; None when it is unknown, or it is another user's."""
    with contextlib.suppress(OSError, ValueError, TypeError):
        found = os.lstat(folder)
        if stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid():
            return Owner(**_read(f"{folder}/owner.json"))
    return None


def hand_on(folder: str, owner: Owner, gone: list[str]) -> None:
    """Leaves a folder to the next run of its job.

    Args:
        gone: names in it that are no longer wanted.
    """
    for name in gone:
        copying.remove(f"{folder}/data/{name}")
    with contextlib.suppress(FileNotFoundError):
        os.rmdir(f"{folder}/out")
    _write(f"{folder}/owner.json", asdict(owner) | {"free": True})


def keep_results(folder: str, names: list[str]) -> None:
    """Marks a folder as holding results that nothing but a user may remove, and removes the rest."""
    _write(f"{folder}/kept.json", {"names": names})
    kept = {f"{folder}/data/{name}" for name in names}
    above = {parent for path in kept for parent in _above(path, f"{folder}/data")}
    todo = [f"{folder}/data"]
    while todo:
        with os.scandir(todo.pop()) as listing:
            for item in list(listing):
                if item.path in above:
                    todo.append(item.path)
                elif item.path not in kept:
                    copying.remove(item.path)
    for name in ("new", "out"):
        copying.remove(f"{folder}/{name}")


def kept_results(folder: str) -> list[str]:
    """The names that :func:`keep_results` has marked."""
    with contextlib.suppress(OSError, ValueError, KeyError):
        return [str(name) for name in _read(f"{folder}/kept.json")["names"]]
    return []


def clear_stale(root: str) -> int:
    """Removes what runs that were killed have left in ``root``; how many folders that were."""
    removed = 0
    for folder, owner in _folders(root):
        if not owner.held or owner.keep or os.path.lexists(f"{folder}/kept.json"):
            continue
        if lock := _locked(folder):
            with contextlib.suppress(OSError):
                copying.remove(folder)
                removed += 1
            lock.release()
    return removed


@contextlib.contextmanager
def of_job(root: str, job: str) -> Iterator[list[str]]:
    """Folders that earlier runs of the same job have left for later ones; nobody else takes them
    meanwhile. Those that are empty at the end are removed."""
    found: list[tuple[str, Lock]] = []
    for folder, owner in _folders(root) if job else ():
        if owner.free and owner.job == job and (lock := _locked(folder)):
            found.append((folder, lock))
    try:
        yield [folder for folder, _ in found]
    finally:
        for folder, lock in found:
            with contextlib.suppress(OSError):
                if not manifest(folder) and not os.path.lexists(f"{folder}/kept.json"):
                    copying.remove(folder)
            lock.release()


def _folders(root: str) -> Iterator[tuple[str, Owner]]:
    """This user's folders in ``root`` that were made on this node."""
    with contextlib.suppress(OSError), os.scandir(root) as listing:
        for item in list(listing):
            if item.name.startswith(PREFIX):
                owner = owner_of(item.path)
                if owner and owner.node == node_name():
                    yield item.path, owner


def _locked(folder: str) -> Lock | None:
    """The lock on a folder; None when another process holds it, or locks do not work there."""
    try:
        handle = os.open(
            f"{folder}/lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
        )
    except OSError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        return None
    return Lock(handle)


def _above(path: str, top: str) -> Iterator[str]:
    while (path := os.path.dirname(path)) != top:
        yield path


# --- manifests -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Staged:
    """What a manifest says of one item: the source as it was, and each file's digest."""

    tree: Tree
    digest: str
    files: Mapping[str, str]


def manifest(folder: str) -> dict[str, Staged]:
    """What is whole in a folder, by name; what cannot be read counts as nothing."""
    found: dict[str, Staged] = {}
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
        for name, said in _read(f"{folder}/manifest.json").items():
            entries = tuple(
                Entry(**{**e, "kind": Kind(e["kind"]), "stamp": tuple(e["stamp"])})
                for e in said["entries"]
            )
            found[name] = Staged(Tree(said["top"], entries), said["digest"], said["files"])
    return found


def write_manifest(folder: str, items: Mapping[str, Staged]) -> None:
    """Replaces the manifest."""
    _write(
        f"{folder}/manifest.json",
        {
            name: {
                "top": staged.tree.top,
                "digest": staged.digest,
                "files": dict(staged.files),
                "entries": [asdict(entry) for entry in staged.tree.entries],
            }
            for name, staged in items.items()
        },
    )


def _write(path: str, value: object) -> None:
    partial = f"{path}.partial"
    with open(partial, "w", encoding="ascii") as stream:  # surrogates as \udcff
        json.dump(value, stream)
    os.replace(partial, path)


def _read(path: str) -> Any:
    with open(path, encoding="ascii") as stream:
        return json.load(stream)


def in_words(exc: OSError, where: str) -> FairleadError:
    """An error of the system while something was staged."""
    return FairleadError(
        error(
            "stage-copy",
            filename=exc.filename or where,
            reason=exc.strerror or str(exc),
            where=where,
        ),
        ExitCode.LAUNCH_FAILED,
    )
