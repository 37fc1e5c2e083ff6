"""What a stack of layers makes, as a tree of names in memory; nothing is unpacked.

:class:`MergedTree` applies the members of layer tars one after another, as an engine does when it
unpacks them: whiteouts hide what lower layers brought, and a path through a symlink leads where
the symlink leads *inside the image*. Since paths are resolved here and not by a kernel, nothing can
lead out of it. Source: the OCI image format specification 1.1, layer.md.
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from tarfile import TarInfo

from fairlead.image.budget import MOST_DEPTH, MOST_ENTRIES

MOST_HOPS = 255  # as the kernel's ELOOP
_MOST_NAME_BYTES = 255
_MOST_TARGET_BYTES = 4095
_WHITEOUT = ".wh."
_OPAQUE = ".wh..wh..opq"
_BOOKKEEPING = ".wh..wh."  # of aufs: files that were unlinked, or have several names
_FILE_ABOVE = "a file stands where its folder should be"


class HostileMember(Exception):
    """A member that no image has for a good reason; ``path`` as in the layer."""

    def __init__(self, path: str, why: str):
        self.path, self.why = path, why
        super().__init__(f"{path}: {why}")


class _Nowhere(HostileMember):
    """A path that does not exist; hostile only where a member must get there."""


@dataclass(eq=False)
class Inode:
    """What a name stands for; hard links share one.

    Attributes:
        kind: ``dir``, ``file``, ``link`` or ``fifo``.
        layer, number: the member that brought it; ``number`` is -1 for a folder that no layer
            describes.
        at: where its content begins in that layer's tar.
    """

    kind: str
    mode: int
    mtime: int
    layer: int
    number: int
    at: int = 0
    size: int = 0
    target: str = ""


@dataclass(eq=False)
class Node:
    """One name. ``touched`` is the newest layer that has it or something below it."""

    inode: Inode
    touched: int
    children: dict[str, Node] = field(default_factory=dict)


class MergedTree:
    """Applies members of layers, and yields the names that are left."""

    def __init__(self) -> None:
        self.root = Node(Inode("dir", 0o755, 0, -1, -1), -1)
        self.entries = 0
        self._left_out: dict[tuple[str, ...], Inode] = {}  # files that hard links may lead to

    def apply(self, layer: int, number: int, info: TarInfo) -> None:
        """Applies member ``number`` of ``layer``; lower layers have been applied before.

        Args:
            info: its ``name`` is relative to the root, ``.`` for the root itself.
        Raises:
            HostileMember: it leads out of the image, is a device, or of a kind that layers lack.
        """
        parts = _parts(info.name, info.name)
        if not parts:
            if not info.isdir():
                raise HostileMember(info.name, "the root of an image is a folder")
            self.root.inode, self.root.touched = _inode(layer, number, info), layer
            return
        in_dev = parts[0] == "dev" and len(parts) > 1  # engines bring their own
        if in_dev or any(part.startswith(_BOOKKEEPING) and part != _OPAQUE for part in parts):
            if info.isreg():
                self._counted(info)
                self._left_out[tuple(parts)] = _inode(layer, number, info)
            return
        *above, name = parts
        if name.startswith(_WHITEOUT):
            self._whiteout(layer, above, name, info)
            return
        self._counted(info)
        inode = self._linked(info) if info.islnk() else _inode(layer, number, info)
        parent = self._resolve(above, info.name, layer)
        if parent.inode.kind != "dir":
            raise HostileMember(info.name, _FILE_ABOVE)
        before = parent.children.get(name)
        if before is not None and before.inode.kind == "dir" and inode.kind == "dir":
            before.inode, before.touched = inode, layer
        else:
            parent.children[name] = Node(inode, layer)

    def walk(self) -> Iterator[tuple[str, Inode]]:
        """Every name with what it stands for, folders before what is in them, sorted."""
        yield ".", self.root.inode
        stack = [("", self.root)]
        while stack:
            path, node = stack.pop()
            if path:
                yield path, node.inode
            for name in sorted(node.children, reverse=True):
                stack.append((f"{path}/{name}" if path else name, node.children[name]))

    def find(self, path: str) -> Inode | None:
        """What ``path`` stands for, symlinks followed inside the image; None for nothing."""
        try:
            return self._resolve(_parts(path, path), path).inode
        except HostileMember:
            return None

    def remove(self, path: str) -> None:
        """Takes ``path`` away, a folder with all that is in it; symlinks above it are not followed.

        A file that stands where its folder should be goes too.
        """
        node = self.root
        *above, name = path.split("/")
        for part in above:
            child = node.children.get(part)
            if child is None:
                return
            if child.inode.kind != "dir":
                del node.children[part]
                return
            node = child
        node.children.pop(name, None)

    # --- inside ---------------------------------------------------------------------------------

    def _counted(self, info: TarInfo) -> None:
        self.entries += 1
        if self.entries > MOST_ENTRIES:
            raise HostileMember(info.name, f"the image has more than {MOST_ENTRIES} members")

    def _whiteout(self, layer: int, above: list[str], name: str, info: TarInfo) -> None:
        try:
            parent = self._resolve(above, info.name)
        except _Nowhere:
            return  # there is nothing to hide
        if name == _OPAQUE:
            for child in list(parent.children):
                _hide(parent, child, layer)
        else:
            _hide(parent, name.removeprefix(_WHITEOUT), layer)

    def _linked(self, info: TarInfo) -> Inode:
        parts = _parts(info.linkname.lstrip("/") or ".", info.name)
        if (left_out := self._left_out.get(tuple(parts))) is not None:
            return left_out
        *above, name = parts or [""]
        target = None
        with suppress(_Nowhere):
            target = self._resolve(above, info.name).children.get(name)
        if target is None:
            why = f"it is a hard link to {info.linkname[:200]!r}, which is not there"
            raise HostileMember(info.name, why)
        if target.inode.kind == "dir":
            raise HostileMember(info.name, "it is a hard link to a folder")
        return target.inode

    def _resolve(self, parts: list[str], name: str, make: int | None = None) -> Node:
        """The node at ``parts``, every symlink followed inside the root.

        Args:
            name: of the member on whose behalf it is looked for.
            make: the layer for which missing folders are made; None: do not.
        Raises:
            _Nowhere: there is none; with ``make``, it cannot be made.
            HostileMember: it lies too deep.
        """
        trail = [self.root]
        left = list(reversed(parts))
        hops = 0
        while left:
            part = left.pop()
            if part == "..":
                trail = trail[:-1] or trail
            if part in ("", ".", ".."):
                continue
            child = _child(trail[-1], part, name, make)
            if child.inode.kind == "link":
                hops += 1
                if hops > MOST_HOPS:
                    raise _Nowhere(name, "the symlinks above it lead in a circle")
                if child.inode.target.startswith("/"):
                    del trail[1:]
                left += reversed(child.inode.target.split("/"))
                continue
            trail.append(child)
            if len(trail) > MOST_DEPTH:
                raise HostileMember(name, f"it lies more than {MOST_DEPTH} folders deep")
        if make is not None:
            trail[-1].touched = max(trail[-1].touched, make)
        return trail[-1]


def _child(parent: Node, part: str, name: str, make: int | None) -> Node:
    """What ``parent`` has under the name ``part``, made on behalf of layer ``make`` if need be."""
    if make is not None:
        parent.touched = max(parent.touched, make)
    if parent.inode.kind != "dir":
        raise _Nowhere(name, _FILE_ABOVE)
    child = parent.children.get(part)
    if child is not None:
        return child
    if make is None:
        raise _Nowhere(name, "it does not exist")
    if len(part.encode("utf-8", "surrogateescape")) > _MOST_NAME_BYTES:
        raise HostileMember(name, "a symlink above it leads to a name that is too long")
    if part.startswith(_WHITEOUT):
        raise HostileMember(name, f"names in an image do not begin with {_WHITEOUT}")
    child = Node(Inode("dir", 0o755, 0, make, -1), make)
    parent.children[part] = child
    return child


def _hide(parent: Node, name: str, layer: int) -> None:
    """Takes away what lower layers brought at ``name``; what ``layer`` brought stays."""
    node = parent.children.get(name)
    if node is None:
        return
    if node.touched < layer:
        del parent.children[name]
        return
    stack = [node]
    while stack:
        folder = stack.pop()
        for key, child in list(folder.children.items()):
            if child.touched < layer:
                del folder.children[key]
            else:
                stack.append(child)


def _parts(path: str, shown: str) -> list[str]:
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise HostileMember(shown, "it leads out of the image")
    if len(parts) > MOST_DEPTH:
        raise HostileMember(shown, f"it lies more than {MOST_DEPTH} folders deep")
    for part in parts:
        if len(part.encode("utf-8", "surrogateescape")) > _MOST_NAME_BYTES or "\0" in part:
            raise HostileMember(shown, "no file system can hold its name")
    return parts


def _time(info: TarInfo) -> int:
    # What a squashfs can hold. PAX times may be fractions, and even "nan" or "inf".
    try:
        return min(max(int(info.mtime), 0), (1 << 32) - 1)
    except (ValueError, OverflowError):
        return 0


def _inode(layer: int, number: int, info: TarInfo) -> Inode:
    mode, mtime = info.mode & 0o7777, _time(info)
    if info.sparse is not None or info.type == tarfile.GNUTYPE_SPARSE:
        raise HostileMember(info.name, "it is a sparse file, which layers may not have")
    if info.isdir():
        return Inode("dir", mode, mtime, layer, number)
    if info.issym():
        target = info.linkname
        size = len(target.encode("utf-8", "surrogateescape"))
        if "\0" in target or not 0 < size <= _MOST_TARGET_BYTES:
            raise HostileMember(info.name, "no file system can hold what it links to")
        return Inode("link", 0o777, mtime, layer, number, target=target)
    if info.isfifo():
        return Inode("fifo", mode, mtime, layer, number)
    if info.isreg():
        return Inode("file", mode, mtime, layer, number, info.offset_data, info.size)
    if info.ischr() or info.isblk():
        raise HostileMember(info.name, "it is a device node outside of /dev")
    raise HostileMember(info.name, f"its kind is {info.type!r}, which layers may not have")
