"""Copies a tree with a few threads, and reads back what it has written.

Each leaf is hashed as it comes from the source, and again as it comes from the destination, once
that has been written out and dropped from memory. Reading, hashing and writing hold no lock of
Python's, so threads work side by side; large files are shared between them.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import stat
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from fairlead.base.errors import ExitCode, FairleadError, error
from fairlead.transfer import digest
from fairlead.transfer.digest import LEAF
from fairlead.transfer.model import Entry, Kind, Links, Tree
from fairlead.transfer.tree import changed, differences, extents, printable, scan

_PIECE = 16 * LEAF  # what a thread takes of a file at once, bytes
_POLL_S = 0.1
_FEW_FILES = 64  # above that, to sync all of the file system is faster
OnProgress = Callable[[str, int], None]  # what is being done, and how many bytes of it were


@dataclass(frozen=True)
class Copied:
    """A copy that was found to be what its source is.

    Attributes:
        files: digest of each file, by path; hard links once.
    """

    digest: str
    files: dict[str, str]
    copy_s: float
    verify_s: float


@dataclass
class _Work:
    """What the threads of one copy share."""

    entries: Sequence[Entry]
    target: str
    leaves: list[list[bytes]]
    wrong: list[tuple[str, int]] = field(default_factory=list)


def threads_here() -> int:
    """How many threads are worth having: they wait for storage more than they compute."""
    return max(2, min(8, len(os.sched_getaffinity(0))))


def copy(tree: Tree, target: str, on_progress: OnProgress = lambda what, amount: None) -> Copied:
    """Copies ``tree`` to ``target``, which must not be there, and verifies the copy.

    Args:
        on_progress: called from this thread every now and then, with ``copying`` or ``verifying``.
    Raises:
        FairleadError: exit code 123; the source changed meanwhile, or what was read back differs.
        OSError: with the path; what is at ``target`` then is for the caller to remove.
    """
    begun = time.monotonic()
    files = [e for e in tree.entries if e.kind is Kind.FILE and not e.same_as]
    leaves = [[b""] * (-(-entry.size // LEAF)) for entry in files]
    work = _Work(files, target, leaves)
    for entry in tree.entries:
        if entry.kind is Kind.FOLDER:
            os.mkdir(_at(target, entry.path), 0o700)
    _pieces(work, _copy_piece, lambda amount: on_progress("copying", amount))
    for entry in tree.entries:
        here = _at(target, entry.path)
        if entry.kind is Kind.LINK:
            os.symlink(entry.target, here)
        elif entry.same_as:
            os.link(_at(target, entry.same_as), here)
    for entry in reversed(tree.entries):  # what is in a folder before the folder
        _dressed(_at(target, entry.path), entry)
    _written_out(target, [_at(target, entry.path) for entry in files])
    copied = time.monotonic()
    _pieces(work, _verify_piece, lambda amount: on_progress("verifying", amount))
    if work.wrong:
        raise _damaged(target, work.wrong)
    # Its own links are as they should be: no rule is applied to them again.
    if paths := differing(tree, scan(target, Links.KEEP, seen_as="\0", leave_special=True)):
        raise _damaged(target, [(path, -1) for path in paths])
    digests = {e.path: digest.of_file(e.size, leaves[n]) for n, e in enumerate(files)}
    return Copied(
        digest.of_tree(tree, digests), digests, copied - begun, time.monotonic() - copied
    )  # fmt: skip


def unchanged(tree: Tree, links: Links, seen_as: str = "") -> None:
    """Looks at the source again.

    Raises:
        FairleadError: exit code 123; it is not what it was.
    """
    after = scan(tree.top, links, seen_as=seen_as, leave_special=True)
    if paths := differences(tree, after):
        raise changed(tree.top, [path or "." for path in paths])


def digests(tree: Tree, on_progress: OnProgress = lambda what, amount: None) -> dict[str, str]:
    """The digest of each file of a tree, read anew from its storage; hard links once."""
    files = [e for e in tree.entries if e.kind is Kind.FILE and not e.same_as]
    work = _Work(files, tree.top, [[b""] * (-(-entry.size // LEAF)) for entry in files])
    _pieces(work, _hash_piece, lambda amount: on_progress("verifying", amount))
    return {e.path: digest.of_file(e.size, work.leaves[n]) for n, e in enumerate(files)}


def remove(path: str) -> None:
    """Removes what is at ``path``, also where its folders may not be written to; never follows a link.

    Raises:
        OSError: with the path.
    """
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return
    if not stat.S_ISDIR(found.st_mode):
        os.unlink(path)
        return
    todo = [(path, False)]
    while todo:
        folder, emptied = todo.pop()
        if emptied:
            os.rmdir(folder)
            continue
        with contextlib.suppress(PermissionError):
            os.chmod(folder, 0o700)
        todo.append((folder, True))
        with os.scandir(folder) as listing:
            for item in list(listing):
                if item.is_dir(follow_symlinks=False):
                    todo.append((item.path, False))
                else:
                    os.unlink(item.path)


def _at(top: str, path: str) -> str:
    return f"{top}/{path}" if path else top


# --- threads -----------------------------------------------------------------------------------

_Piece = Callable[[_Work, int, int, int, memoryview], None]


def _pieces(work: _Work, do: _Piece, on_progress: Callable[[int], None]) -> None:
    """Does every piece of every file with some threads, and reports the bytes done to its caller."""
    pieces = sum(max(1, -(-entry.size // _PIECE)) for entry in work.entries)
    pool = _Pool(work, do, min(threads_here(), pieces))
    reported = 0
    try:
        for thread in pool.threads:
            thread.start()
        while pool.threads and not pool.done.wait(_POLL_S):
            on_progress(pool.moved - reported)
            reported = pool.moved
    finally:
        pool.stop.set()
        for thread in pool.threads:
            if thread.ident is not None:
                thread.join()
    if pool.failed:
        raise pool.failed[0]
    on_progress(pool.moved - reported)


class _Pool:
    """Threads that take pieces until there are none, one fails, or they are stopped.

    Attributes:
        moved: bytes done by all of them.
        done: set by the last one that ends.
    """

    def __init__(self, work: _Work, do: _Piece, count: int):
        self._work, self._do = work, do
        self._source, self._lock = _cut(work.entries), threading.Lock()
        self.stop, self.done = threading.Event(), threading.Event()
        self.failed: list[BaseException] = []
        self.moved = 0
        self._living = count
        self.threads = [threading.Thread(target=self._run, daemon=True) for _ in range(count)]

    def _run(self) -> None:
        buffer = memoryview(bytearray(LEAF))
        try:
            while not self.stop.is_set() and (piece := self._next()):
                self._piece(*piece, buffer)
        except BaseException as exc:
            self.failed.append(exc)
            self.stop.set()
        finally:
            with self._lock:
                self._living -= 1
                if not self._living:
                    self.done.set()

    def _next(self) -> tuple[int, int, int] | None:
        with self._lock:
            return next(self._source, None)

    def _piece(self, number: int, start: int, end: int, buffer: memoryview) -> None:
        for begin in range(start, end, LEAF) if end else (0,):
            if self.stop.is_set():
                return
            last = min(begin + LEAF, end)
            self._do(self._work, number, begin, last, buffer)
            with self._lock:
                self.moved += last - begin


def _cut(entries: Sequence[Entry]) -> Iterator[tuple[int, int, int]]:
    """``(file, start, end)``; an empty file is one piece of nothing."""
    for number, entry in enumerate(entries):
        yield number, 0, min(_PIECE, entry.size)
        for start in range(_PIECE, entry.size, _PIECE):
            yield number, start, min(start + _PIECE, entry.size)


def _copy_piece(work: _Work, number: int, start: int, end: int, buffer: memoryview) -> None:
    entry = work.entries[number]
    target = _at(work.target, entry.path)
    with (
        _opened(entry.source, os.O_RDONLY) as source,
        _opened(target, os.O_WRONLY | os.O_CREAT) as out,
    ):
        found = os.fstat(source)
        if (found.st_dev, found.st_ino) != entry.stamp[:2] or found.st_size != entry.size:
            raise changed(entry.source, ["it was replaced, or its size changed"])
        with _named(target):
            # Whoever comes first gives it its size, and with it the holes.
            if os.fstat(out).st_size < entry.size:
                os.truncate(out, entry.size)
        if not end:
            return
        parts = _parts(source, entry, start, end)
        if not parts:
            work.leaves[number][start // LEAF] = digest.empty_leaf(end - start)
            return
        with _named(entry.source):
            content = _read(source, start, end, buffer)
        if content is None:
            raise changed(entry.source, ["it became shorter"])
        work.leaves[number][start // LEAF] = digest.leaf(content)
        with _named(target):
            for begin, stop in parts:
                _write(out, content[begin - start : stop - start], begin)


def _verify_piece(work: _Work, number: int, start: int, end: int, buffer: memoryview) -> None:
    if end and _leaf_of(work, number, start, end, buffer) != work.leaves[number][start // LEAF]:
        work.wrong.append((work.entries[number].path, start))


def _hash_piece(work: _Work, number: int, start: int, end: int, buffer: memoryview) -> None:
    if end:
        work.leaves[number][start // LEAF] = _leaf_of(work, number, start, end, buffer)


def _leaf_of(work: _Work, number: int, start: int, end: int, buffer: memoryview) -> bytes:
    """The digest of a leaf that was written, as its storage gives it back."""
    entry = work.entries[number]
    target = _at(work.target, entry.path)
    with _opened(target, os.O_RDONLY) as handle:
        with contextlib.suppress(OSError):
            # So that it comes from the disk, and not from the memory that it was written through.
            os.posix_fadvise(handle, start, end - start, os.POSIX_FADV_DONTNEED)
        if not _parts(handle, entry, start, end):
            return digest.empty_leaf(end - start)
        with _named(target):
            content = _read(handle, start, end, buffer)
    return digest.leaf(content) if content is not None else b""


def _parts(handle: int, entry: Entry, start: int, end: int) -> list[tuple[int, int]]:
    return list(extents(handle, start, end)) if entry.data < entry.size else [(start, end)]


def _read(handle: int, start: int, end: int, buffer: memoryview) -> memoryview | None:
    """A leaf's bytes, holes as zeros; None when the file ends before."""
    content, got = buffer[: end - start], 0
    while got < len(content):
        more = os.preadv(handle, [content[got:]], start + got)
        if not more:
            return None
        got += more
    return content


