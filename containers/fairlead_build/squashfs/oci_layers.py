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
from functools import partial
from pathlib import Path
from tarfile import TarInfo
from typing import IO, cast

from fairlead.base.errors import fail
from fairlead.image.budget import MOST_BYTES, Budget
from fairlead_build.base import tar
from fairlead_build.base.digest import Advance, unseen
from fairlead_build.base.proc import child, clean_environment
from fairlead_build.cache.store import Cache
from fairlead_build.squashfs.merged_tree import HostileMember, Inode, MergedTree
from fairlead_build.squashfs.squash import CHUNK, Sink
from fairlead_build.squashfs.tree_stream import Member, tar_members
from fairlead_build.tools import tool_tree

# A layer of zeros shrinks to a thousandth. Beyond this much of it, it is a decompression bomb.
_FREE_BYTES = 4 << 30
_MOST_RATIO = 200
_MOST_FILE_BYTES = 64 << 20
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"


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
    layers: Sequence[LayerFile], cache: Cache | None = None, advance: Advance = unseen
) -> Merged:
    """The first pass: every name that the layers leave, lowest layer first.

    Args:
        cache: where the tool tree is, for zstd.
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
                    path, why = exc.path[:200], exc.why
                    raise fail("layer-hostile", layer=layer, member=path, why=why) from None
        if layer.diff_id and layer.diff_id != f"sha256:{digest.hexdigest()}":
            raise fail("layer-damaged-diff-id", layer=layer, digest=digest.hexdigest())
    sizes = {id(inode): inode.size for _, inode in tree.walk()}
    return Merged(tuple(layers), tree, sum(sizes.values()))


def read_files(
    merged: Merged, paths: Sequence[str], cache: Cache | None = None
) -> dict[str, bytes]:
    """The content of single files, by path; those that are not there are left out.

    Raises:
        FairleadError: one is longer than 64 MiB, or a layer is damaged.
    """
    wanted: dict[tuple[int, int], list[str]] = {}
    for path in paths:
        inode = merged.tree.find(path)
        if inode is not None and inode.kind == "file":
            if inode.size > _MOST_FILE_BYTES:
                layer = merged.layers[inode.layer]
                raise fail("layer-damaged-size", layer=layer, path=path, size=inode.size)
            wanted.setdefault((inode.layer, inode.number), []).append(path)
    bodies: dict[str, bytes] = {}
    for number, layer in enumerate(merged.layers):
        left = {index for at, index in wanted if at == number}
        if not left:
            continue
        with _members(layer, cache) as members:
            for index, (_, content) in enumerate(members):
                if index in left and content is not None:
                    body = b"".join(iter(partial(content.read, CHUNK), b""))
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
    advance: Advance = unseen,
) -> None:
    """The second pass: the merged tree as one tar, every owner root, no end mark left out.

    Folders come first, then files as the layers have them, then symlinks and hard links: the same
    layers give the same bytes.

    Args:
        epoch: the time of everything, instead of its own.
        in_order: files sorted by path. Only for layers that are plain tars on disk.
    Raises:
        FairleadError: a layer changed while it was read.
        OSError: as reading and writing do.
    """
    first: dict[tuple[int, int], str] = {}
    late: list[TarInfo] = []
    files: _Files = {}

    def member(path: str, inode: Inode, kind: bytes, target: str = "") -> TarInfo:
        info = TarInfo("." if path == "." else f"./{path}")
        info.type, info.mode, info.linkname = kind, inode.mode, target
        info.size = inode.size if kind == tarfile.REGTYPE else 0
        info.mtime = inode.mtime if epoch is None else epoch
        return info

    for path, inode in merged.tree.walk():
        key = (inode.layer, inode.number)
        if inode.kind == "dir":
            sink.write(tar.header(member(path, inode, tarfile.DIRTYPE)))
        elif key in first:
            late.append(member(path, inode, tarfile.LNKTYPE, f"./{first[key]}"))
        elif inode.kind == "file":
            first[key], files[key] = path, (path, inode)
        else:
            first[key] = path
            kind = tarfile.SYMTYPE if inode.kind == "link" else tarfile.FIFOTYPE
            late.append(member(path, inode, kind, inode.target))
    contents = _sorted_contents(merged, files) if in_order else _contents(merged, files, cache)
    for layer, (path, inode), content in contents:
        try:
            for chunk in tar.member(member(path, inode, tarfile.REGTYPE), content, advance):
                sink.write(chunk)
        except ValueError:
            raise fail("layer-damaged-ends-inside-file", layer=layer) from None
    # Those that other links lead to come before them.
    for info in sorted(late, key=lambda info: (info.islnk(), info.name)):
        sink.write(tar.header(info))
    sink.write(tar.END)


_Files = dict[tuple[int, int], tuple[str, Inode]]
_Contents = Iterator[tuple[LayerFile, tuple[str, Inode], IO[bytes]]]


def _contents(merged: Merged, files: _Files, cache: Cache | None) -> _Contents:
    """Files as the layers have them."""
    for number, layer in enumerate(merged.layers):
        left = sum(at == number for at, _ in files)
        if not left:
            continue
        with _members(layer, cache) as members:
            for index, (info, content) in enumerate(members):
                if (file := files.get((number, index))) is None:
                    continue
                if content is None or info.size != file[1].size:
                    raise fail("layer-damaged-changed-while-read", layer=layer)
                yield layer, file, content
                left -= 1
        if left:
            raise fail("layer-damaged-changed-while-read", layer=layer)


def _sorted_contents(merged: Merged, files: _Files) -> _Contents:
    (layer,) = merged.layers
    with layer.path.open("rb") as source:
        for file in sorted(files.values(), key=lambda file: file[0]):
            source.seek(file[1].at)
            yield layer, file, source


# --- reading one layer --------------------------------------------------------------------------


@contextmanager
def _members(
    layer: LayerFile,
    cache: Cache | None,
    see: Callable[[bytes], object] | None = None,
    advance: Advance = unseen,
) -> Iterator[Iterator[Member]]:
    """The members of a layer; what is wrong with it becomes an error inside the block too."""
    packed = layer.path.stat().st_size
    left = most = min(max(_FREE_BYTES, _MOST_RATIO * packed), MOST_BYTES)
    budget = Budget(Path(), layer.path)

    def limited(block: bytes) -> None:
        """Refuses far more than such a file can hold for a good reason."""
        nonlocal left
        left -= len(block)
        if left < 0:
            raise fail("layer-bomb", layer=layer, size=packed, most=most)
        if see is not None:
            see(block)
            budget.clock()

    with layer.path.open("rb") as raw:
        magic = raw.read(4)
        raw.seek(0)
        hashed = _Hashed(raw, advance)
        try:
            with _unpacked(layer, magic, hashed, cache) as stream:
                yield tar_members(stream, limited)
                if see is not None:
                    hashed.drain()
        except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile, RecursionError) as exc:
            why = str(exc) or type(exc).__name__
            raise fail("layer-damaged", layer=layer, exc=why) from None
        except (ValueError, OverflowError, UnicodeError) as exc:
            raise fail("layer-damaged-header", layer=layer, reason=exc) from None
    digest = hashed.digest.hexdigest()
    if see is not None and layer.digest and layer.digest != f"sha256:{digest}":
        raise fail("layer-damaged-digest", layer=layer, digest=digest)


class _Hashed:
    """A file that is hashed and counted as it is read, from its beginning to its end."""

    def __init__(self, raw: IO[bytes], advance: Advance):
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
    layer: LayerFile, magic: bytes, raw: _Hashed, cache: Cache | None
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
