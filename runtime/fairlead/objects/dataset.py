"""Data sets where they are, in a folder or a store: what is there, and whether it is what ``data.json`` says."""

from __future__ import annotations

import functools
import hashlib
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from fairlead.base import data_list
from fairlead.base.data_list import ListedFile
from fairlead.base.errors import fail
from fairlead.objects import workers
from fairlead.objects.failures import passing
from fairlead.objects.fetch import etag_of
from fairlead.objects.model import MARK, PART, SHA256, Object, Store
from fairlead.objects.ranges import whole
from fairlead.objects.registry import open_store
from fairlead.objects.survey import small
from fairlead.objects.url import hidden, is_url

_CHUNK = 4 << 20
OnBytes = Callable[[int], None]


@dataclass(frozen=True)
class FileThere:
    """A file of a place.

    Attributes:
        version: changes with its content: an ETag, or size and time.
    """

    name: str
    bytes: int
    version: str


@dataclass(frozen=True)
class Read:
    """The sha256 of a file's content, and the one that its writer has noted; empty without a note."""

    sha256: str
    noted: str = ""


class Place(Protocol):
    """A folder or a prefix of a store."""

    @property
    def title(self) -> str:
        """Its path or URL."""

    @property
    def identity(self) -> str:
        """What tells it from other places, also from one of the same URL at another endpoint."""

    def files(self) -> dict[str, FileThere]:
        """What is there, by name."""

    def read(self, file: FileThere, count: OnBytes, stop: threading.Event) -> Read:
        """Reads a file's content."""

    def claimed(self, file: FileThere) -> str:
        """The sha256 that the file's writer has noted; empty without one. Not a proof."""

    def small(self, file: FileThere) -> bytes:
        """The content of a small file."""

    def write_list(self, text: str) -> None:
        """Replaces its ``data.json``."""


class Folder:
    """A folder.

    Args:
        new: it need not be there, and is then an empty one.

    Attributes:
        left_out: what is not among the :meth:`files` that were last looked at, and is neither file nor folder: links to
            folders, links to nothing, sockets and the like.
    """

    def __init__(self, top: Path, new: bool = False):
        self.top, self.left_out = top, tuple[str, ...]()
        if not (top.is_dir() or (new and not os.path.lexists(top))):
            raise fail("data-place", place=top)

    @property
    def title(self) -> str:
        return str(self.top)

    @property
    def identity(self) -> str:
        return str(self.top)

    def path(self, name: str) -> Path:
        return self.top / name

    def files(self) -> dict[str, FileThere]:
        files, left_out = {}, []
        for above, folders, names in os.walk(self.top):
            folders[:] = sorted(name for name in folders if not _on_its_way(name))
            for name in folders + names:
                path = os.path.join(above, name)
                below = os.path.relpath(path, self.top)
                if os.path.isfile(path):
                    if not _on_its_way(name):
                        info = os.stat(path)
                        files[below] = FileThere(below, info.st_size, _version(info))
                elif os.path.islink(path) or not os.path.isdir(path):
                    left_out.append(below)
        self.left_out = tuple(sorted(left_out))
        return files

    def read(self, file: FileThere, count: OnBytes, stop: threading.Event) -> Read:
        digest = hashlib.sha256(usedforsecurity=False)
        with self.path(file.name).open("rb") as stream:
            while not stop.is_set() and (chunk := stream.read(_CHUNK)):
                digest.update(chunk)
                count(len(chunk))
        return Read(digest.hexdigest())

    def claimed(self, file: FileThere) -> str:
        return ""

    def small(self, file: FileThere) -> bytes:
        return self.path(file.name).read_bytes()

    def write_list(self, text: str) -> None:
        files = data_list.parsed(text.encode(), self.title)
        data_list.write_list(self.top, files.values())


def version_of(path: Path) -> str:
    """That of a file, as :meth:`Folder.files` has it; empty where there is no file."""
    return _version(path.stat()) if path.is_file() else ""


def _version(info: os.stat_result) -> str:
    return f"{info.st_size}-{info.st_mtime_ns}"


def _on_its_way(name: str) -> bool:
    """Whether fairlead is writing a file or folder, which gets its name when it is whole."""
    return name.startswith(".") and name.endswith(".partial")


