"""What to copy: a walk through a tree that reads no file.

A link that stays within the tree is kept as it is. An absolute link into the tree becomes a relative
one, since the copy is elsewhere. A link that leads out is refused, followed or kept, as requested. Of
hard links within the tree the first is copied. Sockets, pipes and devices have no content to copy. Not
kept: owners, access lists and extended attributes, set-user-id bits.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from fairlead.base.errors import ExitCode, FairleadError, Finding, error, fail
from fairlead.transfer.model import Entry, Kind, Links, Tree

_MODE = 0o1777  # a copy belongs to the copier: set-user-id would mean another user
_SHOWN = 5  # paths that a message names
_HOPS = 100  # links on one way; a kernel follows 40
_SPECIAL = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFBLK: "a device",
    stat.S_IFCHR: "a device",
}


def scan(top: str, links: Links, *, seen_as: str = "", leave_special: bool = False) -> Tree:
    """Lists what is at ``top``.

    Args:
        seen_as: the path by which its links name it; ``top`` itself otherwise.
        leave_special: leave out what cannot be copied, instead of refusing all.
    Raises:
        FairleadError: exit code 121; links lead out, or something is not a file, folder or link,
            or cannot be read. Exit code 2; there is nothing.
    """
    real = os.path.realpath(top)
    walk = _Walk((seen_as,) if seen_as else (os.path.abspath(top), real), links)
    try:
        status = os.stat(real)
        if stat.S_ISDIR(status.st_mode):
            walk.folders(real, status)
        else:
            walk.file_or_special("", real, status)
    except FileNotFoundError as exc:
        where = exc.filename or top
        if where == real:
            raise fail("stage-source-missing-on-node", top=top) from None
        raise changed(top, [os.path.relpath(where, real)]) from None
    problems = list(walk.problems(leave_special))
    if problems:
        raise FairleadError(problems, ExitCode.PREFLIGHT_REFUSED)
    return Tree(
        real,
        _linked(sorted(walk.entries, key=lambda entry: entry.path)),
        tuple(walk.special),
        tuple(sorted(walk.outward)),
    )


def changed(top: str, paths: list[str]) -> FairleadError:
    """The error of a tree that was written to while it was copied."""
    return fail("stage-changed", top=top, few=_few(paths))


def differences(first: Tree, second: Tree, *, copied: bool = False) -> list[str]:
    """Paths at which two scans of one tree differ, or of a tree and its copy; contents aside."""
    # Holes may change as a file system writes out what it was given long ago.
    aside: dict[str, Any] = {"data": 0}
    if copied:
        aside |= {"source": "", "mtime_ns": 0, "stamp": (0, 0, 0)}
    left, two = ({e.path: replace(e, **aside) for e in tree.entries} for tree in (first, second))
    return sorted(path for path in left.keys() | two.keys() if left.get(path) != two.get(path))


class _Walk:
    def __init__(self, seen_as: tuple[str, ...], links: Links):
        self.seen_as, self.links = seen_as, links
        self.entries: list[Entry] = []
        self.outward: list[str] = []
        self.refused: list[str] = []
        self.nowhere: list[str] = []
        self.special: list[tuple[str, str]] = []
        self.unreadable: list[str] = []

    def folders(self, top: str, status: os.stat_result) -> None:
        # (path below the copy's top, source, root of the tree that its links are judged in, path below
        # that, folders above): a stack, since trees may be deeper than Python calls.
        start = ("", top, top, "", frozenset({(status.st_dev, status.st_ino)}))
        self.entries.append(_entry("", Kind.FOLDER, top, status))
        todo = [start]
        while todo:
            path, source, root, within, above = todo.pop()
            try:
                with os.scandir(source) as listing:
                    names = sorted(item.name for item in listing)
            except PermissionError:
                self.unreadable.append(path or ".")
                continue
            for name in names:
                below, here = f"{path}/{name}".lstrip("/"), f"{source}/{name}"
                inner, tree = f"{within}/{name}".lstrip("/"), root
                try:
                    child = os.lstat(here)
                except PermissionError:
                    self.unreadable.append(below)
                    continue
                if stat.S_ISLNK(child.st_mode):
                    led = self._link(below, here, child, root, inner)
                    if led is None:
                        continue
                    here, child = led
                    inner, tree = "", here
                if not stat.S_ISDIR(child.st_mode):
                    self.file_or_special(below, here, child)
                    continue
                key = (child.st_dev, child.st_ino)
                if key in above:
                    self.nowhere.append(f"{below} (a folder above itself)")
                    continue
                self.entries.append(_entry(below, Kind.FOLDER, here, child))
                todo.append((below, here, tree, inner, above | {key}))

    def _link(
        self, path: str, here: str, status: os.stat_result, root: str, within: str
    ) -> tuple[str, os.stat_result] | None:
        """Keeps or refuses a link; else what it leads to, for that to be copied."""
        target = os.readlink(here)
        stays = _stays(root, os.path.dirname(within), target)
        for top in self.seen_as:
            if target.startswith(f"{top}/") or target == top:
                target = os.path.relpath(target, os.path.dirname(f"{top}/{path}"))
                stays = _stays(root, os.path.dirname(path), target)
                break
        if not stays and self.links is Links.FOLLOW:
            real = os.path.realpath(here)
            try:
                return real, os.stat(real)
            except OSError:
                self.nowhere.append(f"{path} -> {target}")
                return None
        if not stays and self.links is Links.REFUSE:
            self.refused.append(f"{path} -> {target}")
            return None
        if not stays:
            self.outward.append(path)
        self.entries.append(replace(_entry(path, Kind.LINK, here, status), target=target))
        return None

    def file_or_special(self, path: str, source: str, status: os.stat_result) -> None:
        if not stat.S_ISREG(status.st_mode):
            what = _SPECIAL.get(stat.S_IFMT(status.st_mode), "not a file, folder or link")
            self.special.append((path or source, what))
            return
        if not os.access(source, os.R_OK):
            self.unreadable.append(path or source)
            return
        data = status.st_size
        if status.st_blocks * 512 < data:  # it has holes
            with open(source, "rb", buffering=0) as file:
                data = sum(stop - begin for begin, stop in extents(file.fileno(), 0, data))
        entry = _entry(path, Kind.FILE, source, status)
        self.entries.append(replace(entry, size=status.st_size, data=data))

    def problems(self, leave_special: bool) -> Iterator[Finding]:
        if self.refused:
            listed = _listed(self.refused, "link leads", "links lead")
            yield error("stage-link-out-of-source", **listed)
        if self.nowhere:
            yield error("stage-link-broken", **_listed(self.nowhere, "link", "links"))
        if self.special and not leave_special:
            special = [f"{path}: {what}" for path, what in self.special]
            yield error("stage-special-source", **_listed(special, "thing", "things"))
        if self.unreadable:
            yield error("stage-source-unreadable", **_listed(self.unreadable, "path", "paths"))


def _entry(path: str, kind: Kind, source: str, status: os.stat_result) -> Entry:
    mode = 0 if kind is Kind.LINK else status.st_mode & _MODE
    stamp = (status.st_dev, status.st_ino, status.st_ctime_ns)
    return Entry(path, kind, source, mode, status.st_mtime_ns, stamp=stamp)


def _linked(entries: list[Entry]) -> tuple[Entry, ...]:
    """Marks files that are hard links to an earlier one."""
    first: dict[tuple[int, int], str] = {}
    for n, entry in enumerate(entries):
        if entry.kind is Kind.FILE:
            earlier = first.setdefault(entry.stamp[:2], entry.path)
            if earlier != entry.path:
                entries[n] = replace(entry, same_as=earlier)
    return tuple(entries)


def _stays(root: str, folder: str, target: str, hops: list[int] | None = None) -> bool:
    """Whether a link in ``folder`` leads to a place below ``root``, as a kernel would follow it.

    A link on the way that leads out is judged by itself: the copy has its target in its place.
    """
    if target.startswith("/"):
        return False
    hops = [_HOPS] if hops is None else hops  # for all of the way, or a loop doubles at each turn
    parts = folder.split("/") if folder else []
    todo = target.split("/")[::-1]
    while todo:
        part = todo.pop()
        if part in ("", "."):
            continue
        if part == "..":
            if not parts:
                return False
            parts.pop()
            continue
        try:
            onward = os.readlink("/".join([root, *parts, part]))
        except OSError:  # no link, or nothing is there
            parts.append(part)
            continue
        hops[0] -= 1
        if hops[0] <= 0:
            return True  # it leads nowhere, and so will its copy
        if not _stays(root, "/".join(parts), onward, hops):
            return ".." not in todo
        todo += onward.split("/")[::-1]
    return True


def extents(handle: int, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Where a file has data between two offsets; all of it if the file system cannot report it."""
    here = start
    while here < end:
        try:
            begin = os.lseek(handle, here, os.SEEK_DATA)
        except OSError as exc:
            if exc.errno == errno.ENXIO:  # a hole up to the file's end
                return
            yield here, end
            return
        if begin >= end:
            return
        stop = min(os.lseek(handle, begin, os.SEEK_HOLE), end)
        yield begin, stop
        here = stop


def _listed(items: list[str], singular: str, many: str) -> dict[str, str]:
    count = f"1 {singular}" if len(items) == 1 else f"{len(items)} {many}"
    return {"count": count, "few": _few(items)}


def _few(items: list[str]) -> str:
    more = len(items) - _SHOWN
    shown = ", ".join(printable(item) for item in items[:_SHOWN])
    return shown + (f" and {more} more" if more > 0 else "")


def printable(path: str) -> str:
    """A path for messages: bytes that are not UTF-8 as ``\\xNN``."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")
