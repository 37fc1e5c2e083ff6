"""Writes a SIF around a squashfs: same input, same bytes.

The layout and the reader are in ``fairlead.image.sif``. Where the tools put a random identifier and the
time of day, this writer puts a hash of the content and the lock's SOURCE_DATE_EPOCH.
"""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

from fairlead.base.paths import atomic_write
from fairlead.image import sif as layout
from fairlead_build.base.digest import Advance, unseen
from fairlead_build.formats.model import Format

_SLOTS = 48  # as the reference implementation reserves; Apptainer needs free ones to add signatures
_TABLE = layout.PAGE
_CHUNK = 4 << 20


def write_sif(
    target: Path,
    squashfs: Path,
    document: tuple[str, bytes],
    *,
    arch: str,
    epoch: int,
    squashfs_sha256: str,
    advance: Advance = unseen,
) -> str:
    """Writes ``target``: the squashfs as primary system partition, and ``document`` as generic JSON.

    Args:
        document: the name and the bytes of the generic JSON object.
        arch: ``amd64`` or ``arm64``.
        epoch: seconds since 1970 for every time in the file.
        squashfs_sha256: hex; with ``document`` it makes the identifier of the image.
    Returns:
        The sha256 of the file, hex.
    Raises:
        OSError: as writing does; nothing is left under ``target`` then.
    """
    name, text = document
    size = squashfs.stat().st_size
    data = _align(_TABLE + _SLOTS * layout.DESCRIPTOR.size)
    json_at = _align(data + size)
    end = json_at + len(text)
    code = layout.ARCHES[arch] + b"\0"
    extra = layout.PARTITION_EXTRA.pack(layout.FS_SQUASHFS, layout.PART_PRIMARY_SYSTEM, code)
    table = (
        _descriptor(layout.DATA_PARTITION, 1, data, size, epoch, "rootfs.squashfs", extra)
        + _descriptor(layout.DATA_GENERIC_JSON, 2, json_at, len(text), epoch, name, b"")
    ).ljust(_SLOTS * layout.DESCRIPTOR.size, b"\0")
    header = layout.HEADER.pack(
        layout.LAUNCH, layout.MAGIC, layout.VERSION, code,
        layout.identity(squashfs_sha256, text).bytes, epoch, epoch,
        _SLOTS - 2, _SLOTS, _TABLE, len(table), data, end - data,
    )  # fmt: skip

    digest = hashlib.sha256()
    with atomic_write(target) as out:

        def put(chunk: bytes) -> None:
            out.write(chunk)
            digest.update(chunk)

        put(header.ljust(_TABLE, b"\0") + table)
        put(bytes(data - _TABLE - len(table)))
        with squashfs.open("rb") as source:
            while chunk := source.read(_CHUNK):
                put(chunk)
                advance(len(chunk))
        put(bytes(json_at - data - size) + text)
    return digest.hexdigest()


def _descriptor(
    datatype: int, ident: int, at: int, size: int, epoch: int, name: str, extra: bytes
) -> bytes:
    padded = _align(at + size) - at
    return layout.DESCRIPTOR.pack(
        datatype, True, ident, layout.GROUP_MASK | 1, 0, at, size, padded, epoch, epoch, 0, 0,
        name.encode(), extra,
    )  # fmt: skip


def _align(offset: int) -> int:
    return -(-offset // layout.PAGE) * layout.PAGE


# The build itself writes it; all other formats are made from it.
FORMAT = Format(
    "sif", ".sif", "the squashfs and its record in one file",
    lambda entry, target, _: shutil.copyfile(entry.path, target),
)  # fmt: skip
