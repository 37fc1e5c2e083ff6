"""What a tree holds, whatever it is wrapped in: an entry a path, and one digest over all of them.

The same image as SIF, squashfs, OCI layers or folder has the same digest. :mod:`fairlead.image.mount` uses it for
images, ``fairlead_build.squashfs.tree_stream`` for streams.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from fairlead.base.regular import open_regular
from fairlead.image.budget import Budget

_CHUNK = 1 << 20
# Engines mount over these; what lies in them is not the image's.
HIDDEN = ("dev/", "proc/", "sys/")


class Entry(NamedTuple):
    """One path of a tree.

    Attributes:
        kind: ``file``, ``folder``, ``link``, ``char``, ``block`` or ``pipe``.
        mode: permission bits, set-id and sticky bits included; 0 for a link, which has none.
        detail: the size of a file in bytes, the target of a link, ``MAJOR:MINOR`` of a device.
        sha256: of a file's content, hex; else empty.
    """

    kind: str
    mode: int
    detail: str = ""
    sha256: str = ""


Tree = Mapping[str, Entry]


def belongs(path: str) -> bool:
    """Whether ``path``, relative to the root, is a part of the image: not what is in /dev and the
    like. The root folder itself is a part of what it is wrapped in."""
    return bool(path) and not path.startswith(HIDDEN)


def tree_sha256(tree: Tree) -> str:
    """The digest of a tree: kinds, permission bits, targets and content, sorted by path.

    Times and owners are left out: a folder that an ordinary user unpacks cannot keep them.

    >>> tree_sha256({"a": Entry("folder", 0o755)}) == tree_sha256({"a": Entry("folder", 0o700)})
    False
    """
    digest = hashlib.sha256(b"fairlead tree 1\0")
    for path in sorted(tree, key=os.fsencode):
        kind, mode, detail, sha256 = tree[path]
        # No field can hold a NUL, so no two trees give the same bytes.
        digest.update(os.fsencode(f"{path}\0{kind}\0{mode:o}\0{detail}\0{sha256}\0"))
    return digest.hexdigest()


def scan_folder(
    root: Path,
    advance: Callable[[int], object] = lambda amount: None,
    budget: Budget | None = None,
) -> dict[str, Entry]:
    """The entries of the folder ``root``. Sockets are left out: they belong to processes.

    Args:
        advance: called with the number of bytes of each read.
    Raises:
        FairleadError: it takes more than ``budget``.
        OSError: a part of it cannot be read.
    """
    budget = budget or Budget(root)
    tree: dict[str, Entry] = {}
    pending = [("", os.fspath(root), 0)]
    while pending:
        above, folder, depth = pending.pop()
        with os.scandir(folder) as entries:
            for item in entries:
                path = f"{above}{item.name}"
                if not belongs(path):
                    continue
                budget.entry(item.path, depth)
                entry = _entry(item, advance, budget)
                if entry is not None:
                    tree[path] = entry
                    if entry.kind == "folder":
                        pending.append((f"{path}/", item.path, depth + 1))
    return tree


def _entry(
    item: os.DirEntry[str], advance: Callable[[int], object], budget: Budget
) -> Entry | None:
    status = item.stat(follow_symlinks=False)
    mode = stat.S_IMODE(status.st_mode)
    match stat.S_IFMT(status.st_mode):
        case stat.S_IFREG:
            digest = hashlib.sha256()
            budget.read(status.st_size, item.path)
            with open_regular(item.path) as stream:
                while chunk := stream.read(_CHUNK):
                    budget.clock(item.path)
                    digest.update(chunk)
                    advance(len(chunk))
            return Entry("file", mode, str(status.st_size), digest.hexdigest())
        case stat.S_IFDIR:
            return Entry("folder", mode)
        case stat.S_IFLNK:
            # Path.readlink would tidy it.
            return Entry("link", 0, os.readlink(item.path))  # noqa: PTH115
        case stat.S_IFIFO:
            return Entry("pipe", mode)
        case stat.S_IFCHR | stat.S_IFBLK as kind:
            number = f"{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}"
            return Entry("char" if kind == stat.S_IFCHR else "block", mode, number)
    return None
