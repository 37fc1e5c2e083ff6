"""What came from stores and stays on a node: files by their sha256, up to a limit, the least recently used go first.

``objects/SHA256`` are whole files; ``known/KEY`` says which sha256 a version of an object has; ``used/SHA256`` is touched
at each use; ``partial/KEY`` and ``partial/KEY.parts`` are interrupted downloads, which the next run goes on with. A folder
that several users can write to is shared by them: a file's name is its content, and each use compares. What another user notes
about versions counts for nothing, and another user's file is copied before it is compared, since its owner could change it
afterwards.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from fairlead.base.errors import fail
from fairlead.objects.model import Object

VARIABLE = "FAIRLEAD_DATA_CACHE"  # a folder that takes the place of the usual one
_RESTED_S = (
    7 * 86400.0
)  # how long an interrupted download is kept, and its files where no limit is given
_SHA256 = re.compile(r"[0-9a-f]{64}")
_CHUNK = 4 << 20


@dataclass(frozen=True)
class Kept:
    """A file of a cache."""

    sha256: str
    bytes: int
    used: float


def folder_in(root: Path) -> Path:
    """The cache of this user in a node's storage."""
    given = os.environ.get(VARIABLE)
    return Path(given) if given else root / f"fairlead-cache.{os.geteuid()}"


def key_of(url: str, each: Object) -> str:
    """What names one version of an object."""
    text = "\0".join((url, each.name, each.etag, str(each.size)))
    return hashlib.sha256(text.encode()).hexdigest()[:40]


