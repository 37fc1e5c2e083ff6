"""Lays one squashfs over another as they are: no file is decompressed or compressed again.

A squashfs is its files' compressed blocks, then tables: inodes, directories, fragments (shared
blocks of small files), owners. :func:`lay` writes the blocks of both, one after the other, and one
set of tables made of theirs. An image of 400 MB takes a second this way, a copy's time; by tar
stream it takes ten, and both cores. The tables are written uncompressed, which costs an image half
a percent at the most, so the result does not depend on a compressor at all.

Both must be as ``squash.py`` makes them: version 4.0, the same compressor and block size, without
extended attributes.

Source: Linux, Documentation/filesystems/squashfs.rst and fs/squashfs/squashfs_fs.h.
"""

from __future__ import annotations

import hashlib
import os
import struct
import subprocess
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from fairlead_build.base.digest import Advance, unseen
from fairlead_build.base.proc import clean_environment
from fairlead_build.cache.store import Cache
from fairlead_build.squashfs.squash import CHUNK
from fairlead_build.tools import tool_tree

_SUPER = struct.Struct("<IIIIIHHHHHHQQQQQQQQ")
_MAGIC, _NONE = 0x73717368, (1 << 64) - 1
_ZLIB, _ZSTD = 1, 6
# Flags: inodes are not compressed; an export table; options of the compressor behind the header.
_PLAIN_INODES, _NO_FRAGMENTS, _EXPORTABLE, _OPTIONS = 0x1, 0x10, 0x80, 0x400
# A metadata block holds so much; before it stand its size and this bit when it is not compressed.
_BLOCK, _PLAIN = 8192, 0x8000
_PADDING = 4096  # to whole pages, for loop devices

_FOLDER, _FILE, _LINK, _BLOCK_DEVICE, _CHAR_DEVICE, _PIPE, _SOCKET = range(1, 8)
_EXTENDED = 7  # is added to a kind whose inode has more fields
# What follows in an inode of a kind; the last field of an extended one says where its attributes are.
_FIELDS = {
    _FOLDER: "<IIHHI", _FOLDER + _EXTENDED: "<IIIIHHI", _FILE: "<IIII",
    _FILE + _EXTENDED: "<QQQIIII", _LINK: "<II", _BLOCK_DEVICE: "<II", _CHAR_DEVICE: "<II",
    _PIPE: "<I", _SOCKET: "<I",
}  # fmt: skip
_COMMON = struct.Struct("<HHHHII")  # kind, mode, owner, group, time, number
_NO_ATTRIBUTES = 0xFFFFFFFF
_NO_FRAGMENT = 0xFFFFFFFF
_FRAGMENT = struct.Struct("<QII")
_RUN, _NAME = struct.Struct("<III"), struct.Struct("<HhHH")


class NotLaid(ValueError):
    """One of them is damaged, or made otherwise than by ``squash.py``; the text says why."""


@dataclass(eq=False, slots=True)
class _Inode:
    """What has attributes; two names of one are hard links.

    Attributes:
        target: of a symbolic link.
        device: the number of a device.
    """

    kind: int
    mode: int
    owner: int
    group: int
    time: int
    target: bytes = b""
    device: int = 0
    # A file's blocks: where they begin, their sizes as they stand in the table, its last part in a
    # fragment, and how many of its bytes are holes.
    start: int = 0
    size: int = 0
    blocks: bytes = b""
    fragment: int = _NO_FRAGMENT
    offset: int = 0
    holes: int = 0
    names: dict[bytes, _Inode] = field(default_factory=dict)
    # Given while tables are written: its own place, and that of a folder's names and their bytes.
    number: int = 0
    links: int = 0
    place: tuple[int, int] | None = None
    listed: tuple[int, int] = (0, 0)
    listed_bytes: int = 0


def lay(
    above: Path,
    below: Path,
    target: Path,
    cache: Cache | None = None,
    advance: Advance = unseen,
) -> tuple[str, str]:
    """Writes ``target``: what is in ``below``, and over it what is in ``above``.

    Folders of ``below`` keep their attributes; anything else gives way to what has its name.

    Args:
        cache: where the tool tree is; the user's own unless given.
    Returns:
        The sha256 of ``below``, as it was read, and of ``target``.
    Raises:
        NotLaid: one of them is not such a squashfs.
        OSError: one cannot be read, or the target not written.
    """
    lower, upper = _read(below, cache), _read(above, cache)
    if (lower.compressor, lower.block_size) != (upper.compressor, upper.block_size):
        raise NotLaid("the two have other compressors or block sizes")
    end = lower.data[1]
    by = end - upper.data[0]
    for inode in _inodes(upper.root):
        if inode.kind == _FILE:
            inode.start += by
            if inode.fragment != _NO_FRAGMENT:
                inode.fragment += len(lower.fragments)
    fragments = [*lower.fragments, *((start + by, size) for start, size in upper.fragments)]
    _merge(lower.root, upper.root)
    end += upper.data[1] - upper.data[0]
    tables, header = _tables(lower, fragments, end)
    below_digest, written = hashlib.sha256(), hashlib.sha256()

    def put(data: bytes) -> None:
        written.update(data)
        out.write(data)
        advance(len(data))

    with target.open("wb") as out:
        with below.open("rb") as source:
            below_digest.update(source.read(_SUPER.size))
            put(header)
            for chunk in _chunks(source, lower.data[1] - _SUPER.size):
                below_digest.update(chunk)
                put(chunk)
            while chunk := source.read(CHUNK):
                below_digest.update(chunk)
        with above.open("rb") as source:
            source.seek(upper.data[0])
            for chunk in _chunks(source, upper.data[1] - upper.data[0]):
                put(chunk)
        put(tables)
    return below_digest.hexdigest(), written.hexdigest()


