"""Reads SIF files: the header, the table of objects, and objects by their extent.

A SIF (Singularity Image Format, version 1) is a header, a table of descriptors, and the objects
they point to: for fairlead one squashfs and one JSON document. Nothing is mounted or executed to
read it. ``fairlead_build.formats.sif`` writes them, with the layout below.
"""

from __future__ import annotations

import hashlib
import struct
import uuid
from collections import namedtuple
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from fairlead.base import bounded_json
from fairlead.base.errors import FairleadError, fail, os_error_as

# Source: github.com/sylabs/sif, pkg/sif/sif.go and descriptor.go; checked against `apptainer sif`.
HEADER = struct.Struct("<32s10s3s3s16s8q")
_Header = namedtuple(
    "_Header",
    "launch magic version arch uuid created modified free total table_offset table_size data_offset data_size",
)
# datatype, used, id, group, link, offset, size, size with padding, created, modified, uid, gid,
# name, extra.
DESCRIPTOR = struct.Struct("<i?3I7q128s384s")
PARTITION_EXTRA = struct.Struct("<ii3s")  # file system, kind of partition, arch
MAGIC = b"SIF_MAGIC"
VERSION = b"01"
LAUNCH = b"#!/usr/bin/env run-singularity\n"
ARCHES = {"amd64": b"02", "arm64": b"04"}
DATA_PARTITION = 0x4004
DATA_GENERIC_JSON = 0x4006
FS_SQUASHFS = 1
PART_PRIMARY_SYSTEM = 2
GROUP_MASK = 0xF0000000
PAGE = 4096

_MOST_DESCRIPTORS = 4096
_MOST_JSON_BYTES = 64 << 20


@dataclass(frozen=True)
class SifObject:
    """One object of a SIF: ``size`` bytes from ``offset`` on."""

    id: int
    datatype: int
    offset: int
    size: int
    name: str
    filesystem: int = 0
    parttype: int = 0


@dataclass(frozen=True)
class Sif:
    """A SIF whose header and table are sound, and whose objects lie inside the file."""

    path: Path
    uuid: str
    arch: str
    created: int
    objects: tuple[SifObject, ...]

    @property
    def squashfs(self) -> SifObject:
        """The primary system partition.

        Raises:
            FairleadError: there is none, or it is not a squashfs.
        """
        for item in self.objects:
            if item.datatype == DATA_PARTITION and item.parttype == PART_PRIMARY_SYSTEM:
                if item.filesystem == FS_SQUASHFS:
                    return item
                known = FS_SQUASHFS
                raise fail("sif-partition-type", path=self.path, item=item, fs_squashfs=known)
        raise fail("sif-partition-missing", path=self.path, objects_count=len(self.objects))

    def document(self, name: str) -> dict[str, Any] | None:
        """The generic JSON object called ``name``; None when the SIF has none.

        Raises:
            FairleadError: it is not a JSON object.
        """
        raw = self.document_bytes(name)
        if raw is None:
            return None
        try:
            value = bounded_json.loads(raw)
        except (ValueError, RecursionError) as exc:
            raise fail("sif-damaged-json", path=self.path, name=name, reason=exc) from None
        if not isinstance(value, dict):
            raise fail("sif-damaged-json-type", path=self.path, name=name)
        return value

    def document_bytes(self, name: str) -> bytes | None:
        """As :meth:`document`, the bytes as they stand in the file."""
        for item in self.objects:
            if item.datatype == DATA_GENERIC_JSON and item.name == name:
                if item.size > _MOST_JSON_BYTES:
                    raise fail("sif-damaged-json-size", path=self.path, item=item)
                return b"".join(blocks(self.path, item.offset, item.size))
        return None


def identity(squashfs_sha256: str, document: bytes) -> uuid.UUID:
    """The identifier of an image that fairlead makes: a hash of its file system's sha256 and its
    record, so that a changed digit in the record is found like one in the file system."""
    return uuid.UUID(bytes=hashlib.sha256(squashfs_sha256.encode() + document).digest()[:16])


