"""The facts of an image in a folder, kept for as long as nothing in the folder changes.

The key is the metadata of every file: a look at 8,000 of them takes 0.1 s, reading their content two seconds.
A change that leaves path, inode, size, mode, mtime and ctime as they are does not exist: no call sets a ctime.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from fairlead.base import bounded_json
from fairlead.base.paths import atomic_write
from fairlead.base.serde import from_json, to_json
from fairlead.image.budget import Budget
from fairlead.image.packages import belongs_to_kernel

T = TypeVar("T")
# The coarsest clock of a file system in use (Lustre's has seconds): of a younger file, a later change may not show.
_SETTLED_S = 2.0


@dataclass(frozen=True)
class State:
    """What a folder held when it was looked at.

    Attributes:
        key: sha256 over the metadata of everything in it.
        newest: the latest ctime in it, seconds since 1970.
    """

    key: str
    newest: float


def state_of(root: Path, version: str = "") -> State:
    """The state of the tree at ``root``, without the kernel's file systems; nothing in it is opened.

    Args:
        version: of what is kept under the key.
    Raises:
        FairleadError: it is larger or deeper than an image.
        OSError: ``root`` itself cannot be read.
    """
    budget = Budget(root)
    status = root.stat()
    # What can be read depends on who reads.
    digest = hashlib.sha256(f"{version} {os.geteuid()} {_words(status)}\n".encode())
    newest = status.st_ctime_ns
    pending = [(os.fspath(root), 0)]
    while pending:
        folder, depth = pending.pop()
        top = not depth
        try:
            with os.scandir(folder) as entries:
                inside = []
                for entry in entries:
                    budget.entry(entry.path, depth)
                    inside.append(entry)
        except OSError as exc:
            if top:
                raise
            digest.update(f"{exc.errno}\n".encode())
            continue
        digest.update(os.fsencode(folder) + b"\n")
        for entry in sorted(inside, key=lambda entry: entry.name):
            if top and belongs_to_kernel(entry.name):
                continue
            try:
                status = entry.stat(follow_symlinks=False)
            except OSError as exc:
                digest.update(os.fsencode(entry.name) + f" {exc.errno}\n".encode())
                continue
            digest.update(os.fsencode(entry.name) + f"\0{_words(status)}\n".encode())
            newest = max(newest, status.st_ctime_ns)
            if entry.is_dir(follow_symlinks=False):
                pending.append((entry.path, depth + 1))
    return State(digest.hexdigest(), newest / 1e9)


def kept(cls: type[T], root: Path, facts: Path, version: str, make: Callable[[], T]) -> T:
    """What ``make`` found in ``root``, from the cache while ``root`` is as it was then.

    Args:
        facts: the cache's folder of facts; a folder that changes replaces its file there.
        version: of what is kept; another one does not count.
    Raises:
        OSError: ``root`` cannot be read.
    """
    name = hashlib.sha256(os.fsencode(root)).hexdigest()[:20]
    file = facts / f"folder-{name}.json"
    begun, before = time.time(), state_of(root, version)
    with suppress(OSError, ValueError, KeyError, TypeError):
        data = bounded_json.loads(file.read_text("utf-8"))
        if data["key"] == before.key:
            return from_json(cls, data["value"])
    value = make()
    if before.newest < begun - _SETTLED_S and state_of(root, version).key == before.key:
        with suppress(OSError), atomic_write(file, "w") as stream:
            json.dump({"key": before.key, "value": to_json(value)}, stream)
    return value


def _words(status: os.stat_result) -> str:
    return " ".join(
        str(number)
        for number in (
            status.st_dev, status.st_ino, status.st_mode, status.st_size, status.st_mtime_ns, status.st_ctime_ns,
        )
    )  # fmt: skip