def _chunks(source: IO[bytes], size: int) -> Iterator[bytes]:
    while size:
        chunk = source.read(min(size, CHUNK))
        if not chunk:
            raise NotLaid(f"{source.name} ends too early")
        size -= len(chunk)
        yield chunk


def _merge(lower: _Inode, upper: _Inode) -> None:
    for name, inode in upper.names.items():
        existing = lower.names.get(name)
        if existing is not None and existing.kind == inode.kind == _FOLDER:
            _merge(existing, inode)
        else:
            lower.names[name] = inode


def _inodes(root: _Inode) -> Iterator[_Inode]:
    """Every inode below ``root``, once."""
    visited = set()
    waiting = [root]
    while waiting:
        inode = waiting.pop()
        if id(inode) not in visited:
            visited.add(id(inode))
            yield inode
            waiting += inode.names.values()


# --- reading -----------------------------------------------------------------------------------


def _read(path: Path, cache: Cache | None) -> _Squashfs:
    try:
        return _Squashfs(path, cache)
    except (struct.error, IndexError, KeyError, zlib.error, subprocess.CalledProcessError) as exc:
        raise NotLaid(f"{path.name} is damaged: {exc}") from None


@dataclass
class _Table:
    """Metadata, decompressed; a place in it is (where its block begins, offset in that)."""

    data: bytes
    begins: dict[int, int]  # where each block begins in the data


