"""From files to a store: in parallel, large ones in parts, going on after a kill, compared by the store.

A store has no rename. So an object marks a prefix as incomplete as long as something is written there, which
:mod:`fairlead.objects.survey` refuses; it goes when all is there, after the list of the files. The mark of a result, before
which nothing was there, has words in it: what an interrupted one has left may be taken away.
"""

from __future__ import annotations

import functools
import hashlib
import os
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from fairlead.base import data_list
from fairlead.base.data_list import ListedFile
from fairlead.base.errors import FairleadError, fail
from fairlead.objects import workers
from fairlead.objects.budget import Budget
from fairlead.objects.failures import is_lost
from fairlead.objects.model import LINK, MARK, MODE, PART, SHA256, Object, Store, Upload
from fairlead.objects.url import hidden

OnProgress = Callable[[str, int], None]
RESULT = b"a result is being written here; nothing else was here before\n"
_CHUNK = 4 << 20
_MOST_PARTS = 9000
_MIB = 1 << 20


@dataclass(frozen=True)
class Source:
    """A file that becomes an object.

    Attributes:
        name: below the URL; empty for the URL itself; with a slash at its end for an empty folder.
        link: what it leads to, of a symbolic link.
        replaces: the ETag of the object whose place it takes, empty for none; None for whatever is there.
    """

    name: str
    path: str
    size: int
    mode: int = 0o644
    link: str = ""
    replaces: str | None = None


@dataclass(frozen=True)
class Sent:
    """Files that are in a store.

    Attributes:
        files: sha256 by name.
        digest: of the data set.
        moved: bytes that travelled; the others were there.
        skipped: files that were there.
        copy_s: seconds.
    """

    files: Mapping[str, str]
    digest: str
    moved: int
    skipped: int
    copy_s: float


@dataclass
class _Large:
    """A file that travels in parts."""

    source: Source
    metadata: Mapping[str, str]
    upload: Upload
    there: Mapping[int, str]
    step: int
    parts: dict[int, str] = field(default_factory=dict)


def send(
    store: Store,
    sources: Sequence[Source],
    budget: Budget | None = None,
    on_progress: OnProgress = lambda phase, count: None,
) -> Sent:
    """Writes a result to a store: all that is below the prefix, with a list of the files, unless they bring one. What is
    there as it is does not travel.

    Raises:
        FairleadError: the store fails or refuses.
        OSError: a file cannot be read.
    """
    if [source.name for source in sources] == [""]:
        return upload(store, sources, budget, on_progress)
    there, left = begin_result(store)
    done = upload(store, sources, budget, on_progress, there)
    sizes = {source.name: source.size for source in sources}
    entries = [ListedFile(n, None, sizes[n], sha) for n, sha in done.files.items()]
    end_result(store, entries, [name for name in left if name not in sizes])
    return done


def upload(
    store: Store,
    sources: Sequence[Source],
    budget: Budget | None = None,
    on_progress: OnProgress = lambda phase, count: None,
    there: Collection[str] | None = None,
) -> Sent:
    """Writes files to a store without marking the prefix, a list of files last. What is there as it is does not travel.

    Args:
        there: names of the objects that may be there; without it, the store is asked for each.

    Raises:
        FairleadError: the store fails or refuses.
        OSError: a file cannot be read.
    """
    begun = time.monotonic()
    sending = _Sending(store, budget or Budget(0), on_progress, there)
    sending.files_of([source for source in sources if source.name != data_list.NAME])
    sending.files_of([source for source in sources if source.name == data_list.NAME])
    files, seconds = dict(sending.files), time.monotonic() - begun
    return Sent(files, data_list.set_digest(files.items()), sending.moved, sending.skipped, seconds)


def check_target(store: Store) -> None:
    """Tests that a result can be written to a store's URL: nothing is there, or what an interrupted one has left.

    Raises:
        FairleadError: exit code 2; it cannot.
    """
    objects, _ = workers.tried_again(store.list)
    if objects and not _is_interrupted(objects):
        first = objects[0].name or store.url
        place = hidden(str(store.url))
        raise fail("object-exists", place=place, count=len(objects), first=first)
    store.check_writable()


def _is_interrupted(objects: Sequence[Object]) -> bool:
    return any(each.name == MARK and each.size == len(RESULT) for each in objects)


def begin_result(store: Store) -> tuple[list[str], list[str]]:
    """Marks a prefix as that of a result that is being written; what was there, and what of it an interrupted one has left."""
    objects, _ = workers.tried_again(store.list)
    workers.tried_again(lambda: store.put(MARK, RESULT, {}))
    there = [each.name for each in objects if each.name != MARK]
    return there, there if _is_interrupted(objects) else []


def end_result(store: Store, files: Sequence[ListedFile], left: Sequence[str] = ()) -> None:
    """Makes a result whole: with a list of its files, unless that is among them, and without what is left of another."""
    for name in left:
        workers.tried_again(functools.partial(store.delete, name))
    if all(file.name != data_list.NAME for file in files):
        text = data_list.text_of(files).encode()
        workers.tried_again(lambda: store.put(data_list.NAME, text, {SHA256: _hex(text)}))
    workers.tried_again(lambda: store.delete(MARK))


