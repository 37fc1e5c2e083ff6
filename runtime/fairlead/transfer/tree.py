"""What to copy: a walk through a tree that reads no file.

Rules. A link that stays within the tree is kept as it is. An absolute link into the tree becomes a
relative one, since the copy lies elsewhere. What leads out is refused, followed or kept, as is asked.
Of hard links within the tree the first is copied. Sockets, pipes and devices have no content that could
be copied. Not kept: owners, access lists and extended attributes, set-user-id bits.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from dataclasses import replace

from fairlead.base.errors import ExitCode, FairleadError, Finding, error
from fairlead.transfer.model import Entry, Kind, Links, Tree

_MODE = 0o1777  # a copy belongs to the copier: set-user-id would mean another user
_SHOWN = 5  # of many mistakes of one kind, as many are named
_HOPS = 100  # links on one way; a kernel follows 40
_SPECIAL = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFBLK: "a device",
    stat.S_IFCHR: "a device",
}


def scan(top: str, links: Links, *, seen_as: str = "", leave_special: bool = False) -> Tree:
    """Looks through what is at ``top``.

    Args:
        seen_as: the path by which its links call it; ``top`` itself otherwise.
        leave_special: leave out what cannot be copied, instead of refusing all.
    Raises:
        FairleadError: exit code 121; links lead out, or something is not a file, folder or link,
            or may not be read. Exit code 2; there is nothing.
    """
    real = os.path.realpath(top)
    walk = _Walk((seen_as,) if seen_as else (os.path.abspath(top), real), links)
    try:
        found = os.stat(real)
        if stat.S_ISDIR(found.st_mode):
            walk.folders(real, found)
        else:
            walk.file_or_special("", real, found)
    except FileNotFoundError as exc:
        where = exc.filename or top
        if where == real:
            raise FairleadError(
                error("stage-source-missing-on-node", top=top),
                ExitCode.USAGE,
            ) from None
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
    return FairleadError(
        error("stage-changed", top=top, few=_few(paths)),
        ExitCode.LAUNCH_FAILED,
    )


def differences(before: Tree, after: Tree) -> list[str]:
    """Paths at which two looks at one tree differ."""
    # What is a hole may change as a file system writes out what it was given long ago.
    one = {entry.path: replace(entry, data=0) for entry in before.entries}
    two = {entry.path: replace(entry, data=0) for entry in after.entries}
    return sorted(path for path in one.keys() | two.keys() if one.get(path) != two.get(path))


class _Walk:
    def __init__(self, seen_as: tuple[str, ...], links: Links):
        self.seen_as, self.links = seen_as, links
        self.entries: list[Entry] = []
        self.outward: list[str] = []
        self.refused: list[str] = []
        self.nowhere: list[str] = []
        self.special: list[tuple[str, str]] = []
        self.unreadable: list[str] = []

    def folders(self, top: str, found: os.stat_result) -> None:
        # (path below the copy's top, source, root of the tree that its links are judged in, path below
        # that, folders above): a stack, since trees may be deeper than Python calls.
        start = ("", top, top, "", frozenset({(found.st_dev, found.st_ino)}))
        self.entries.append(_entry("", Kind.FOLDER, top, found))
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
        self, path: str, here: str, found: os.stat_result, root: str, within: str
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
        self.entries.append(replace(_entry(path, Kind.LINK, here, found), target=target))
        return None

    def file_or_special(self, path: str, source: str, found: os.stat_result) -> None:
        if not stat.S_ISREG(found.st_mode):
            what = _SPECIAL.get(stat.S_IFMT(found.st_mode), "not a file, folder or link")
            self.special.append((path or source, what))
            return
        if not os.access(source, os.R_OK):
            self.unreadable.append(path or source)
            return
        made = _entry(path, Kind.FILE, source, found)
        holes = found.st_blocks * 512 < found.st_size
        data = _data(source, found.st_size) if holes else found.st_size
        self.entries.append(replace(made, size=found.st_size, data=data))

    def problems(self, leave_special: bool) -> Iterator[Finding]:
        if self.refused:
            yield error(
                "stage-link-out-of-source",
                count=_count(self.refused, "link leads", "links lead"),
                few=_few(self.refused),
            )
        if self.nowhere:
            yield error(
                "stage-link-broken",
                count=_count(self.nowhere, "link", "links"),
                few=_few(self.nowhere),
            )
        if self.special and not leave_special:
            yield error(
                "stage-special-source",
                count=_count(self.special, "thing", "things"),
                few=_few([f"{path}: {what}" for path, what in self.special]),
            )
        if self.unreadable:
            yield error(
                "stage-source-unreadable",
                count=_count(self.unreadable, "path", "paths"),
                few=_few(self.unreadable),
            )


def _entry(path: str, kind: Kind, source: str, found: os.stat_result) -> Entry:
    return Entry(
        path, kind, source, stat.S_IMODE(found.st_mode) & _MODE, found.st_mtime_ns,
        stamp=(found.st_dev, found.st_ino, found.st_ctime_ns),
    )  # fmt: skip


def _linked(entries: list[Entry]) -> tuple[Entry, ...]:
    """Which files are hard links to one before them."""
    first: dict[tuple[int, int], str] = {}
    out = []
    for entry in entries:
        if entry.kind is Kind.FILE:
            earlier = first.setdefault(entry.stamp[:2], entry.path)
            if earlier != entry.path:
                entry = replace(entry, same_as=earlier)
        out.append(entry)
    return tuple(out)


def _stays(root: str, folder: str, target: str, hops: list[int] | None = None) -> bool:
    """Whether a link in ``folder`` leads to a place below ``root``, as a kernel would follow it.

    A link on its way that leads out is judged by itself: what it is followed to stands in its place.
    """
    if target.startswith("/"):
        return False
    hops = (
        hops if hops is not None else [_HOPS]
    )  # for all of the way, or a circle doubles at each turn
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


def _data(source: str, size: int) -> int:
    handle = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return sum(stop - begin for begin, stop in extents(handle, 0, size))
    finally:
        os.close(handle)


def _count(items: list[str] | list[tuple[str, str]], one: str, many: str) -> str:
    return f"1 {one}" if len(items) == 1 else f"{len(items)} {many}"


def _few(items: list[str]) -> str:
    more = len(items) - _SHOWN
    shown = ", ".join(printable(item) for item in items[:_SHOWN])
    return shown + (f" and {more} more" if more > 0 else "")


def printable(path: str) -> str:
    """A path for people: bytes that are no text as ``\\xNN``."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")
