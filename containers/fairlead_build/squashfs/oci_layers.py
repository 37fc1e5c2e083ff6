"""The layers of an OCI image as one tar stream, without unpacking anything to disk.

Two passes: the first reads every header and applies it to a :class:`MergedTree`, the second copies
the content of those members that are left. Memory holds the names, never the content. umoci and skopeo unpack to disk, and need ids to
change owners.
"""

from __future__ import annotations

import gzip
import hashlib
import subprocess
import tarfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tarfile import TarInfo
from typing import IO, cast

from fairlead.base.errors import FairleadError, fail
from fairlead_build.base.proc import child, clean_environment
from fairlead_build.cache.store import Cache
from fairlead_build.squashfs.merged_tree import HostileMember, Inode, MergedTree
from fairlead_build.squashfs.squash import CHUNK, Sink
from fairlead_build.squashfs.tree_stream import Member, TarStream
from fairlead_build.tools import tool_tree

# A layer of zeros shrinks to a thousandth. Beyond this much of it, it is a decompression bomb.
_FREE_BYTES = 4 << 30
_MOST_RATIO = 200
_MOST_BYTES = 1 << 40
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_RECORD = 512


@dataclass(frozen=True)
class LayerFile:
    """One layer as it lies on disk: a tar, plain or packed with gzip or zstd.

    Attributes:
        digest: ``sha256:…`` of the file; empty: not to be checked.
        diff_id: ``sha256:…`` of the tar in it; likewise.
    """

    path: Path
    digest: str = ""
    diff_id: str = ""


@dataclass(frozen=True)
class Merged:
    """What a stack of layers makes. ``bytes`` is the content of all its files."""

    layers: tuple[LayerFile, ...]
    tree: MergedTree
    bytes: int


def read_layers(
    layers: Sequence[LayerFile],
    cache: Cache | None = None,
    advance: Callable[[int], None] = lambda amount: None,
) -> Merged:
    """The first pass: every name that the layers leave, lowest layer first.

    Args:
        cache: where the tool tree is, for zstd.
        advance: called with the bytes of the layer files, as they are read.
    Raises:
        FairleadError: exit code 2; a layer is damaged, not what its digest says, or hostile.
        OSError: as reading does.
    """
    tree = MergedTree()
    for number, layer in enumerate(layers):
        digest = hashlib.sha256()
        with _members(layer, cache, digest.update, advance) as members:
            for index, (info, _) in enumerate(members):
                try:
                    tree.apply(number, index, info)
                except HostileMember as exc:
                    raise _hostile(layer, exc) from None
        if layer.diff_id and layer.diff_id != f"sha256:{digest.hexdigest()}":
            raise fail(
                "layer-damaged-diff-id",
                layer_path=layer.path,
                hexdigest=digest.hexdigest(),
                diff_id=layer.diff_id,
            )
    return Merged(tuple(layers), tree, _content_bytes(tree))


def _content_bytes(tree: MergedTree) -> int:
    sizes = {id(inode): inode.size for _, inode in tree.walk()}
    return sum(sizes.values())


def read_files(
    merged: Merged, paths: Sequence[str], cache: Cache | None = None, most_bytes: int = 64 << 20
) -> dict[str, bytes]:
    """The content of single files, by path; those that are not there are left out.

    Raises:
        FairleadError: one is longer than ``most_bytes``, or a layer is damaged.
    """
    wanted: dict[tuple[int, int], list[str]] = {}
    for path in paths:
        inode = merged.tree.find(path)
        if inode is not None and inode.kind == "file":
            if inode.size > most_bytes:
                raise fail(
                    "layer-damaged-size",
                    layers_path=merged.layers[inode.layer].path,
                    path=path,
                    inode_size=inode.size,
                )
            wanted.setdefault((inode.layer, inode.number), []).append(path)
    bodies: dict[str, bytes] = {}
    for number, layer in enumerate(merged.layers):
        left = {index for at, index in wanted if at == number}
        if not left:
            continue
        with _members(layer, cache) as members:
            for index, (_, content) in enumerate(members):
                if index in left and content is not None:
                    body = content.read()
                    bodies.update(dict.fromkeys(wanted[number, index], body))
                    left.discard(index)
                if not left:
                    break
    return bodies