class Prefix:
    """A prefix of a store."""

    def __init__(self, store: Store):
        self.store, self._single = store, False

    @property
    def title(self) -> str:
        return hidden(str(self.store.url))

    @property
    def identity(self) -> str:
        return f"{self.title} at {self.store.endpoint}"

    def whole(self) -> Prefix:
        """The prefix that names of its files are below: of a single object, the one that it is in."""
        if not self._single:
            return self
        url = self.store.url
        return Prefix(open_store(replace(url, key=url.key.rpartition("/")[0])))

    def objects(self) -> dict[str, Object]:
        objects, self._single = workers.tried_again(self.store.list)
        if self._single:
            return {each.name or self.store.url.name: each for each in objects}
        return {each.name: each for each in objects}

    def files(self) -> dict[str, FileThere]:
        return {
            name: FileThere(name, each.size, each.etag)
            for name, each in self.objects().items()
            if not (name.endswith("/") and not each.size)
        }

    def _object(self, file: FileThere) -> Object:
        return Object("" if self._single else file.name, file.bytes, file.version)

    def read(self, file: FileThere, count: OnBytes, stop: threading.Event) -> Read:
        """In pieces; compared with the store's own checksum, so that only the object's own bytes count."""
        each = self._object(file)
        part = self.store.part_bytes(each)
        digest, parts, noted = hashlib.sha256(usedforsecurity=False), _Parts(part), ""
        for start in range(0, each.size, PART) if each.size else ():
            piece = functools.partial(self._piece, each, start)
            metadata, chunks = workers.tried_again(piece, stop)
            noted = metadata.get(SHA256, "")
            for chunk in chunks:
                digest.update(chunk)
                parts.update(chunk)
                count(len(chunk))
        if part and each.size and not parts.same(each.etag.strip('"')):
            raise passing(
                "other bytes came than the store's checksum says", self.store.url, each.name
            )
        return Read(digest.hexdigest(), noted)

    def _piece(self, each: Object, start: int) -> tuple[Mapping[str, str], list[bytes]]:
        end = min(start + PART, each.size)
        with whole(self.store, each, start, end) as body:
            return body.metadata, list(body.chunks)

    def claimed(self, file: FileThere) -> str:
        status = workers.tried_again(lambda: self.store.stat(self._object(file).name))
        return status[1].get(SHA256, "") if status and status[0].etag == file.version else ""

    def small(self, file: FileThere) -> bytes:
        return small(self.store, self._object(file))

    def write_list(self, text: str) -> None:
        content = text.encode()
        note = {SHA256: hashlib.sha256(content).hexdigest()}
        workers.tried_again(lambda: self.store.put(data_list.NAME, content, note))


class _Parts:
    """The ETag of what passes, in parts of a size."""

    def __init__(self, size: int):
        self._size, self._here, self._digests = size, 0, list[bytes]()
        self._md5 = hashlib.md5(usedforsecurity=False)

    def update(self, chunk: bytes) -> None:
        view = memoryview(chunk) if self._size else memoryview(b"")
        while view:
            taken = view[: self._size - self._here]
            self._md5.update(taken)
            self._here += len(taken)
            view = view[len(taken) :]
            if self._here == self._size:
                self._end()

    def _end(self) -> None:
        self._digests.append(self._md5.digest())
        self._md5, self._here = hashlib.md5(usedforsecurity=False), 0

    def same(self, etag: str) -> bool:
        if self._here:
            self._end()
        return etag == (etag_of(self._digests) if "-" in etag else self._digests[0].hex())


def place_of(text: str, new: bool = False) -> Place:
    """The folder or prefix that ``text`` names.

    Args:
        new: a folder need not be there.

    Raises:
        FairleadError: exit code 2; there is no such folder, or the URL is invalid.
    """
    if is_url(text):
        return Prefix(open_store(text))
    return Folder(Path(text).expanduser().absolute(), new)


@dataclass(frozen=True)
class Described:
    """A data set.

    Attributes:
        digest: of the set, by its list; empty without one.
        rows: samples, where they were counted.
        missing: names of the list that are not there, or have another size.
        unlisted: names that the list does not have.
        incomplete: it is being written, or that was interrupted.
    """

    place: str
    files: int
    bytes: int
    digest: str
    rows: int | None
    missing: tuple[str, ...]
    unlisted: tuple[str, ...]
    incomplete: bool = False
    shards: tuple[ListedFile, ...] = ()


def described(place: Place, files: Mapping[str, FileThere] | None = None) -> Described:
    """A data set, by its listing and its ``data.json``; no other content is read.

    Raises:
        FairleadError: nothing is there; the list is damaged.
    """
    files = dict(place.files() if files is None else files)
    if not files:
        raise fail("data-place", place=place.title)
    incomplete = files.pop(MARK, None) is not None
    known = _list_of(place, files)
    files.pop(data_list.NAME, None)
    size = sum(file.bytes for file in files.values())
    if known is None:
        return Described(
            place.title, len(files), size, "", None, (), tuple(sorted(files)), incomplete
        )
    missing = [n for n, f in known.items() if n not in files or files[n].bytes != f.bytes]
    rows = [file.rows for file in known.values() if file.rows is not None]
    return Described(
        place.title, len(files), size,
        data_list.set_digest((name, file.sha256) for name, file in known.items()),
        sum(rows) if rows else None,
        tuple(sorted(missing)), tuple(sorted(set(files) - set(known))), incomplete,
        tuple(known[name] for name in sorted(known)),
    )  # fmt: skip


