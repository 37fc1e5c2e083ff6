"""From a store to files: in parallel by pieces, going on after a kill, verified from the storage they came to."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fairlead.base import data_list
from fairlead.base.errors import fail
from fairlead.objects import workers
from fairlead.objects.budget import Budget
from fairlead.objects.cache import Cache, key_of
from fairlead.objects.model import LINK, MODE, PART, SHA256, Listing, Object, Store
from fairlead.objects.names import folders_and_files
from fairlead.objects.ranges import whole

OnProgress = Callable[[str, int], None]
_CHUNK = 4 << 20
_ROUNDS = 3  # downloads of a file whose bytes are wrong


@dataclass(frozen=True)
class Fetched:
    """Files that came from a store.

    Attributes:
        files: sha256 by name.
        digest: of the data set, :func:`fairlead.base.data_list.set_digest`.
        moved: bytes that travelled; the others were there.
        unverified: names of which the store has no checksum that can be compared.
        copy_s, verify_s: seconds; files are read back while others come, so the second is that of a thread's share.
    """

    files: Mapping[str, str]
    digest: str
    moved: int
    unverified: tuple[str, ...]
    copy_s: float
    verify_s: float


@dataclass
class _File:
    """One object on its way.

    Attributes:
        todo: where pieces begin that have not come yet.
        metadata: as the store gave it with a piece; None before one has come.
    """

    each: Object
    key: str
    path: Path
    lock: int
    todo: list[int]
    metadata: Mapping[str, str] | None = None

    def note(self, start: int) -> None:
        with open(f"{self.path}.parts", "a", encoding="ascii") as stream:
            stream.write(f"{start}\n")

    def close(self) -> None:
        if self.lock >= 0:
            os.close(self.lock)
            self.lock = -1


def fetch(
    store: Store,
    listing: Listing,
    target: str,
    cache: Cache,
    budget: Budget | None = None,
    on_progress: OnProgress = lambda phase, count: None,
) -> Fetched:
    """Brings a listing's objects to ``target``, which must not exist: all of them, or none.

    Raises:
        FairleadError: an object changed since it was listed, its bytes are wrong, the store fails or refuses.
        OSError: of the storage, with the path.
    """
    begun = time.monotonic()
    folders, objects = folders_and_files(listing)
    cache.make()
    if not listing.single:
        os.mkdir(target, 0o700)
    for folder in folders:
        os.mkdir(f"{target}/{folder}", 0o700)
    load = _Load(store, listing.url, target, cache, budget or Budget(0), on_progress)
    try:
        load.begin(objects)
        load.download()
    except BaseException:
        load.close()
        load.give_up()
        raise
    load.leave()
    files, seconds = dict(load.files), time.monotonic() - begun
    return Fetched(
        files,
        data_list.set_digest(files.items()),
        load.moved,
        tuple(load.unverified),
        seconds - min(load.verify_s, seconds),
        min(load.verify_s, seconds),
    )


class _Load:
    """One call of :func:`fetch`.

    Attributes:
        files: sha256 by name, of those that have their place.
        modes: permissions by name, where the writer has noted them.
        links: what objects that stand for links lead to.
        loading: objects that are to come.
        verify_s: seconds that threads read back, divided by their number.
    """

    def __init__(
        self,
        store: Store,
        url: str,
        target: str,
        cache: Cache,
        budget: Budget,
        on_progress: OnProgress,
    ):
        self.store, self.url, self.target = store, url, target
        self.cache, self.budget = cache, budget
        self.on_progress = on_progress
        self.files: dict[str, str] = {}
        self.modes: dict[str, int] = {}
        self.links: dict[str, str] = {}
        self.unverified: list[str] = []
        self.loading: list[Object] = []
        # As many as threads work at: a process may not open all files of a large set.
        self._files: dict[Path, _File] = {}
        self.moved, self.verify_s = 0, 0.0
        self._lock = threading.Lock()

    def begin(self, objects: tuple[Object, ...]) -> None:
        """Finds what is in the cache, and what has come of the others; compares what is found."""
        there: list[tuple[Object, str]] = []
        for each in objects:
            sha256 = self.cache.known(self.url, each)
            if each.size and self.cache.has(sha256):  # an empty one may stand for a link
                there.append((each, sha256))
            else:
                self.loading.append(each)

        def compared(item: tuple[Object, str], stop: threading.Event) -> None:
            each, sha256 = item
            with contextlib.suppress(FileNotFoundError):  # another run may remove it at any time
                if self.cache.serve(sha256, self._path(each.name)):
                    self.files[each.name] = sha256
                    return
            if not stop.is_set():
                with self._lock:
                    self.loading.append(each)

        self._each(there, compared, "verifying")

    def _opened(self, each: Object) -> _File:
        """The place of a download: an interrupted one's, unless another process is at it."""
        key = key_of(self.url, each)
        path = self._partial(key)
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(handle)
            path = path.with_name(f"{path.name}.{os.getpid()}.{os.urandom(4).hex()}")
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        done: set[int] = set()
        if os.fstat(handle).st_size == each.size:
            with contextlib.suppress(OSError, ValueError):
                lines = Path(f"{path}.parts").read_text("ascii").split("\n")[:-1]
                done = {int(line) for line in lines}
        else:
            os.ftruncate(handle, each.size)
            Path(f"{path}.parts").unlink(missing_ok=True)
        file = _File(each, key, path, handle, [n for n in _starts(each) if n not in done])
        with self._lock:
            self._files[path] = file
        return file

    def _partial(self, key: str) -> Path:
        return self.cache.top / "partial" / f"{key}.{os.geteuid()}"

    def download(self) -> None:
        """Brings what is missing; the thread that brings the last piece of a file compares it."""
        self._each(self._pieces(), self._piece, "copying")

    def _pieces(self) -> Iterator[tuple[_File, int | None]]:
        """Files with the starts of their missing pieces; None if all had come before."""
        for each in self.loading:
            file = self._opened(each)
            todo = tuple(file.todo)
            for start in todo or (None,):
                yield file, start

    def _piece(self, item: tuple[_File, int | None], stop: threading.Event) -> None:
        file, start = item
        if start is not None:
            self._brought(file, start, stop)
            with self._lock:
                if stop.is_set():
                    return
                file.todo.remove(start)
                if file.todo:
                    return
        self._verified(file, stop)

    def _brought(self, file: _File, start: int, stop: threading.Event) -> None:
        """Brings one piece."""
        end = min(start + PART, file.each.size)

        def once() -> None:
            at = start
            with whole(self.store, file.each, start, end) as body:
                file.metadata = body.metadata
                for chunk in body.chunks:
                    if stop.is_set():
                        return
                    self.budget.spend(len(chunk))
                    _write(file, chunk, at)
                    at += len(chunk)
                    with self._lock:
                        self.moved += len(chunk)

        workers.tried_again(once, stop)
        if not stop.is_set():
            file.note(start)

    def _verified(self, file: _File, stop: threading.Event) -> None:
        """Compares a file with what the store knows of it; one that differs is brought again, a few times."""
        for _ in range(_ROUNDS):
            begun = time.monotonic()
            right = self._right(file)
            with self._lock:
                self.verify_s += (time.monotonic() - begun) / workers.count()
            if right or stop.is_set():
                return
            Path(f"{file.path}.parts").unlink(missing_ok=True)
            for start in _starts(file.each):
                self._brought(file, start, stop)
        Path(f"{file.path}.parts").unlink(missing_ok=True)
        place = f"{self.url}/{file.each.name}".rstrip("/")
        raise fail("object-checksum", place=place)

    def _right(self, file: _File) -> bool:
        """Reads a file back; where it is what the store has, the cache takes it."""
        each = file.each
        if file.metadata is None and not each.sha256:
            # All pieces had come before: what the writer noted comes with the object's head.
            status = workers.tried_again(lambda: self.store.stat(each.name))
            if status is None or status[0].etag != each.etag:
                place = f"{self.url}/{each.name}".rstrip("/")
                raise fail("object-changed", place=place, reason="another version is there")
            file.metadata = status[1]
        metadata = file.metadata or {}
        expected = each.sha256 or metadata.get(SHA256, "")
        part = 0 if expected else self.store.part_bytes(each)
        sha256, parts = _digests(file.path, part)
        theirs = each.etag.strip('"')
        ours = etag_of(parts) if "-" in theirs else parts[0].hex()
        known = (expected and expected == sha256) or (part and ours == theirs)
        if not known and (expected or part):
            return False
        if not known:
            self.unverified.append(each.name)
        self._noted(each.name, metadata)
        executable = bool(self.modes.get(each.name, 0) & 0o100)
        kept = self.cache.add(file.path, sha256, file.key, executable)
        Path(f"{file.path}.parts").unlink(missing_ok=True)
        self._placed(each.name, sha256, None if kept else file.path)
        with self._lock:
            del self._files[file.path]
        file.close()
        return True

    def _placed(self, name: str, sha256: str, own: Path | None) -> None:
        """Shows a file of the cache under its name; or moves there what the cache could not take."""
        path = self._path(name)
        if name in self.links:
            if not _stays(name, self.links[name]):
                few = f"{name!r}: a link that leads out"
                raise fail("object-names", place=self.url, count=1, few=few, more="")
            os.symlink(self.links[name], path)
            if own:
                own.unlink()
        elif own:
            shutil.move(own, path)
        else:
            self.cache.place(sha256, path)
        self.files[name] = sha256

    def _path(self, name: str) -> str:
        return f"{self.target}/{name}" if name else self.target

    def leave(self) -> None:
        """Leaves the cache as its limit says; where nothing is to stay, the files are this run's alone."""
        if not self.cache.limit:
            for sha256 in set(self.files.values()):
                self.cache.drop(sha256)
            for name in self.files:
                path = self._path(name)
                if not os.path.islink(path):
                    usual = 0o755 if os.stat(path).st_mode & 0o100 else 0o644
                    os.chmod(path, self.modes.get(name, usual) | 0o400)
        self.cache.shrink()
        self.cache.clear_if_empty()

    def _noted(self, name: str, metadata: Mapping[str, str]) -> None:
        with contextlib.suppress(KeyError, ValueError):
            self.modes[name] = int(metadata[MODE], 8) & 0o777
        with contextlib.suppress(KeyError):
            self.links[name] = metadata[LINK]

    def _each(
        self,
        items: object,
        do: Callable[..., None],
        phase: str,
    ) -> None:
        workers.each(
            items,  # type: ignore[arg-type]
            do,
            lambda count: self.on_progress(phase, count),
            lambda: self.moved if phase == "copying" else 0,
        )

    def give_up(self) -> None:
        """After a failure: what has come is left to the next run, or removed where it would take up memory."""
        if not self.cache.resumes:
            for each in self.loading:
                path = self._partial(key_of(self.url, each))
                for left in (path, Path(f"{path}.parts")):
                    left.unlink(missing_ok=True)
            for sha256 in set(self.files.values()):
                self.cache.drop(sha256)
        self.cache.clear_if_empty()

    def close(self) -> None:
        for file in self._files.values():
            file.close()