def write_tar(
    merged: Merged,
    sink: Sink,
    *,
    epoch: int | None = None,
    in_order: bool = False,
    cache: Cache | None = None,
    advance: Callable[[int], None] = lambda amount: None,
) -> None:
    """The second pass: the merged tree as one tar, every owner root, no end mark left out.

    Folders come first, then files as the layers have them, then symlinks and hard links: the same
    layers give the same bytes.

    Args:
        epoch: the time of everything, instead of its own.
        in_order: files sorted by path. Only for layers that are plain tars on disk.
        advance: called with the bytes of content, as they are written.
    Raises:
        FairleadError: a layer changed while it was read.
        OSError: as reading and writing do.
    """
    first: dict[tuple[int, int], str] = {}
    late: list[tuple[str, TarInfo]] = []
    files: dict[tuple[int, int], tuple[str, Inode]] = {}
    for path, inode in merged.tree.walk():
        key = (inode.layer, inode.number)
        if inode.kind == "dir":
            sink.write(_header(path, inode, tarfile.DIRTYPE, epoch))
        elif key in first:
            info = _info(path, inode, tarfile.LNKTYPE, epoch)
            info.linkname = f"./{first[key]}"
            late.append((path, info))
        elif inode.kind == "file":
            first[key], files[key] = path, (path, inode)
        else:
            first[key] = path
            kind = tarfile.SYMTYPE if inode.kind == "link" else tarfile.FIFOTYPE
            info = _info(path, inode, kind, epoch)
            info.linkname = inode.target
            late.append((path, info))
    copy = _copy_sorted if in_order else _copy_streamed
    copy(merged, files, sink, epoch, cache, advance)
    # Those that other links lead to come before them.
    for _, info in sorted(late, key=lambda item: (item[1].islnk(), item[0])):
        sink.write(_bytes(info))
    sink.write(bytes(2 * _RECORD))


_Files = dict[tuple[int, int], tuple[str, Inode]]


def _copy_streamed(
    merged: Merged,
    files: _Files,
    sink: Sink,
    epoch: int | None,
    cache: Cache | None,
    advance: Callable[[int], None],
) -> None:
    for number, layer in enumerate(merged.layers):
        left = sum(at == number for at, _ in files)
        if not left:
            continue
        with _members(layer, cache) as members:
            for index, (info, content) in enumerate(members):
                if (file := files.get((number, index))) is None:
                    continue
                if content is None or info.size != file[1].size:
                    raise fail("layer-damaged-changed-while-read", layer_path=layer.path)
                _put(sink, file, content, epoch, layer, advance)
                left -= 1
        if left:
            raise fail("layer-damaged-changed-while-read", layer_path=layer.path)


def _copy_sorted(
    merged: Merged,
    files: _Files,
    sink: Sink,
    epoch: int | None,
    cache: Cache | None,
    advance: Callable[[int], None],
) -> None:
    (layer,) = merged.layers
    with layer.path.open("rb") as source:
        for file in sorted(files.values(), key=lambda item: item[0]):
            source.seek(file[1].at)
            _put(sink, file, source, epoch, layer, advance)


def _put(
    sink: Sink,
    file: tuple[str, Inode],
    content: IO[bytes],
    epoch: int | None,
    layer: LayerFile,
    advance: Callable[[int], None],
) -> None:
    path, inode = file
    sink.write(_header(path, inode, tarfile.REGTYPE, epoch))
    left = inode.size
    while left:
        chunk = content.read(min(CHUNK, left))
        if not chunk:
            raise fail("layer-damaged-ends-inside-file", layer_path=layer.path)
        sink.write(chunk)
        advance(len(chunk))
        left -= len(chunk)
    sink.write(bytes(-inode.size % _RECORD))


def _info(path: str, inode: Inode, kind: bytes, epoch: int | None) -> TarInfo:
    info = TarInfo("." if path == "." else f"./{path}")
    info.type, info.mode = kind, inode.mode
    info.size = inode.size if kind == tarfile.REGTYPE else 0
    info.mtime = inode.mtime if epoch is None else epoch
    return info


