"""TFRecord files, without TensorFlow: records with their length, each with a checksum.

A record is its length (uint64, little-endian), the masked CRC-32C of these 8 bytes, its data, and
their masked CRC-32C. A file is a sequence of such records, plain or compressed as a whole by gzip or
zlib. Source: tensorflow.org/tutorials/load_data/tfrecord; tensorflow/core/lib/io/record_reader.cc.

Written here since the package `tfrecord` skips the checksums that it reads: it returns damaged records as whole ones.

A length is used only if its checksum is right, and is limited by the rest of the file and by
:data:`LIMIT`. Errors name the file, the number of the record and its first byte, which in a compressed
file is a byte of the content. :mod:`fairlead.ml.data.example` reads what records hold.
"""

from __future__ import annotations

import enum
import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, BinaryIO

from fairlead.ml.data.crc32c import Bytes, masked
from fairlead.ml.data.samples import DamagedFile

LIMIT = 1 << 30  # bytes of a record; the largest published sample has 64 MiB
_HEAD, _TAIL = struct.Struct("<QI"), struct.Struct("<I")
_CHUNK = 1 << 18


class Compression(enum.StrEnum):
    """How a file is compressed; the values are those that TensorFlow takes."""

    NONE = ""
    GZIP = "GZIP"
    ZLIB = "ZLIB"


# What zlib calls the two; gzip's header then has no name and no time, so equal data have equal bytes.
_WINDOW = {Compression.GZIP: 31, Compression.ZLIB: 15}


def compression(path: Path) -> Compression | None:
    """How a TFRecord file is compressed, by its first bytes; None if it is not a TFRecord file.

    Raises:
        OSError: it cannot be read.
    """
    with path.open("rb") as stream:
        head = stream.read(_HEAD.size)
    if not head or (len(head) == _HEAD.size and masked(head[:8]) == _HEAD.unpack(head)[1]):
        return Compression.NONE
    if head[:3] == b"\x1f\x8b\x08":
        return Compression.GZIP
    if len(head) > 1 and head[0] & 0x8F == 8 and int.from_bytes(head[:2], "big") % 31 == 0:
        return Compression.ZLIB
    return None


def index(path: Path) -> list[int]:
    """Where each record of an uncompressed file begins, and the size of the file: reads only lengths, 12 bytes per record.

    Raises:
        DamagedFile: a length is wrong, or the last record is cut short.
        OSError: the file cannot be read.
    """
    with path.open("rb", buffering=0) as stream:
        fd = stream.fileno()
        size = os.fstat(fd).st_size
        offsets: list[int] = []
        at = 0
        while at < size:
            number = len(offsets)
            head = os.pread(fd, _HEAD.size, at)
            length = _length(path, number, at, head, size - at - _HEAD.size - _TAIL.size)
            offsets.append(at)
            at += _HEAD.size + length + _TAIL.size
    return [*offsets, size]


def records(path: Path, start: int = 0, stop: int | None = None) -> Iterator[memoryview]:
    """Records ``start`` to ``stop`` (None: all) of any file; earlier ones are skipped.

    Raises:
        DamagedFile: it is not a TFRecord file, or the part that is read is damaged; lengths after the last
            requested record are checked in an uncompressed file only.
        OSError: it cannot be read.
    """
    how = compression(path)
    if how is None:
        raise DamagedFile(path, "neither TFRecord nor gzip nor zlib begins like this", "TFRecord")
    with path.open("rb") as stream:
        content: BinaryIO | _Inflated = stream
        number = at = 0
        if how is Compression.NONE:
            offsets = index(path)
            there = len(offsets) - 1
            stop = there if stop is None else stop
            if stop > there:
                raise DamagedFile(path, f"{there} records, not {stop}", "TFRecord")
            number, at = start, stream.seek(offsets[min(start, there)])
        else:
            content = _Inflated(path, stream, how)
        while stop is None or number < stop:
            head = content.read(_HEAD.size)
            if not head and stop is None:
                return
            length = _length(path, number, at, head, LIMIT)
            body = memoryview(content.read(length + _TAIL.size))
            if len(body) < length + _TAIL.size:
                raise _cut(path, number, at, length, len(body))
            if number >= start:
                if masked(body[:length]) != _TAIL.unpack(body[length:])[0]:
                    raise _wrong(path, number, at, "the checksum of its data is wrong")
                yield body[:length]
            number, at = number + 1, at + _HEAD.size + len(body)
        # At the end of a compressed file this reads its own checksum.
        content.read(1)