def _starts(each: Object) -> Sequence[int]:
    """Where the pieces of an object begin; an empty one is a piece, too."""
    return range(0, each.size, PART) if each.size else (0,)


def _write(file: _File, chunk: bytes, at: int) -> None:
    view = memoryview(chunk)
    try:
        while view:
            done = os.pwrite(file.lock, view, at)
            view, at = view[done:], at + done
    except OSError as exc:
        exc.filename = str(file.path)
        raise


def _digests(path: Path, part: int) -> tuple[str, list[bytes]]:
    """The sha256 of a file, and the MD5 of its parts of ``part`` bytes; of no use for 0."""
    whole = hashlib.sha256(usedforsecurity=False)
    parts: list[bytes] = []
    with path.open("rb") as stream:
        os.fsync(stream.fileno())
        with contextlib.suppress(OSError):
            os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        for block in _blocks(stream.fileno(), path.stat().st_size, part):
            piece = hashlib.md5(usedforsecurity=False)
            for chunk in block:
                whole.update(chunk)
                if part:
                    piece.update(chunk)
            parts.append(piece.digest())
    return whole.hexdigest(), parts


def _blocks(handle: int, size: int, part: int) -> Iterator[Iterator[bytes]]:
    step = part or max(size, 1)

    def chunks(start: int) -> Iterator[bytes]:
        at, end = start, min(start + step, size)
        while at < end and (chunk := os.pread(handle, min(_CHUNK, end - at), at)):
            yield chunk
            at += len(chunk)

    for start in range(0, max(size, 1), step):
        yield chunks(start)


def etag_of(parts: list[bytes]) -> str:
    """The ETag of an object that was written in these parts, by their MD5."""
    return f"{hashlib.md5(b''.join(parts), usedforsecurity=False).hexdigest()}-{len(parts)}"


def _stays(name: str, to: str) -> bool:
    """Whether a link leads to a place below the same top."""
    if to.startswith("/"):
        return False
    depth = name.count("/")
    for part in to.split("/"):
        depth += -1 if part == ".." else part not in ("", ".")
        if depth < 0:
            return False
    return True