def read_sif(path: Path) -> Sif:
    """Reads and checks the header and the table of ``path``.

    Raises:
        FairleadError: unreadable, not a SIF, cut short, or inconsistent.
    """
    with os_error_as("sif-unreadable", path=path), path.open("rb") as stream:
        real = path.stat().st_size
        header = _header(path, stream.read(HEADER.size), real)
        size = header.total * DESCRIPTOR.size
        stream.seek(header.table_offset)
        table = stream.read(size)
    least = max(header.table_offset + size, header.data_offset + header.data_size)
    if len(table) < size:
        raise _truncated(path, real, least)
    objects = tuple(_objects(path, table))
    least = max([least, *(item.offset + item.size for item in objects)])
    if least > real:
        raise _truncated(path, real, least)
    arch = {code: name for name, code in ARCHES.items()}.get(header.arch.rstrip(b"\0"), "unknown")
    return Sif(path, str(uuid.UUID(bytes=header.uuid)), arch, header.created, objects)


def is_sif(path: Path) -> bool:
    """Whether ``path`` begins as a SIF does; says nothing about the rest of it."""
    with path.open("rb") as stream:
        head = stream.read(HEADER.size)
    return head[32 : 32 + len(MAGIC)] == MAGIC


def copy_object(path: Path, item: SifObject, out: IO[bytes]) -> None:
    """Writes the bytes of one object of ``path`` to ``out``.

    Raises:
        FairleadError: the file has become shorter than its table says.
        OSError: as reading and writing do.
    """
    left = item.size
    for block in blocks(path, item.offset, item.size):
        out.write(block)
        left -= len(block)
    if left:
        raise _truncated(path, path.stat().st_size, item.offset + item.size)


def blocks(path: Path, offset: int, size: int) -> Iterator[bytes]:
    """The ``size`` bytes from ``offset`` on, in blocks; fewer where the file ends.

    Raises:
        OSError: as reading does.
    """
    with path.open("rb") as stream:
        stream.seek(offset)
        while size and (block := stream.read(min(size, 4 << 20))):
            size -= len(block)
            yield block


def _header(path: Path, head: bytes, real: int) -> _Header:
    if len(head) < HEADER.size:
        if head[32 : 32 + len(MAGIC)] == MAGIC:
            raise _truncated(path, real, HEADER.size)
        raise fail("sif-magic-too-short", path=path, real=real, header_size=HEADER.size)
    header = _Header._make(HEADER.unpack(head))
    if header.magic.rstrip(b"\0") != MAGIC:
        raise fail("sif-magic-wrong", path=path, magic=header.magic, magic_2=MAGIC)
    if header.version.rstrip(b"\0") != VERSION:
        raise fail("sif-magic-version", path=path, version=header.version, version_2=VERSION)
    if not 0 < header.total <= _MOST_DESCRIPTORS:
        raise fail("sif-damaged-object-count", path=path, total=header.total)
    offsets = header.table_offset, header.data_offset
    if min(*offsets, header.data_size) < HEADER.size - 1 or max(offsets) > 1 << 62:
        raise fail("sif-damaged-header-offset", path=path)
    return header


def _objects(path: Path, table: bytes) -> Iterator[SifObject]:
    for fields in DESCRIPTOR.iter_unpack(table):
        datatype, used, ident, _, _, offset, size, *_, name, extra = fields
        if not used:
            continue
        if offset < HEADER.size or size < 0 or offset + size > 1 << 62:
            raise fail("sif-damaged-object-range", path=path, ident=ident, size=size, offset=offset)
        filesystem = parttype = 0
        if datatype == DATA_PARTITION:
            filesystem, parttype, _ = PARTITION_EXTRA.unpack_from(extra)
        text = name.split(b"\0", 1)[0].decode("utf-8", "replace")
        yield SifObject(ident, datatype, offset, size, text, filesystem, parttype)


def _truncated(path: Path, real: int, least: int) -> FairleadError:
    return fail("sif-truncated", path=path, real=real, least=least)