def count(path: Path) -> int:
    """The number of records in a file; a compressed one is decompressed for it, unless it holds a single record.

    The end of a gzip file has the size of its content, which identifies a single record. So for the
    published CosmoFlow files a few bytes are read, not terabytes.

    Raises:
        DamagedFile: lengths show that it is not a whole TFRecord file.
        OSError: it cannot be read.
    """
    how = compression(path)
    if how is Compression.NONE:
        return len(index(path)) - 1
    if how is Compression.GZIP and _holds_one(path):
        return 1
    return sum(1 for _ in records(path))


def _holds_one(path: Path) -> bool:
    with path.open("rb") as stream:
        head = _Inflated(path, stream, Compression.GZIP).read(_HEAD.size)
        if not head:
            return False
        stream.seek(-4, os.SEEK_END)
        size = _TAIL.unpack(stream.read(4))[0]
    length = _length(path, 0, 0, head, LIMIT)
    return bool(size == (_HEAD.size + length + _TAIL.size) & 0xFFFFFFFF)


class Writer:
    """Writes records to a stream, which stays open: ``with Writer(stream) as out: out.write(record)``.

    A compressed file is whole once the block has ended.
    """

    def __init__(self, stream: IO[bytes], how: Compression = Compression.NONE):
        self._stream = stream
        self._zip = zlib.compressobj(wbits=_WINDOW[how]) if how else None

    def write(self, record: Bytes) -> None:
        """Appends a record."""
        head = len(record).to_bytes(8, "little")
        for part in (head, _TAIL.pack(masked(head)), record, _TAIL.pack(masked(record))):
            self._stream.write(self._zip.compress(part) if self._zip else part)

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None and self._zip:
            self._stream.write(self._zip.flush())


def _length(path: Path, number: int, at: int, head: Bytes, room: int) -> int:
    """The length in ``head``, of a record that has ``room`` bytes at most."""
    if len(head) < _HEAD.size:
        raise _cut(path, number, at, _HEAD.size, len(head), "length")
    length, crc = _HEAD.unpack(head)
    if masked(head[:8]) != crc:
        raise _wrong(path, number, at, "the checksum of its length is wrong")
    if length > LIMIT:
        raise _wrong(path, number, at, f"it says {length} bytes; none has more than {LIMIT}")
    if length > room:
        raise _cut(path, number, at, length, max(room, 0))
    return int(length)


def _cut(
    path: Path, number: int, at: int, wanted: int, there: int, what: str = "data"
) -> DamagedFile:
    return _wrong(path, number, at, f"cut short: {there} of {wanted} bytes of its {what}")


def _wrong(path: Path, number: int, at: int, why: str) -> DamagedFile:
    return DamagedFile(path, f"record {number} at byte {at}: {why}", "TFRecord")


class _Inflated:
    """The content of a compressed file, in order, across gzip's members."""

    def __init__(self, path: Path, stream: IO[bytes], how: Compression):
        self.at = 0
        self._path, self._stream, self._window = path, stream, _WINDOW[how]
        self._unzip = zlib.decompressobj(self._window)
        self._waiting = b""  # compressed bytes that were read and not yet used

    def read(self, size: int) -> bytearray:
        """``size`` bytes, fewer at the end; allocates no more than the file holds."""
        out = bytearray()
        while len(out) < size:
            if self._unzip.eof:
                self._waiting = self._unzip.unused_data or self._stream.read(_CHUNK)
                if not self._waiting:
                    break
                if self._window != _WINDOW[Compression.GZIP]:
                    raise self._wrong("data follow its end")
                self._unzip = zlib.decompressobj(self._window)
            elif not self._waiting:
                self._waiting = self._stream.read(_CHUNK)
                if not self._waiting:
                    raise self._wrong("the compressed data are cut short")
            try:
                out += self._unzip.decompress(self._waiting, min(size - len(out), _CHUNK))
            except zlib.error as exc:
                raise self._wrong(f"the compressed data are damaged ({exc})") from exc
            self._waiting = self._unzip.unconsumed_tail
        self.at += len(out)
        return out

    def _wrong(self, why: str) -> DamagedFile:
        return DamagedFile(self._path, f"after byte {self.at} of its content: {why}", "TFRecord")
