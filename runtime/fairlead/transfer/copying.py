"""Copies a tree with a few threads, and reads back what it has written.

Each leaf is hashed as it comes from the source, and again as it comes from the destination, once
that has been written out and dropped from memory. Reading, hashing and writing release Python's
lock, so the threads run at the same time; they share large files.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import stat
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass

from fairlead.base.errors import FairleadError, fail
from fairlead.transfer import digest
from fairlead.transfer.digest import LEAF
from fairlead.transfer.model import Entry, Kind, Links, Tree
from fairlead.transfer.tree import changed, differences, extents, printable, scan

_PIECE = 16 * LEAF  # what a thread takes of a file at once, bytes
_POLL_S = 0.1
_FEW_FILES = 64  # above that, to sync all of the file system is faster
OnProgress = Callable[[str, int], None]  # the current phase, and how many more bytes of it are done


def silent(phase: str, count: int) -> None:
    """Discards progress."""


@dataclass(frozen=True)
class Copied:
    """A copy that was verified against its source.

    Attributes:
        files: digest of each file, by path; hard links once.
    """

    digest: str
    files: dict[str, str]
    copy_s: float
    verify_s: float


def copy(tree: Tree, target: str, on_progress: OnProgress = silent) -> Copied:
    """Copies ``tree`` to ``target``, which must not exist, and verifies the copy.

    Args:
        on_progress: called from this thread every now and then, with ``copying`` or ``verifying``.
    Raises:
        FairleadError: exit code 123; the source changed meanwhile, or what was read back differs.
        OSError: with the path; the caller removes what is at ``target`` then.
    """
    begun = time.monotonic()
    for entry in tree.entries:
        if entry.kind is Kind.FOLDER:
            os.mkdir(_at(target, entry.path), 0o700)
    work = _Work(tree, target)
    work.run(work.copy_leaf, lambda count: on_progress("copying", count))
    for entry in tree.entries:
        here = _at(target, entry.path)
        if entry.kind is Kind.LINK:
            os.symlink(entry.target, here)
        elif entry.same_as:
            os.link(_at(target, entry.same_as), here)
    for entry in reversed(tree.entries):  # the content of a folder before the folder
        if not entry.same_as:
            _set_mode_and_time(_at(target, entry.path), entry)
    _written_out(target, [_at(target, entry.path) for entry in work.files])
    copied = time.monotonic()
    work.run(work.verify_leaf, lambda count: on_progress("verifying", count))
    if work.wrong:
        raise _damaged(target, work.wrong)
    # Its links are as they should be: no rule is applied to them again.
    copy_now = scan(target, Links.KEEP, seen_as="\0", leave_special=True)
    if paths := differences(tree, copy_now, copied=True):
        raise _damaged(target, [(path, -1) for path in paths])
    files = work.digests()
    seconds = time.monotonic() - copied
    return Copied(digest.of_tree(tree, files), files, copied - begun, seconds)


def unchanged(tree: Tree, links: Links, seen_as: str = "") -> None:
    """Scans the source again.

    Raises:
        FairleadError: exit code 123; it differs from ``tree``.
    """
    after = scan(tree.top, links, seen_as=seen_as, leave_special=True)
    if paths := differences(tree, after):
        raise changed(tree.top, [path or "." for path in paths])


def digests(tree: Tree, on_progress: OnProgress = silent) -> dict[str, str]:
    """The digest of each file of a tree, read from its storage again; hard links once."""
    work = _Work(tree, tree.top)
    work.run(work.hash_leaf, lambda count: on_progress("verifying", count))
    return work.digests()


def remove(path: str) -> None:
    """Removes what is at ``path``, also where its folders are not writable; never follows a link.

    ``shutil.rmtree`` changes no permissions, and recurses: trees may be deeper than Python calls.

    Raises:
        OSError: with the path.
    """
    try:
        if not stat.S_ISDIR(os.lstat(path).st_mode):
            os.unlink(path)
            return
    except FileNotFoundError:
        return
    folders = [path]
    for folder in folders:  # grows
        with contextlib.suppress(PermissionError):
            os.chmod(folder, 0o700)
        with os.scandir(folder) as listing:
            for item in list(listing):
                if item.is_dir(follow_symlinks=False):
                    folders.append(item.path)
                else:
                    os.unlink(item.path)
    for folder in reversed(folders):
        os.rmdir(folder)


def _at(top: str, path: str) -> str:
    return f"{top}/{path}" if path else top


# --- threads -----------------------------------------------------------------------------------


class _Work:
    """What the threads of one copy share: the files of a tree and the digests of their leaves.

    Attributes:
        wrong: files, and where a leaf begins that was not read back as it was written.
    """

    def __init__(self, tree: Tree, target: str):
        self.files, self.target = tree.contents, target
        self.leaves = [[b""] * -(-file.size // LEAF) for file in self.files]
        self.wrong: list[tuple[str, int]] = []

    def digests(self) -> dict[str, str]:
        leaves = zip(self.files, self.leaves, strict=True)
        return {file.path: digest.of_file(file.size, each) for file, each in leaves}

    def run(
        self,
        do: Callable[[int, int, int, memoryview], None],
        on_progress: Callable[[int], None],
    ) -> None:
        """Calls ``do`` with each leaf of each file in some threads; reports bytes to its caller.

        Threads wait for storage more than they compute. All end as soon as one fails, and before this returns.
        """
        pieces, lock, stop = self._pieces(), threading.Lock(), threading.Event()
        done = reported = active = 0

        def work() -> None:
            nonlocal active
            with lock:
                active += 1
            try:
                work_on()
            finally:
                with lock:
                    active -= 1

        def work_on() -> None:
            nonlocal done
            buffer = memoryview(bytearray(LEAF))
            while True:
                with lock:
                    number, start, end = next(pieces, (0, 0, -1))
                if end < 0:
                    return
                for begin in range(start, end, LEAF) if end else (0,):
                    if stop.is_set():
                        return
                    do(number, begin, min(begin + LEAF, end), buffer)
                    with lock:
                        done += min(begin + LEAF, end) - begin

        count = min(max(2, min(8, len(os.sched_getaffinity(0)))), max(1, len(self.files)))
        try:
            with ThreadPoolExecutor(count) as pool:
                try:
                    pending = {pool.submit(work) for _ in range(count)}
                    while pending:
                        ended, pending = wait(pending, _POLL_S, FIRST_EXCEPTION)
                        for thread in ended:
                            thread.result()
                        on_progress(done - reported)
                        reported = done
                finally:
                    stop.set()
        finally:
            # Ctrl-C while a thread starts: the pool does not know it yet, and does not wait for it.
            while active:
                time.sleep(_POLL_S)

    def _pieces(self) -> Iterator[tuple[int, int, int]]:
        """``(file, start, end)``; an empty file is one piece of nothing."""
        for number, file in enumerate(self.files):
            for start in range(0, max(file.size, 1), _PIECE):
                yield number, start, min(start + _PIECE, file.size)

    def copy_leaf(self, number: int, start: int, end: int, buffer: memoryview) -> None:
        file = self.files[number]
        target = _at(self.target, file.path)
        with (
            _opened(file.source, os.O_RDONLY) as source,
            _opened(target, os.O_WRONLY | os.O_CREAT) as out,
        ):
            now = os.fstat(source)
            if (now.st_dev, now.st_ino) != file.stamp[:2] or now.st_size != file.size:
                raise changed(file.source, ["it was replaced, or its size changed"])
            with _named(target):
                # The first thread gives it its size, and with it the holes.
                if os.fstat(out).st_size < file.size:
                    os.truncate(out, file.size)
            if not end:
                return
            parts = _parts(source, file, start, end)
            if not parts:
                self.leaves[number][start // LEAF] = digest.empty_leaf(end - start)
                return
            with _named(file.source):
                content = _read(source, start, end, buffer)
            if content is None:
                raise changed(file.source, ["it became shorter"])
            self.leaves[number][start // LEAF] = digest.leaf(content)
            with _named(target):
                for begin, stop in parts:
                    _write(out, content[begin - start : stop - start], begin)

    def verify_leaf(self, number: int, start: int, end: int, buffer: memoryview) -> None:
        known = self.leaves[number][start // LEAF] if end else b""
        if end and self._stored_leaf(number, start, end, buffer) != known:
            self.wrong.append((self.files[number].path, start))

    def hash_leaf(self, number: int, start: int, end: int, buffer: memoryview) -> None:
        if end:
            self.leaves[number][start // LEAF] = self._stored_leaf(number, start, end, buffer)

    def _stored_leaf(self, number: int, start: int, end: int, buffer: memoryview) -> bytes:
        """The digest of a leaf that was written, as its storage returns it."""
        file = self.files[number]
        target = _at(self.target, file.path)
        with _opened(target, os.O_RDONLY) as handle:
            with contextlib.suppress(OSError):
                # So that it comes from the disk, and not from the memory that it was written through.
                os.posix_fadvise(handle, start, end - start, os.POSIX_FADV_DONTNEED)
            if not _parts(handle, file, start, end):
                return digest.empty_leaf(end - start)
            with _named(target):
                content = _read(handle, start, end, buffer)
        return digest.leaf(content) if content is not None else b""


def _parts(handle: int, file: Entry, start: int, end: int) -> list[tuple[int, int]]:
    return list(extents(handle, start, end)) if file.data < file.size else [(start, end)]


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
    """Adds the path to an OSError: reads and writes know a number only."""
    try:
        yield
    except OSError as exc:
        exc.filename = exc.filename if isinstance(exc.filename, str) else path
        raise


# --- what is not content -----------------------------------------------------------------------


def _set_mode_and_time(path: str, entry: Entry) -> None:
    if entry.kind is not Kind.LINK:
        os.chmod(path, entry.mode)
    with contextlib.suppress(NotImplementedError):
        os.utime(path, ns=(entry.mtime_ns, entry.mtime_ns), follow_symlinks=False)


def _written_out(target: str, files: Sequence[str]) -> None:
    """Waits until the copy is on its storage: file by file, or by syncfs(2) for many files."""
    if len(files) <= _FEW_FILES:
        for path in files:
            with _opened(path, os.O_RDONLY) as handle, _named(path):
                os.fsync(handle)
        return
    with _opened(target, os.O_RDONLY) as handle:
        if ctypes.CDLL(None, use_errno=True).syncfs(handle):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), target)


def _damaged(target: str, wrong: list[tuple[str, int]]) -> FairleadError:
    path, offset = min(wrong)
    where = f", between byte {offset} and {offset + LEAF}" if offset >= 0 else ""
    why = f"; {len(wrong) - 1} more places differ" if len(wrong) > 1 else ""
    return fail("stage-checksum", at=printable(_at(target, path)), where=where, why=why)