def _header(path: str, inode: Inode, kind: bytes, epoch: int | None) -> bytes:
    return _bytes(_info(path, inode, kind, epoch))


def _bytes(info: TarInfo) -> bytes:
    return info.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape")


# --- reading one layer --------------------------------------------------------------------------


@contextmanager
def _members(
    layer: LayerFile,
    cache: Cache | None,
    see: Callable[[bytes], object] | None = None,
    advance: Callable[[int], None] = lambda amount: None,
) -> Iterator[Iterator[Member]]:
    """The members of a layer; what is wrong with it becomes an error inside the block too."""
    with layer.path.open("rb") as raw:
        magic = raw.read(4)
        raw.seek(0)
        hashed = _Told(raw, advance)
        try:
            with _unpacked(layer, magic, hashed, cache) as stream:
                limited = _Limited(layer, stream, layer.path.stat().st_size)
                yield iter(TarStream(cast(IO[bytes], limited), see))
                if see is not None:
                    hashed.drain()
        except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile, RecursionError) as exc:
            raise fail(
                "layer-damaged", layer_path=layer.path, exc=str(exc) or type(exc).__name__
            ) from None
        except (ValueError, OverflowError, UnicodeError) as exc:
            raise fail("layer-damaged-header", layer_path=layer.path, reason=exc) from None
    if see is not None and layer.digest and layer.digest != f"sha256:{hashed.digest.hexdigest()}":
        raise fail(
            "layer-damaged-digest",
            layer_path=layer.path,
            hexdigest=hashed.digest.hexdigest(),
            digest=layer.digest,
        )


class _Told:
    """A file that is hashed and counted as it is read, from its beginning to its end."""

    def __init__(self, raw: IO[bytes], advance: Callable[[int], None]):
        self._raw, self._advance, self.digest = raw, advance, hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        chunk = self._raw.read(size)
        self.digest.update(chunk)
        self._advance(len(chunk))
        return chunk

    def drain(self) -> None:
        while self.read(CHUNK):
            pass


@contextmanager
def _unpacked(
    layer: LayerFile, magic: bytes, raw: _Told, cache: Cache | None
) -> Iterator[IO[bytes]]:
    if magic.startswith(_GZIP):
        with gzip.GzipFile(fileobj=cast(IO[bytes], raw)) as stream:
            yield cast(IO[bytes], stream)
    elif magic.startswith(_ZSTD):
        # --memory: a hostile header could ask for a window of gigabytes.
        argv = [*tool_tree.command("zstd", cache), "-dcq", "--memory=128MB", layer.path]
        with child(argv, env=clean_environment(), stderr=subprocess.PIPE) as process:
            assert process.stdout is not None and process.stderr is not None
            yield process.stdout
            if process.stdout.read(1) == b"" and process.wait():
                errors = process.stderr.read().decode("utf-8", "replace").strip()
                raise tarfile.ReadError(errors or "zstd cannot read it")
    else:
        yield cast(IO[bytes], raw)


class _Limited:
    """Refuses to go on when far more comes out than such a file can hold for a good reason."""

    def __init__(self, layer: LayerFile, stream: IO[bytes], packed: int):
        self._layer, self._stream = layer, stream
        self._left = min(max(_FREE_BYTES, _MOST_RATIO * packed), _MOST_BYTES)

    def read(self, size: int = -1) -> bytes:
        chunk = self._stream.read(size)
        self._left -= len(chunk)
        if self._left < 0:
            raise _bomb(self._layer)
        return chunk


def _hostile(layer: LayerFile, member: HostileMember) -> FairleadError:
    return fail(
        "layer-hostile", layer_path=layer.path, member_path=member.path[:200], why=member.why
    )


def _bomb(layer: LayerFile) -> FairleadError:
    size = layer.path.stat().st_size
    return fail(
        "layer-bomb",
        layer_path=layer.path,
        size=size,
        free_bytes=max(_FREE_BYTES, _MOST_RATIO * size),
    )