class _Sending:
    """One call of :func:`send`."""

    def __init__(
        self,
        store: Store,
        budget: Budget,
        on_progress: OnProgress,
        there: Collection[str] | None,
    ):
        self.store, self.budget, self.on_progress = store, budget, on_progress
        self.there = None if there is None else {*there}
        self.files: dict[str, str] = {}
        self.large: list[_Large] = []
        self.moved = self.skipped = 0
        self._lock = threading.Lock()

    def files_of(self, sources: Sequence[Source]) -> None:
        self.large = []
        self._each(sources, self._begun)
        pieces = ((large, n) for large in self.large for n in _numbers(large))
        self._each(pieces, self._piece)
        self._each(self.large, self._finished)

    def _begun(self, source: Source, stop: threading.Event) -> None:
        """Writes a small file; begins with a large one."""
        sha256 = _hex(b"") if source.link or source.name.endswith("/") else _digest(source.path)
        metadata = {SHA256: sha256, MODE: f"{source.mode & 0o777:o}"}
        if source.link:
            metadata[LINK] = source.link
        if not source.name.endswith("/"):
            self.files[source.name] = sha256
        stored = None
        if self.there is None or source.name in self.there:
            stored = workers.tried_again(lambda: self.store.stat(source.name), stop)
        if _is_same(stored, source, metadata):
            with self._lock:
                self.skipped += 1
            return
        if source.replaces is not None and (stored[0].etag if stored else "") != source.replaces:
            raise self._changed(source)
        if source.size <= PART or source.link:
            content = b"" if source.link or source.name.endswith("/") else _read(source, 0, PART)
            self.budget.spend(len(content))
            put = functools.partial(self.store.put, source.name, content, metadata, source.replaces)
            self._written(source, metadata, stop, lambda: workers.tried_again(put, stop))
            self._count(len(content))
        elif not self.store.in_parts:
            self.budget.spend(source.size)
            workers.tried_again(
                lambda: self.store.put_file(source.name, source.path, metadata), stop
            )
            self._count(source.size)
        else:
            large = self._large(source, metadata, stop)
            with self._lock:
                self.large.append(large)

    def _is_there(self, source: Source, metadata: Mapping[str, str], stop: threading.Event) -> bool:
        status = workers.tried_again(lambda: self.store.stat(source.name), stop)
        return _is_same(status, source, metadata)

    def _large(self, source: Source, metadata: Mapping[str, str], stop: threading.Event) -> _Large:
        upload, there = workers.tried_again(lambda: self.store.begin(source.name, metadata), stop)
        step = max(PART, -(-source.size // _MOST_PARTS // _MIB) * _MIB)
        return _Large(source, metadata, upload, there, step)

    def _piece(self, item: tuple[_Large, int], stop: threading.Event) -> None:
        large, number = item
        content = _read(large.source, (number - 1) * large.step, large.step)
        etag = hashlib.md5(content, usedforsecurity=False).hexdigest()
        if large.there.get(number) != etag:
            self.budget.spend(len(content))
            workers.tried_again(lambda: self.store.put_part(large.upload, number, content), stop)
            self._count(len(content))
        large.parts[number] = etag

    def _finished(self, large: _Large, stop: threading.Event) -> None:
        source = large.source
        finish = functools.partial(self.store.finish, large.upload, large.parts, source.replaces)
        self._written(source, large.metadata, stop, finish)
        if self._is_there(source, large.metadata, stop):
            return
        # It went on with an upload that was begun for another content: that one's metadata are wrong.
        workers.tried_again(lambda: self.store.delete(large.source.name), stop)
        again = self._large(large.source, large.metadata, stop)
        for number in _numbers(again):
            self._piece((again, number), stop)
        self.store.finish(again.upload, again.parts)
        if not self._is_there(large.source, large.metadata, stop):
            where = self.store.url.below(large.source.name)
            raise fail("object-checksum", place=where)

    def _written(
        self,
        source: Source,
        metadata: Mapping[str, str],
        stop: threading.Event,
        write: Callable[[], None],
    ) -> None:
        """Writes an object, if the one is there whose place it takes.

        Raises:
            FairleadError: another one is there.
        """
        try:
            write()
        except FairleadError as exc:
            if source.replaces is None or not is_lost(exc):
                raise
            if not self._is_there(source, metadata, stop):  # else only the answer was lost
                raise self._changed(source) from None

    def _changed(self, source: Source) -> FairleadError:
        place = hidden(str(self.store.url))
        return fail("object-sync-changed", place=place, count=1, few=source.name)

    def _count(self, count: int) -> None:
        with self._lock:
            self.moved += count

    def _each(self, items: object, do: Callable[..., None]) -> None:
        workers.each(
            items,  # type: ignore[arg-type]
            do,
            lambda count: self.on_progress("copying", count),
            lambda: self.moved,
        )


def _is_same(
    stored: tuple[Object, Mapping[str, str]] | None, source: Source, metadata: Mapping[str, str]
) -> bool:
    """Whether an object is what a file would become."""
    return (
        stored is not None
        and stored[0].size == (0 if source.link else source.size)
        and all(stored[1].get(key) == value for key, value in metadata.items())
    )


def _numbers(large: _Large) -> range:
    return range(1, -(-large.source.size // large.step) + 1)


def _read(source: Source, start: int, count: int) -> bytes:
    handle = os.open(source.path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        content = os.pread(handle, count, start)
    finally:
        os.close(handle)
    if len(content) != max(0, min(count, source.size - start)):
        raise fail("object-source-changed", path=source.path)
    return content


def _digest(path: str) -> str:
    digest = hashlib.sha256(usedforsecurity=False)
    with open(path, "rb") as stream:
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def _hex(content: bytes) -> str:
    return hashlib.sha256(content, usedforsecurity=False).hexdigest()
