"""Streams what is in an image, in any wrapping, without unpacking or mounting it.

:func:`entries` yields a tree's members one after another; :func:`read_tree` makes
``fairlead.image.tree_digest`` entries of them, and :func:`tree_digest` the one digest that all wrappings
of an image share. :func:`tar_members` reads a tar from a pipe at the pipe's own speed.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import posixpath
import queue
import re
import shlex
import tarfile
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tarfile import TarInfo
from typing import IO, Protocol, cast

from fairlead.base import bounded_json
from fairlead.base.errors import fail
from fairlead.image.budget import Budget
from fairlead.image.sif import copy_object, is_sif, read_sif
from fairlead.image.tree_digest import Entry, Tree, belongs, scan_folder, tree_sha256
from fairlead_build.base import tar
from fairlead_build.base.digest import Advance, unseen
from fairlead_build.base.proc import clean_environment, piped
from fairlead_build.cache.store import scratch_parent, workspace
from fairlead_build.squashfs.squash import CHUNK, Sink
from fairlead_build.tools import tool_tree

_KINDS = {
    tarfile.REGTYPE: "file", tarfile.AREGTYPE: "file", tarfile.CONTTYPE: "file",
    tarfile.DIRTYPE: "folder", tarfile.SYMTYPE: "link", tarfile.FIFOTYPE: "pipe",
    tarfile.CHRTYPE: "char", tarfile.BLKTYPE: "block",
}  # fmt: skip


class _Source(Protocol):
    """What a tar is read from; it may return less than it was asked for."""

    def read(self, size: int, /) -> bytes: ...


# A member of a tar; its content when it is a file.
Member = tuple[TarInfo, IO[bytes] | None]


def tar_members(source: _Source, see: Callable[[bytes], object] | None = None) -> Iterator[Member]:
    """The members of a tar that comes through a pipe, ``.`` for the root itself.

    ``tarfile`` reads pipes through a layer of its own that takes several times as long as the
    decompression of the squashfs behind them; given a file that can seek forward, it does not.
    A file's content can be read until the next member is asked for.

    Args:
        see: given every byte of the stream, in order, as it comes.
    Raises:
        tarfile.TarError: it is not a tar.
    """
    forward = _Forward(source, see)
    with tarfile.open(fileobj=forward, mode="r:") as archive:
        while (info := archive.next()) is not None:
            archive.members = []  # type: ignore[attr-defined]  # else all would be kept
            info.name = posixpath.normpath(info.name.lstrip("/") or ".")
            yield info, archive.extractfile(info) if info.isreg() else None
    # tarfile takes a damaged header for the end.
    if forward.last.strip(b"\0"):
        raise tarfile.ReadError("a header is damaged")
    while forward.next():
        pass


class _Forward(io.RawIOBase):
    """A pipe as a file that can seek forward, and one byte back, which is all ``tarfile`` needs."""

    def __init__(self, source: _Source, see: Callable[[bytes], object] | None):
        self._source, self._see = source, see
        self._block, self._used, self._before = b"", 0, 0
        self.last = b""

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._before + self._used

    def read(self, size: int = -1) -> bytes:
        if size > tar.MOST_HEADER:  # no reader of content may ask for more at once either
            # A header may claim any length, and tarfile would read it whole.
            raise tarfile.ReadError(f"a header claims {size} bytes")
        parts, left = [], size
        while left > 0 and (self._used < len(self._block) or self.next()):
            part = self._block[self._used : self._used + left]
            self._used += len(part)
            left -= len(part)
            parts.append(part)
        self.last = parts[0] if len(parts) == 1 else b"".join(parts)
        return self.last

    def seek(self, position: int, whence: int = 0) -> int:
        while position > self._before + len(self._block):
            self._used = len(self._block)
            if not self.next():
                return self.tell()
        if position < self._before:
            raise tarfile.ReadError("a pipe cannot be read twice")
        self._used = position - self._before
        return position

    def next(self) -> bool:
        """Goes on to the next block; False at the end."""
        block = self._source.read(CHUNK)
        if not block:
            return False
        if self._see is not None:
            self._see(block)
        # The last byte stays, for the one step back.
        kept = self._block[-1:]
        self._before += len(self._block) - len(kept)
        self._block, self._used = kept + block, len(kept)
        return True


def entries(source: Path) -> Iterator[Member]:
    """The members of an image: a SIF, a squashfs, or an OCI layout that fairlead wrote.

    Paths are relative to the root. A hard link comes after what it links to. Sockets are left out.

    Raises:
        FairleadError: it is none of these, damaged, or a tool is missing.
        OSError: it cannot be read.
    """
    if source.is_dir():
        for layer in _layers(source):
            try:
                with gzip.open(layer) as stream:
                    yield from tar_members(cast(IO[bytes], stream))
            except (tarfile.TarError, EOFError, gzip.BadGzipFile) as exc:
                raise fail("oci-layout", layout=source, layer=layer, reason=exc) from None
        return
    with bare_squashfs(source) as squashfs:
        yield from squashfs_entries(squashfs)


def squashfs_entries(
    squashfs: Path, *, strict: bool = False, links: bool = True
) -> Iterator[Member]:
    """The members of a bare squashfs.

    Args:
        strict: fail at what a tar cannot hold, e.g. a socket, instead of leaving it out.
        links: report hard links as such; otherwise the file comes again under each name.
    Raises:
        FairleadError: it is damaged, or a tool is missing.
    """
    options = [*(["--no-skip"] if strict else []), *([] if links else ["--no-hard-links"])]
    argv = [*tool_tree.command("sqfs2tar"), "--no-xattr", "--root-becomes", ".", *options, squashfs]
    remedy = f"ls -l {shlex.quote(str(squashfs))}; then fetch or build the image again"
    doing = f"read {squashfs.name}"
    with piped(argv, doing=doing, remedy=remedy, env=clean_environment()) as stream:
        yield from tar_members(stream)


@contextmanager
def bare_squashfs(image: Path) -> Iterator[Path]:
    """The squashfs of ``image``: itself, or for a SIF a copy that lasts as long as the block.

    The tools cannot begin in the middle of a file.

    Raises:
        FairleadError: it is a damaged SIF, or there is no room for the copy.
    """
    if not is_sif(image):
        yield image
        return
    held = read_sif(image).squashfs
    with workspace(scratch_parent(held.size), "fairlead-squashfs-") as scratch:
        copy = scratch / "image.squashfs"
        with copy.open("wb") as out:
            copy_object(image, held, out)
        yield copy


def _layers(layout: Path) -> list[Path]:
    """The layers of the one image in an OCI layout, lowest first."""
    blobs = layout / "blobs" / "sha256"
    try:
        index = bounded_json.loads((layout / "index.json").read_bytes())
        manifest = bounded_json.loads((blobs / _hex(index["manifests"][0])).read_bytes())
        if "org.fairlead.tree.sha256" not in manifest.get("annotations", {}):
            raise fail("oci-layout-foreign", layout=layout)
        return [blobs / _hex(layer) for layer in manifest["layers"]]
    except (OSError, ValueError, KeyError, IndexError, TypeError, AttributeError) as exc:
        raise fail("oci-layout-unreadable", layout=layout, reason=exc) from None


def _hex(descriptor: dict[str, str]) -> str:
    match = re.fullmatch(r"sha256:([0-9a-zA-Z]{64})", descriptor["digest"])
    if match is None:
        raise ValueError(f"unknown digest {descriptor['digest']!r}")
    return match[1]


def read_tree(
    members: Iterable[Member], advance: Advance = unseen, budget: Budget | None = None
) -> dict[str, Entry]:
    """The tree that tar members make; all of their content is read.

    Raises:
        FairleadError: a hard link leads nowhere, or it takes more than ``budget``.
    """
    tree: dict[str, Entry] = {}
    path = ""

    def read(amount: int) -> None:
        advance(amount)
        if budget is not None:
            budget.clock(path)

    for info, content in members:
        path = "" if info.name == "." else info.name
        if budget is not None:
            budget.entry(path, path.count("/"))
            budget.read(info.size, path)
        if info.islnk():
            target = posixpath.normpath(info.linkname.lstrip("/"))
            if target not in tree:
                raise fail("tree-link", path=path, target=target)
            tree[path] = tree[target]
        elif belongs(path) and info.type in _KINDS:
            tree[path] = _entry(info, content, read)
    return tree


class Recorder:
    """Passes a tar stream on to ``sink``, and reads meanwhile what tree it makes.

    ::

        with Recorder(sink) as recorder:
            recorder.write(data)
        recorder.tree
    """

    def __init__(self, sink: Sink):
        self.tree: dict[str, Entry] = {}
        self._sink = sink
        self._chunks = _Chunks()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._wrong: Exception | None = None

    def __enter__(self) -> Recorder:
        self._reader.start()
        return self

    def write(self, data: bytes, /) -> None:
        """Takes the next bytes of the stream."""
        if data:
            self._chunks.put(data)
        self._sink.write(data)

    def __exit__(self, kind: object, *_: object) -> None:
        """Raises:
        FairleadError, tarfile.TarError: what was written is not a tree.
        """
        self._chunks.put(b"")
        self._reader.join()
        if self._wrong is not None and kind is None:
            raise self._wrong

    def _read(self) -> None:
        try:
            tree = read_tree(tar_members(self._chunks))
            # A tar may leave out the folders of its files; the writer makes them.
            above = set[str]()
            for path in tree:
                while (path := path.rpartition("/")[0]) and path not in above:
                    above.add(path)
            self.tree = {path: Entry("folder", 0o755) for path in above - tree.keys()} | tree
        except Exception as exc:
            self._wrong = exc
            while self._chunks.read():
                pass  # or the writer would wait forever


class _Chunks:
    """What one thread writes, for another to read; at most so much waits in between."""

    _MOST = 16

    def __init__(self) -> None:
        self._waiting = queue.Queue[bytes](self._MOST)
        self._ended = False

    def put(self, data: bytes) -> None:
        self._waiting.put(data)

    def read(self, size: int = 0, /) -> bytes:
        """The next chunk, of any size; empty at the end, however often it is asked for."""
        if self._ended:
            return b""
        chunk = self._waiting.get()
        self._ended = not chunk
        return chunk


def _entry(info: TarInfo, content: IO[bytes] | None, advance: Advance) -> Entry:
    kind, mode = _KINDS[info.type], info.mode & 0o7777
    if content is not None:
        digest = hashlib.sha256()
        while chunk := content.read(CHUNK):
            digest.update(chunk)
            advance(len(chunk))
        return Entry(kind, mode, str(info.size), digest.hexdigest())
    if kind == "link":
        return Entry(kind, 0, info.linkname)
    if kind in ("char", "block"):
        return Entry(kind, mode, f"{info.devmajor}:{info.devminor}")
    return Entry(kind, mode)


def image_tree(source: Path, advance: Advance = unseen) -> Tree:
    """The tree of an image in any wrapping, a folder with a root file system included.

    Raises:
        FairleadError: as :func:`entries` does.
        OSError: it cannot be read.
    """
    if source.is_dir() and not (source / "oci-layout").is_file():
        return scan_folder(source, advance)
    return read_tree(entries(source), advance, Budget(Path(), source))


def tree_digest(source: Path) -> str:
    """The digest that all wrappings of an image share, hex (``fairlead.image.tree_digest``).

    Raises:
        FairleadError: as :func:`entries` does.
        OSError: it cannot be read.
    """
    return tree_sha256(image_tree(source))