class Cache:
    """One folder.

    Args:
        limit: bytes that may stay; 0 for none.
        resumes: what came of a download that fails is kept for the next run.
    """

    def __init__(self, top: Path, limit: int = 0, resumes: bool = True):
        self.top, self.limit, self.resumes = top, limit, resumes

    def make(self) -> None:
        """Makes its folders, for this user alone; a given folder keeps its permissions.

        Raises:
            FairleadError: another user owns the folder that is to be this user's.
        """
        with contextlib.suppress(FileExistsError):
            self.top.mkdir(mode=0o700, parents=True)
        if VARIABLE not in os.environ and self.top.lstat().st_uid != os.geteuid():
            raise fail("object-cache-other", folder=self.top)
        mode = self.top.stat().st_mode & 0o3777  # sticky, too: users remove their own files only
        for name in ("objects", "known", "used", "partial"):
            folder = self.top / name
            if not folder.is_dir():
                with contextlib.suppress(FileExistsError):
                    folder.mkdir()
                    folder.chmod(mode)

    def path(self, sha256: str) -> Path:
        return self.top / "objects" / sha256

    def known(self, url: str, each: Object) -> str:
        """The sha256 of an object's version, if a list or an earlier download says it; empty if not."""
        if each.sha256:
            return each.sha256
        note = self.top / "known" / key_of(url, each)
        with contextlib.suppress(OSError, ValueError):
            text = note.read_text("ascii") if note.lstat().st_uid == os.geteuid() else ""
            return text if _SHA256.fullmatch(text) else ""
        return ""

    def has(self, sha256: str) -> bool:
        return bool(sha256) and self.path(sha256).is_file()

    def add(self, partial: Path, sha256: str, key: str, executable: bool = False) -> bool:
        """Takes a whole file over, whose content was compared; whether it has.

        In a folder where users can remove their own files only, another user's file of that name stays, whatever is in it.
        """
        # Read by others where the folder is; the file itself is not to change.
        mode = 0o555 if executable else 0o444
        partial.chmod(mode & (self.top.stat().st_mode | 0o500))
        try:
            partial.replace(self.path(sha256))
        except PermissionError:
            return False
        with contextlib.suppress(OSError):
            (self.top / "known" / key).write_text(sha256, "ascii")
        self.touch(sha256)
        return True

    def touch(self, sha256: str) -> None:
        with contextlib.suppress(OSError):
            (self.top / "used" / sha256).touch()

    def drop(self, sha256: str) -> bool:
        """Removes a file; whether it was this user's to remove."""
        for name in ("objects", "used"):
            with contextlib.suppress(OSError):
                (self.top / name / sha256).unlink()
        return not self.path(sha256).exists()

    def place(self, sha256: str, target: str) -> None:
        """Shows a file that was compared under another name: the same file where the storage is, else a copy."""
        try:
            os.link(self.path(sha256), target)
        except OSError:  # another storage, or one that cannot link
            shutil.copyfile(self.path(sha256), target)
        self.touch(sha256)

    def serve(self, sha256: str, target: str) -> bool:
        """Shows a file under another name if its content is right; one that is not is dropped.

        Raises:
            OSError: it is gone, or there is no space.
        """
        path = self.path(sha256)
        if path.lstat().st_uid == os.geteuid():
            if digest_of(path) == sha256:
                self.place(sha256, target)
                return True
            self.drop(sha256)
            return False
        shutil.copyfile(path, target, follow_symlinks=False)
        if not os.path.islink(target) and digest_of(Path(target)) == sha256:
            self.touch(sha256)
            return True
        os.unlink(target)
        return False

    def kept(self) -> list[Kept]:
        """Its files, the least recently used first."""
        entries = []
        with contextlib.suppress(OSError):
            for file in (self.top / "objects").iterdir():
                with contextlib.suppress(OSError):
                    used = self.top / "used" / file.name
                    when = (used if used.exists() else file).stat().st_mtime
                    entries.append(Kept(file.name, file.stat().st_size, when))
        return sorted(entries, key=lambda entry: (entry.used, entry.sha256))

    def shrink(self, limit: int | None = None) -> list[Kept]:
        """Removes the least recently used files beyond the limit, and interrupted downloads that have rested.

        Without a limit, files of other runs that still load stay.

        Args:
            limit: takes the place of the cache's; 0 removes all.
        """
        gone: list[Kept] = []
        most = self.limit if limit is None else limit
        rested = time.time() - _RESTED_S
        with self._alone():
            kept = self.kept()
            size = sum(entry.bytes for entry in kept)
            for entry in kept:
                if size <= most or (limit is None and not most and entry.used > rested):
                    break
                if self.drop(entry.sha256):
                    size -= entry.bytes
                    gone.append(entry)
            self._forget()
            for file in self.partials():
                with contextlib.suppress(OSError):
                    if limit == 0 or file.stat().st_mtime < rested:
                        file.unlink()
        return gone

    def _forget(self) -> None:
        """Removes what is known of versions whose files are gone."""
        with contextlib.suppress(OSError):
            for file in (self.top / "known").iterdir():
                with contextlib.suppress(OSError):
                    if not self.has(file.read_text("ascii")):
                        file.unlink()

    def partials(self) -> list[Path]:
        with contextlib.suppress(OSError):
            return sorted((self.top / "partial").iterdir())
        return []

    def clear_if_empty(self) -> None:
        """Removes the folders if nothing is in them."""
        if self.kept() or self.partials() or VARIABLE in os.environ:
            return
        self._forget()
        with contextlib.suppress(OSError):
            for name in ("objects", "known", "used", "partial"):
                (self.top / name).rmdir()
            (self.top / "lock").unlink(missing_ok=True)
            self.top.rmdir()

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """One process at a time, where the storage has locks."""
        with contextlib.ExitStack() as stack:
            with contextlib.suppress(OSError):
                handle = os.open(self.top / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
                stack.callback(os.close, handle)
                fcntl.flock(handle, fcntl.LOCK_EX)
            yield


def digest_of(path: Path) -> str:
    """The sha256 of a file, read from its storage and not from the memory it was written through.

    Raises:
        OSError: it cannot be read.
    """
    digest = hashlib.sha256(usedforsecurity=False)
    with path.open("rb") as stream:
        with contextlib.suppress(OSError):
            os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()