def _list_of(place: Place, files: Mapping[str, FileThere]) -> dict[str, ListedFile] | None:
    """The entries of a place's list; None without one, or if its ``data.json`` is something else."""
    if (file := files.get(data_list.NAME)) is None:
        return None
    content = place.small(file)
    if b'"fairlead.data.files"' not in content[:200]:
        return None
    return data_list.parsed(content, f"{place.title}/{data_list.NAME}")


def sets_in(place: Place) -> Iterator[Described]:
    """The data sets of a place: folders with a ``data.json``; what is in none, by its first folder."""
    files = place.files()
    tops = {name.rpartition("/")[0] for name in files if _is_list(name)}
    by_top: dict[str, dict[str, FileThere]] = {}
    for name, file in files.items():
        above = name.rpartition("/")[0]
        while above and above not in tops:
            above = above.rpartition("/")[0]
        top = above if above in tops else name.partition("/")[0] if "/" in name else ""
        by_top.setdefault(top, {})[name.removeprefix(f"{top}/") if top else name] = file
    for top, those in sorted(by_top.items()):
        inner = place if not top else _below(place, top)
        renamed = {n: FileThere(n, f.bytes, f.version) for n, f in those.items()}
        yield described(inner, renamed)


def _is_list(name: str) -> bool:
    return name.rpartition("/")[2] == data_list.NAME


def _below(place: Place, name: str) -> Place:
    if isinstance(place, Prefix):
        return Prefix(open_store(place.store.url.below(name)))
    assert isinstance(place, Folder)
    return Folder(place.top / name)


@dataclass(frozen=True)
class Verified:
    """A data set whose content was compared with its list.

    Attributes:
        wrong: names whose content differs.
    """

    described: Described
    wrong: tuple[str, ...]

    @property
    def holds(self) -> bool:
        data_set = self.described
        return not (self.wrong or data_set.missing or data_set.unlisted or data_set.incomplete)


def verified(place: Place, on_bytes: OnBytes = lambda count: None) -> Verified:
    """Reads all of a data set.

    Raises:
        FairleadError: it has no list; the store fails.
    """
    files = place.files()
    what = described(place, files)
    if not what.digest:
        raise fail("data-no-list", place=place.title)
    known = {file.name: file for file in what.shards if file.name in files}
    read = all_read(place, [files[name] for name in known], on_bytes)
    wrong = [name for name, file in known.items() if read[name].sha256 != file.sha256]
    return Verified(what, tuple(sorted(set(wrong) - set(what.missing))))


def all_read(
    place: Place, files: Sequence[FileThere], on_bytes: OnBytes = lambda count: None
) -> dict[str, Read]:
    """Reads files, several at once.

    Raises:
        FairleadError: the store fails.
        OSError: a file cannot be read.
    """
    done: dict[str, Read] = {}
    moved, lock = [0], threading.Lock()

    def count(more: int) -> None:
        with lock:
            moved[0] += more

    def read(file: FileThere, stop: threading.Event) -> None:
        content = workers.tried_again(lambda: place.read(file, count, stop), stop)
        with lock:
            done[file.name] = content

    workers.each(files, read, on_bytes, lambda: moved[0])
    return done


def list_anew(
    place: Place, rows: Mapping[str, int] | None = None, on_bytes: OnBytes = lambda count: None
) -> Described:
    """Reads all files of a place, and writes its ``data.json``.

    Args:
        rows: samples of files, where they are known.

    Raises:
        FairleadError: nothing is there; content differs from the sha256 that its writer has noted; the store fails.
    """
    files = {
        name: file for name, file in place.files().items() if name not in (data_list.NAME, MARK)
    }
    if not files:
        raise fail("data-place", place=place.title)
    read = all_read(place, list(files.values()), on_bytes)
    if wrong := sorted(n for n, file in read.items() if file.noted not in ("", file.sha256)):
        few = ", ".join(wrong[:5])
        raise fail("data-list-other", count=len(wrong), place=place.title, few=few)
    entries = [
        ListedFile(name, (rows or {}).get(name), file.bytes, read[name].sha256)
        for name, file in files.items()
    ]
    place.write_list(data_list.text_of(entries))
    return described(place)
