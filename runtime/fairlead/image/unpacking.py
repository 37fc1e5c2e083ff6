"""Programs that unpack libraries when they start, as those of PyInstaller's ``--onefile`` do: an MPI among them is no file of
the image, so none can take its place.

The archive ends in a cookie, before which is a table of contents. Source: PyInstaller, ``PyInstaller/archive/readers.py`` and
``bootloader/src/pyi_archive.c``.
"""

from __future__ import annotations

import posixpath
import re
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fairlead.base.regular import open_regular
from fairlead.elf import reader
from fairlead.elf.mpi_symbols import is_request
from fairlead.elf.reader import NotElf
from fairlead.image.budget import Budget

_MAGIC = b"MEI\014\013\012\013\016"
# Magic, sizes and offsets of package and table, Python's version and library.
_COOKIE = struct.Struct("!8sIIII64s")
# Its length, offset, size, size unpacked, whether compressed, kind.
_ENTRY = struct.Struct("!IIIIBc")
_BINARY = b"b"
# mpi4py's wheel has opened libmpi.so, by that name, before one of these modules is loaded.
_OPENED_BEFORE = re.compile(r"(.*/)?mpi4py/MPI\.\w+\.[^/]*so$")
_NEAR = 1 << 20  # bytes of the end in which the cookie is: headers of sections may follow it
_MOST_TABLE = 16 << 20
_MOST_UNPACKED = 1 << 28  # of one file


@dataclass(frozen=True)
class _Packed:
    name: str
    offset: int
    size: int
    unpacked: int
    is_compressed: bool


def unpacked_mpis(program: Path, budget: Budget) -> tuple[str, ...]:
    """The names of the MPI libraries that a program unpacks, and that others of its files are linked to.

    Raises:
        FairleadError: it takes more than ``budget``.
        OSError: it cannot be read.
    """
    packed = list(_table(program, budget))
    there = {p.name: posixpath.basename(p.name) for p in packed}
    mpis = {name for name in there.values() if is_request(name)}
    if not mpis:
        return ()
    others = (p for p in packed if there[p.name] not in mpis)
    if "libmpi.so" not in mpis:
        others = (p for p in others if not _OPENED_BEFORE.match(p.name))
    asked = {name for p in others for name in _needed(program, p, budget)}
    return tuple(sorted(mpis & asked))


def _table(program: Path, budget: Budget) -> Iterator[_Packed]:
    """The binaries in a program's archive; none in another program, or a damaged one."""
    with open_regular(program) as stream:
        size = stream.seek(0, 2)
        start = max(0, size - _NEAR)
        stream.seek(start)
        end = stream.read(_NEAR)
        budget.read(len(end), program)
        at = end.rfind(_MAGIC)
        if at < 0 or len(end) - at < _COOKIE.size:
            return
        _, length, offset, table_size, *_ = _COOKIE.unpack_from(end, at)
        package = start + at + _COOKIE.size - length
        if package < 0 or table_size > _MOST_TABLE or offset + table_size > length:
            return
        stream.seek(package + offset)
        table = stream.read(table_size)
    place = 0
    while place + _ENTRY.size <= len(table):
        length, offset, size, unpacked, compressed, kind = _ENTRY.unpack_from(table, place)
        if length < _ENTRY.size:
            return
        name = table[place + _ENTRY.size : place + length].rstrip(b"\0").decode("utf-8", "replace")
        if kind == _BINARY and max(size, unpacked) <= _MOST_UNPACKED:
            yield _Packed(name, package + offset, size, unpacked, bool(compressed))
        place += length


def _needed(program: Path, packed: _Packed, budget: Budget) -> tuple[str, ...]:
    """The libraries that a file in the archive is linked to."""
    with open_regular(program) as stream:
        stream.seek(packed.offset)
        content = stream.read(packed.size)
    budget.read(packed.size + packed.unpacked, program)
    try:
        if packed.is_compressed:
            content = zlib.decompressobj().decompress(content, packed.unpacked)
        return reader.needed_by(content, packed.name)
    except (zlib.error, NotElf):
        return ()
