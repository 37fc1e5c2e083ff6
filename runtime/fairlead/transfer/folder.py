"""The folder that a run has on a node's storage: who owns it, and what others left.

``ROOT/fairlead-stage.ID`` has ``data`` (what the container sees), ``new`` (incomplete copies),
``owner.json``, ``manifest.json`` and ``lock``. The run's process holds the lock as long as it lives,
so the next run on the node recognises the folder of a killed one. A job step ends before the run does
and holds none: its folder is removed with the run, or with the job.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from fairlead.base.errors import fail
from fairlead.base.serde import from_json, to_json
from fairlead.transfer import copying
from fairlead.transfer.model import PREFIX, Entry, Tree


@dataclass(frozen=True)
class Owner:
    """Who owns a folder.

    Attributes:
        job: the scheduler's job; empty outside of one.
        held: by a process that lives as long as the run, and not by a step that has ended since.
        keep: it is to be left to the next run of the same job.
        free: its run has ended, and has left it.
        outs: where what is to be copied back goes, by name.
    """

    node: str
    job: str
    held: bool
    keep: bool
    free: bool = False
    outs: Mapping[str, str] = field(default_factory=dict)


def check_usable(root: str) -> None:
    """Tests whether folders can be made in ``root``.

    Raises:
        FairleadError: exit code 121; they cannot.
    """
    if not os.path.isdir(root):
        why = "no such folder on this node"
    elif not os.access(root, os.W_OK | os.X_OK):
        why = "you cannot write there"
    else:
        return
    raise fail("stage-place-unusable", root=root, node_name=os.uname().nodename, why=why)


def make(folder: str, owner: Owner) -> int | None:
    """Makes a run's folder, for its user alone; returns the lock on it, where one is held: a descriptor to close.

    Raises:
        FileExistsError: it exists.
    """
    os.mkdir(folder, 0o700)
    lock = _locked(folder) if owner.held else None
    os.mkdir(f"{folder}/data", 0o700)
    os.mkdir(f"{folder}/new", 0o700)
    _write(f"{folder}/owner.json", owner)
    return lock


def owner_of(folder: str) -> Owner | None:
    """Who owns a folder; None when it is unknown, or another user does."""
    with contextlib.suppress(OSError, ValueError):
        info = os.lstat(folder)
        if stat.S_ISDIR(info.st_mode) and info.st_uid == os.geteuid():
            return from_json(Owner, _read(f"{folder}/owner.json"))
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
    _write(f"{folder}/owner.json", replace(owner, free=True))


def keep_results(folder: str, names: list[str]) -> None:
    """Marks a folder as holding results that only a user may remove, and removes the rest."""
    _write(f"{folder}/kept.json", {"names": names})
    kept = [f"{folder}/data/{name}" for name in names]
    todo = [f"{folder}/data"]
    for above in todo:  # grows
        for name in os.listdir(above):
            path = f"{above}/{name}"
            if any(result.startswith(f"{path}/") for result in kept):
                todo.append(path)
            elif path not in kept:
                copying.remove(path)
    for name in ("new", "out"):
        copying.remove(f"{folder}/{name}")


def kept_results(folder: str) -> list[str]:
    """The names that :func:`keep_results` has marked."""
    with contextlib.suppress(OSError, ValueError, KeyError):
        return [str(name) for name in _read(f"{folder}/kept.json")["names"]]
    return []


_PARTIAL = re.compile(r"\..+\.[0-9a-f]{8}\.partial", re.DOTALL)


def clear_stale(root: str) -> list[tuple[str, Mapping[str, str]]]:
    """Removes what killed runs have left in ``root``, but for their results, which it keeps.

    Returns:
        Each folder with such results, and where they were to be copied, by name.
    """
    left: list[tuple[str, Mapping[str, str]]] = []
    for folder, owner in _folders(root):
        if not owner.held or owner.keep or os.path.lexists(f"{folder}/kept.json"):
            continue
        if (lock := _locked(folder)) is not None:
            for partial in _partials(folder):
                with contextlib.suppress(OSError):
                    copying.remove(partial)
            results = {n: t for n, t in owner.outs.items() if os.path.lexists(f"{folder}/data/{n}")}
            with contextlib.suppress(OSError):
                if results:
                    left.append((folder, results))
                    keep_results(folder, list(results))
                else:
                    copying.remove(folder)
            os.close(lock)
    return left


def will_make(folder: str, partial: str) -> None:
    """Notes a path outside of ``folder`` that a killed run would leave there: ``.NAME.TOKEN.partial``.

    Results that have filled the node's storage leave no room for the note, and are copied back without it.
    """
    with contextlib.suppress(OSError), open(f"{folder}/partials", "ab") as stream:
        stream.write(os.fsencode(os.path.abspath(partial)) + b"\0")
        stream.flush()
        os.fsync(stream.fileno())


def _partials(folder: str) -> list[str]:
    with contextlib.suppress(OSError), open(f"{folder}/partials", "rb") as stream:
        paths = [os.fsdecode(path) for path in stream.read().split(b"\0") if path]
        return [path for path in paths if _PARTIAL.fullmatch(os.path.basename(path))]
    return []


@contextlib.contextmanager
def of_job(root: str, job: str) -> Iterator[list[str]]:
    """Folders that earlier runs of the same job have left for later ones, locked meanwhile. Those that are
    empty at the end are removed."""
    with contextlib.ExitStack() as locks:
        folders = []
        for folder, owner in _folders(root) if job else ():
            if owner.free and owner.job == job and (lock := _locked(folder)) is not None:
                locks.callback(os.close, lock)
                folders.append(folder)
        try:
            yield folders
        finally:
            for folder in folders:
                with contextlib.suppress(OSError):
                    if not manifest(folder) and not os.path.lexists(f"{folder}/kept.json"):
                        copying.remove(folder)


def _folders(root: str) -> Iterator[tuple[str, Owner]]:
    """This user's folders in ``root`` that were made on this node."""
    with contextlib.suppress(OSError), os.scandir(root) as listing:
        for item in list(listing):
            owner = owner_of(item.path) if item.name.startswith(PREFIX) else None
            if owner and owner.node == os.uname().nodename:
                yield item.path, owner


def _locked(folder: str) -> int | None:
    """The lock on a folder, held until it is closed; None when another process holds it, or locks do not work there."""
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    with contextlib.suppress(OSError):
        handle = os.open(f"{folder}/lock", flags, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return handle
        except OSError:
            os.close(handle)
    return None


# --- manifests -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Staged:
    """A manifest's record of one item: the source as it was, and each file's digest."""

    top: str
    digest: str
    files: Mapping[str, str]
    entries: tuple[Entry, ...]

    @property
    def tree(self) -> Tree:
        return Tree(self.top, self.entries)


def manifest(folder: str) -> dict[str, Staged]:
    """What is complete in a folder, by name; empty if it cannot be read."""
    with contextlib.suppress(OSError, ValueError):
        return from_json(dict[str, Staged], _read(f"{folder}/manifest.json"))
    return {}


def write_manifest(folder: str, items: Mapping[str, Staged]) -> None:
    """Replaces the manifest."""
    _write(f"{folder}/manifest.json", items)


def _write(path: str, value: object) -> None:
    partial = f"{path}.partial"
    with open(partial, "w", encoding="ascii") as stream:  # surrogates as \udcff
        json.dump(to_json(value), stream)
    os.replace(partial, path)


def _read(path: str) -> Any:
    with open(path, encoding="ascii") as stream:
        return json.load(stream)