def _write(handle: int, content: memoryview, offset: int) -> None:
    while content:
        done = os.pwrite(handle, content, offset)
        content, offset = content[done:], offset + done


@contextlib.contextmanager
def _opened(path: str, flags: int) -> Iterator[int]:
    handle = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        yield handle
    finally:
        with _named(path):
            os.close(handle)


@contextlib.contextmanager
def _named(path: str) -> Iterator[None]:
    """Gives an error of the system the path: reads and writes know a number only."""
    try:
        yield
    except OSError as exc:
        exc.filename = exc.filename if isinstance(exc.filename, str) else path
        raise


# --- what is not content -----------------------------------------------------------------------


def _dressed(path: str, entry: Entry) -> None:
    """Gives a copy its permissions and time."""
    if entry.same_as:
        return
    if entry.kind is not Kind.LINK:
        os.chmod(path, entry.mode)
    times = (entry.mtime_ns, entry.mtime_ns)
    with contextlib.suppress(NotImplementedError):
        os.utime(path, ns=times, follow_symlinks=False)


def _written_out(target: str, files: Sequence[str]) -> None:
    """Waits until what was copied is on its storage: file by file, of many files at once."""
    if len(files) <= _FEW_FILES:
        for path in files:
            with _opened(path, os.O_RDONLY) as handle, _named(path):
                os.fsync(handle)
        return
    handle = os.open(target, os.O_RDONLY | os.O_CLOEXEC)
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.syncfs(handle):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), target)
    finally:
        os.close(handle)


def differing(one: Tree, two: Tree) -> list[str]:
    """Where two trees differ in names, kinds, permissions, sizes or links; contents apart."""

    def shape(seen: Tree) -> dict[str, tuple[object, ...]]:
        # A link's own permissions mean nothing, and file systems give it others.
        return {
            e.path: (e.kind, 0 if e.kind is Kind.LINK else e.mode, e.size, e.target, e.same_as)
            for e in seen.entries
        }

    want, have = shape(one), shape(two)
    return sorted(path for path in want.keys() | have.keys() if want.get(path) != have.get(path))


def _damaged(target: str, wrong: list[tuple[str, int]]) -> FairleadError:
    path, offset = sorted(wrong)[0]
    return FairleadError(
        error(
            "stage-checksum",
            at=printable(_at(target, path)),
            where=f", between byte {offset} and {offset + LEAF}" if offset >= 0 else "",
            why=f"; {len(wrong) - 1} more places differ" if len(wrong) > 1 else "",
        ),
        ExitCode.LAUNCH_FAILED,
    )
