"""The cache on disk: downloads by hash, trees and images by key, and room to work in.

::

    blobs/sha256/HASH            every .deb and wheel, verified
    tools/DIGEST/                the locked tools, unpacked
    runtime/DIGEST.whl           our own wheel, by the digest of what it was made from
    debian/KEY.squashfs          the Debian part of a tree
    sources/KEY/                 what came of a source
    trees/KEY.squashfs, .json    an image without our wheel, and what is known of it
    images/KEY.sif               whole images
    images/by-name/NAME.json     which of them is the newest of a recipe
    locks/                       which builds are running
    work/                        half-made files; no other build reads them

What no build has used for a month is removed: it can be made again. Trees of the images that are
known by name stay, however old. A file gets its final name by a rename from ``work/``, synced, so a name means a whole file.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import shutil
import tempfile
import threading
import time
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from fairlead.base.errors import FairleadError, fail
from fairlead.base.paths import cache_dir
from fairlead.base.progress import Progress
from fairlead_build.base.digest import copy_file, sha256_of
from fairlead_build.base.jail import supervised

_FOLDERS = (
    "blobs/sha256", "debian", "sources", "trees", "tools", "images/by-name", "runtime", "locks",
    "work",
)  # fmt: skip


@dataclass(frozen=True)
class Cache:
    """Names below one cache folder.

    Attributes:
        archive: a folder of files by hash that is asked before any index; ``resolve/archive.py``.
    """

    root: Path
    archive: Path | None = None

    @classmethod
    def default(cls, archive: Path | None = None) -> Cache:
        """The user's cache.

        Args:
            archive: an archive to use; ``$FAIRLEAD_ARCHIVE`` otherwise.
        """
        named = os.environ.get("FAIRLEAD_ARCHIVE")
        return cls(cache_dir(), archive or (Path(named).expanduser() if named else None))

    def blob(self, sha256: str) -> Path:
        return self.root / "blobs" / "sha256" / sha256

    def partial(self, name: str) -> Path:
        """A download that may be resumed."""
        return self.root / "work" / f"part-{name}"

    def debian(self, key: str) -> Path:
        return self.root / "debian" / f"{key}.squashfs"

    def source(self, key: str) -> Path:
        return self.root / "sources" / key

    def tree(self, key: str) -> Path:
        return self.root / "trees" / f"{key}.squashfs"

    def tree_record(self, key: str) -> Path:
        return self.root / "trees" / f"{key}.json"

    def tools(self, digest: str) -> Path:
        return self.root / "tools" / digest

    def image(self, key: str) -> Path:
        return self.root / "images" / f"{key}.sif"

    def by_name(self, name: str) -> Path:
        return self.root / "images" / "by-name" / f"{name}.json"

    def wheel(self, digest: str) -> Path:
        return self.root / "runtime" / f"{digest}.whl"

    def make(self) -> None:
        """Makes the folders.

        Raises:
            FairleadError: the cache cannot be written to.
        """
        try:
            for name in _FOLDERS:
                (self.root / name).mkdir(parents=True, exist_ok=True)
        except OSError as exc:
            raise self.unwritable(exc) from None

    def unwritable(self, exc: OSError) -> FairleadError:
        """The error of a cache that cannot be written to."""
        reason = exc.strerror or str(exc)
        return fail("cache-unwritable", filename=exc.filename or self.root, reason=reason)

    def removed(self, exc: OSError) -> FairleadError:
        """The error of a cache from which something was removed while it was in use."""
        return fail("cache-removed", filename=exc.filename or self.root)


@contextmanager
def holding(cache: Cache, name: str, progress: Progress, meanwhile: str) -> Iterator[None]:
    """Holds the lock called ``name``; who waits for it shows what the holder does ``meanwhile``."""
    path = cache.root / "locks" / f"{name}.lock"
    with path.open("a+", encoding="utf-8") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as exc:
            if exc.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                raise
            stream.seek(0)
            holder = stream.read().strip() or "another build"
            with progress.stage(f"wait for {holder}, which {meanwhile}"):
                fcntl.flock(stream, fcntl.LOCK_EX)
        stream.seek(0)
        stream.truncate()
        stream.write(f"process {os.getpid()}\n")
        stream.flush()
        yield


@contextmanager
def workspace(parent: Path, prefix: str, *, wait: bool = True) -> Iterator[Path]:
    """A folder of our own below ``parent``, gone when the block ends; dead builds' are removed first.

    Readable by all, since jails have other user ids.

    Args:
        wait: for its removal. A whole tree takes seconds; without, it is gone before this process ends.
    """
    parent.mkdir(parents=True, exist_ok=True)
    stem = f"{prefix}{os.getuid()}-"
    _sweep(parent, stem)
    folder, fd = _claim(parent, stem)
    try:
        yield folder
    finally:
        removed = threading.Event()
        threading.Thread(target=_remove, args=(folder, fd, removed)).start()
        if wait:
            # A join() that is interrupted takes the thread for ended: Python would end without it.
            removed.wait()


def _remove(folder: Path, fd: int, removed: threading.Event) -> None:
    try:
        remove_tree(folder)
        os.close(fd)
    finally:
        removed.set()


def _claim(parent: Path, stem: str) -> tuple[Path, int]:
    while True:
        folder = Path(tempfile.mkdtemp(prefix=stem, dir=parent))
        with suppress(FileNotFoundError):  # another build swept it before we held it
            # Held until this process ends, however it ends; that is how _sweep knows dead ones.
            fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            fcntl.flock(fd, fcntl.LOCK_EX)
            if folder.exists():
                folder.chmod(0o755)
                return folder, fd
            os.close(fd)


def _sweep(parent: Path, stem: str) -> None:
    for folder in parent.glob(f"{stem}*"):
        try:
            fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError:
            continue
        try:
            if os.fstat(fd).st_uid == os.getuid():
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                remove_tree(folder)
        except OSError:
            pass  # its owner is alive
        finally:
            os.close(fd)


def remove_tree(folder: Path) -> None:
    """Removes ``folder``, also what a jail left in it under subordinate user ids."""
    shutil.rmtree(folder, ignore_errors=True)
    if folder.exists() and os.getuid() != 0:
        with supervised("fairlead_build.cache.removal", folder) as process:
            process.communicate()


def publish(made: Path, final: Path) -> None:
    """Gives ``made`` its final name: synced, then renamed. Both must be on one file system."""
    final.parent.mkdir(parents=True, exist_ok=True)
    with made.open("rb") as stream:
        os.fsync(stream.fileno())
    made.replace(final)


class Blob(Protocol):
    """Anything that has a hash."""

    @property
    def sha256(self) -> str: ...


B = TypeVar("B", bound=Blob)


def missing(files: Iterable[B], cache: Cache) -> list[B]:
    """The files that the store lacks."""
    return [file for file in files if not cache.blob(file.sha256).is_file()]


def adopt(cache: Cache, made: Path, sha256: str, size: int | None, what: str, remedy: str) -> None:
    """Takes a downloaded file into the store, after checking it.

    Raises:
        FairleadError: it is not the file that the lock names.
    """
    real_size = made.stat().st_size
    why = f"it has {real_size} bytes, the lock says {size}"
    if size in (None, real_size):
        if (real := sha256_of(made)) == sha256:
            made.chmod(0o644)
            return publish(made, cache.blob(sha256))
        why = f"its sha256 is {real}, the lock says {sha256}"
    made.unlink()  # wrong content is never resumed
    raise fail("hash-mismatch", what=what, made_name=made.name, why=why, remedy=remedy)


def copy_blob(cache: Cache, sha256: str, target: Path) -> None:
    """Copies a blob to ``target``, hashing it on the way: a rotten disk is noticed before use.

    Raises:
        FairleadError: the blob has changed since it was stored; it is removed.
    """
    _same(cache.blob(sha256), copy_file(cache.blob(sha256), target))


def check_blob(cache: Cache, sha256: str) -> Path:
    """The path of a blob, hashed now.

    Raises:
        FairleadError: the blob has changed since it was stored; it is removed.
    """
    path = cache.blob(sha256)
    _same(path, sha256_of(path))
    return path


def _same(path: Path, real: str) -> None:
    if path.name != real:
        path.unlink()
        raise fail("blob-rotten", path=path, real=real)


def need_space(folder: Path, need: int, what: str, variable: str) -> None:
    """Checks that ``need`` bytes fit into the file system of ``folder``.

    Raises:
        FairleadError: they do not.
    """
    free = shutil.disk_usage(folder).free
    if free < need:
        given: dict[str, Any] = {"need": need / 1e6, "free": free / 1e6, "variable": variable}
        raise fail("no-space-not-enough", what=what, folder=folder, **given)


def scratch_parent(need: int) -> Path:
    """Where a tree of ``need`` bytes is unpacked: in memory when there is plenty, else on disk.

    On disk, building TensorFlow's image takes half as long again, and a changed pip line twice as long.

    Raises:
        FairleadError: there is no room.
    """
    memory = Path("/dev/shm")
    if "TMPDIR" not in os.environ and os.access(memory, os.W_OK):
        kilobytes = re.search(
            r"^MemAvailable:\s*(\d+)", Path("/proc/meminfo").read_text("utf-8"), re.M
        )
        unused = int(kilobytes[1]) * 1024 if kilobytes else 0  # what fits without swapping
        if min(unused, shutil.disk_usage(memory).free) > 2 * need:
            return memory
    folder = Path(tempfile.gettempdir()).resolve()
    need_space(folder, need, "unpacking the image", "TMPDIR")
    return folder


# --- what is kept between builds ---------------------------------------------------------------

KEPT_S = 30 * 24 * 3600.0


def used(*paths: Path) -> None:
    """Records that a build uses ``paths`` now; what cannot be written to is not swept either."""
    for path in paths:
        with suppress(OSError):
            os.utime(path)


def sweep(cache: Cache, trees: Collection[str]) -> None:
    """Removes Debian parts, sources and trees unused for ``KEPT_S``, but for the keys ``trees``."""
    oldest = time.time() - KEPT_S
    for name in ("debian", "sources", "trees"):
        for path in (cache.root / name).glob("*"):
            if path.name.partition(".")[0] in trees:
                continue
            # Another build may have removed it meanwhile.
            with suppress(OSError):
                if path.lstat().st_mtime < oldest:
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