class _Squashfs:
    """A squashfs that was read.

    Attributes:
        data: where the blocks of files begin and end in it.
    """

    def __init__(self, path: Path, cache: Cache | None):
        self.path, self.cache = path, cache
        with path.open("rb") as self.file:
            self.bytes = os.fstat(self.file.fileno()).st_size
            (
                magic, _, self.time, self.block_size, fragments, self.compressor, self.block_log,
                self.flags, owners, major, minor, root, _, owner_table, attributes, inodes, folders,
                fragment_table, export,
            ) = _SUPER.unpack(self._at(0, _SUPER.size))  # fmt: skip
            if (magic, major, minor) != (_MAGIC, 4, 0):
                raise NotLaid(f"{path.name} is not a squashfs of version 4.0")
            if attributes != _NONE or self.compressor not in (_ZLIB, _ZSTD):
                raise NotLaid(f"{path.name} has extended attributes, or another compressor")
            options = 0
            if self.flags & _OPTIONS:
                (size,) = struct.unpack("<H", self._at(_SUPER.size, 2))
                options = 2 + (size & ~_PLAIN)
            self.data = (_SUPER.size + options, inodes)
            # A table's blocks stand before the list of where they are; the next table's follow.
            after = [t for t in (fragment_table, export, owner_table) if t != _NONE]
            first = {t: struct.unpack("<Q", self._at(t, 8))[0] for t in after}
            end = min(first[t] for t in after if t != fragment_table or fragments)
            self.inodes = self._table(inodes, folders)
            self.folders = self._table(folders, end)
            raw = self._listed(fragment_table, fragments, _FRAGMENT.size) if fragments else b""
            self.fragments = [(start, size) for start, size, _ in _FRAGMENT.iter_unpack(raw)]
            self.owners = struct.unpack(f"<{owners}I", self._listed(owner_table, owners, 4))
        self.known: dict[int, _Inode] = {}
        self.waiting: list[tuple[_Inode, int, int, int]] = []
        self.root = self._inode(root >> 16, root & 0xFFFF)
        while self.waiting:
            self._fill(*self.waiting.pop())

    def _at(self, place: int, size: int) -> bytes:
        if place + size > self.bytes:
            raise NotLaid(f"{self.path.name} ends too early")
        self.file.seek(place)
        return self.file.read(size)

    def _listed(self, table: int, count: int, size: int) -> bytes:
        """A table with a list of its blocks at ``table``: ``count`` items of ``size`` bytes."""
        blocks = -(-count * size // _BLOCK)
        (start,) = struct.unpack("<Q", self._at(table, 8))
        data = self._table(start, struct.unpack(f"<{blocks}Q", self._at(table, 8 * blocks))).data
        return data[: count * size]

    def _table(self, start: int, end: int | tuple[int, ...]) -> _Table:
        """The blocks from ``start`` to ``end``, or as many as ``end`` names."""
        place = start
        raw: list[tuple[int, int, bytes]] = []
        while place < end if isinstance(end, int) else len(raw) < len(end):
            (head,) = struct.unpack("<H", self._at(place, 2))
            size = head & ~_PLAIN
            raw.append((place - start, head & _PLAIN, self._at(place + 2, size)))
            place += 2 + size
        bodies = iter(self._decompressed([body for _, plain, body in raw if not plain]))
        data, begins = bytearray(), {}
        for at, plain, body in raw:
            begins[at] = len(data)
            data += body if plain else next(bodies)
        return _Table(bytes(data), begins)

    def _decompressed(self, blocks: list[bytes]) -> list[bytes]:
        if self.compressor == _ZLIB or not blocks:
            return [zlib.decompress(block) for block in blocks]
        # All but the last block of a table are full, so one stream of them can be cut again.
        program = [*tool_tree.command("zstd", self.cache), "-d", "-c", "-q"]
        packed, env = b"".join(blocks), clean_environment()
        done = subprocess.run(program, input=packed, capture_output=True, env=env, check=True)
        return [done.stdout[n * _BLOCK : (n + 1) * _BLOCK] for n in range(len(blocks))]

    def _inode(self, block: int, offset: int) -> _Inode:
        data, at = self.inodes.data, self.inodes.begins[block] + offset
        stored, mode, owner, group, time, number = _COMMON.unpack_from(data, at)
        kind = stored - _EXTENDED * (stored > _EXTENDED)
        if not _FOLDER <= kind <= _SOCKET or (kind == _FOLDER and number in self.known):
            raise NotLaid(f"{self.path.name} is damaged: inode {number} cannot be")
        if number in self.known:
            return self.known[number]
        at += _COMMON.size
        made = _Inode(kind, mode, self.owners[owner], self.owners[group], time)
        self.known[number] = made
        form = _FIELDS.get(stored, _FIELDS[kind])
        fields = struct.unpack_from(form, data, at)
        at += struct.calcsize(form)
        if stored in (_FOLDER + _EXTENDED, _FILE + _EXTENDED) and fields[-1] != _NO_ATTRIBUTES:
            raise NotLaid(f"{self.path.name} has extended attributes")
        match kind:
            case 1:  # folder
                if kind == stored:
                    start, _, size, within, _ = fields
                else:
                    _, size, start, _, _, within, _ = fields
                if size > 3:  # recorded so much too large, for `.` and `..`
                    self.waiting.append((made, start, within, size - 3))
            case 2:  # file
                self._file(made, fields, at)
            case 3:  # symbolic link
                made.target = data[at : at + fields[1]]
            case 4 | 5:  # devices
                made.device = fields[1]
        return made

    def _file(self, made: _Inode, fields: tuple[int, ...], at: int) -> None:
        """Takes in the fields of a file's inode, and its blocks, which are listed at ``at``."""
        if len(fields) == 4:
            made.start, made.fragment, made.offset, made.size = fields
        else:
            made.start, made.size, made.holes, _, made.fragment, made.offset, _ = fields
        whole, rest = divmod(made.size, self.block_size)
        count = whole + (rest > 0 and made.fragment == _NO_FRAGMENT)
        made.blocks = self.inodes.data[at : at + 4 * count]

    def _fill(self, folder: _Inode, start: int, within: int, size: int) -> None:
        data, at = self.folders.data, self.folders.begins[start] + within
        end = at + size
        while at < end:
            more, block, _ = _RUN.unpack_from(data, at)
            at += _RUN.size
            for _ in range(more + 1):
                offset, _, _, length = _NAME.unpack_from(data, at)
                at += _NAME.size
                folder.names[data[at : at + length + 1]] = self._inode(block, offset)
                at += length + 1


# --- writing -----------------------------------------------------------------------------------


class _Writer:
    """A table that grows; blocks are full but for the last, and not compressed."""

    def __init__(self) -> None:
        self.data = bytearray()

    @property
    def place(self) -> tuple[int, int]:
        """Where the next byte will stand: its block's place in the file, and the offset in that."""
        block, offset = divmod(len(self.data), _BLOCK)
        return block * (_BLOCK + 2), offset

    def blocks(self) -> list[bytes]:
        cut = (self.data[at : at + _BLOCK] for at in range(0, len(self.data), _BLOCK))
        return [struct.pack("<H", len(body) | _PLAIN) + body for body in cut]


def _tables(lower: _Squashfs, fragments: Sequence[tuple[int, int]], at: int) -> tuple[bytes, bytes]:
    """Everything behind the blocks of files, padding included, and the header.

    Args:
        at: where it will stand.
    """
    root = lower.root
    inodes, folders = _Writer(), _Writer()
    order = _number(root)
    owners = sorted({owner for each in _inodes(root) for owner in (each.owner, each.group)})
    known = {owner: index for index, owner in enumerate(owners)}
    # What is in a folder comes before it: a place is known once it is written.
    for folder in reversed(order):
        _write_folder(folder, known, inodes, folders)
    _write_inode(root, root.number + 1, known, inodes)
    out = bytearray()
    starts = []
    for table in (inodes, folders):
        starts.append(at + len(out))
        out += b"".join(table.blocks())
    listed = []
    packed = b"".join(_FRAGMENT.pack(start, size, 0) for start, size in fragments)
    for data in (packed, struct.pack(f"<{len(owners)}I", *owners)):
        writer = _Writer()
        writer.data += data
        places = []
        for body in writer.blocks():
            places.append(at + len(out))
            out += body
        listed.append(at + len(out) if places else _NONE)
        out += struct.pack(f"<{len(places)}Q", *places)
    used = at + len(out)
    assert root.place is not None
    block, offset = root.place
    flags = lower.flags & ~(_EXPORTABLE | _NO_FRAGMENTS) | _PLAIN_INODES
    header = _SUPER.pack(
        _MAGIC, root.number, lower.time, lower.block_size, len(fragments), lower.compressor,
        lower.block_log, flags, len(owners), 4, 0,
        block << 16 | offset, used, listed[1], _NONE, starts[0], starts[1], listed[0], _NONE,
    )  # fmt: skip
    return bytes(out) + bytes(-used % _PADDING), header


def _number(root: _Inode) -> list[_Inode]:
    """Numbers all inodes, the root last; returns the folders, each before those in it."""
    count = 0
    root.links = 2  # with its own `.`; a folder's `..` counts for the one above
    order = [root]
    for folder in order:
        for _, inode in sorted(folder.names.items()):
            if not inode.number:
                count += 1
                inode.number = count
            if inode.kind == _FOLDER:
                inode.links = 2
                folder.links += 1
                order.append(inode)
            else:
                inode.links += 1
    root.number = count + 1
    return order


def _write_folder(
    folder: _Inode, owners: dict[int, int], inodes: _Writer, folders: _Writer
) -> None:
    """Writes the inodes of all names in ``folder``, then the list of these names."""
    children = sorted(folder.names.items())
    for _, inode in children:
        if inode.place is None:
            _write_inode(inode, folder.number, owners, inodes)
    folder.listed, begun = folders.place, len(folders.data)
    head, run_length, block, base = begun, 0, 0, 0
    for name, inode in children:
        assert inode.place is not None
        delta = inode.number - base
        # Of one run are inodes of one block, not too far from the first.
        if run_length in (0, 256) or inode.place[0] != block or not -32768 <= delta < 32768:
            head, run_length, delta = len(folders.data), 0, 0
            block, base = inode.place[0], inode.number
            folders.data += bytes(_RUN.size)
        folders.data += _NAME.pack(inode.place[1], delta, inode.kind, len(name) - 1) + name
        run_length += 1
        _RUN.pack_into(folders.data, head, run_length - 1, block, base)
    folder.listed_bytes = len(folders.data) - begun


def _write_inode(inode: _Inode, parent: int, owners: dict[int, int], inodes: _Writer) -> None:
    kind, links = inode.kind, inode.links
    fields: tuple[int, ...] = (links,)  # of pipes and sockets
    match kind:
        case 1:  # folder
            (start, within), size = inode.listed, inode.listed_bytes + 3
            fields = (start, links, size, within, parent)
            if size >= 1 << 16:
                kind += _EXTENDED
                fields = (links, size, start, parent, 0, within, _NO_ATTRIBUTES)
        case 2:  # file
            start, size, tail = inode.start, inode.size, (inode.fragment, inode.offset)
            fields = (start, *tail, size)
            if links > 1 or inode.holes or max(start, size) >= 1 << 32:
                kind += _EXTENDED
                fields = (start, size, inode.holes, links, *tail, _NO_ATTRIBUTES)
        case 3:  # symbolic link
            fields = (links, len(inode.target))
        case 4 | 5:  # devices
            fields = (links, inode.device)
    inode.place = inodes.place
    inodes.data += _COMMON.pack(
        kind, inode.mode, owners[inode.owner], owners[inode.group], inode.time, inode.number
    )
    inodes.data += struct.pack(_FIELDS[kind], *fields) + inode.blocks + inode.target
