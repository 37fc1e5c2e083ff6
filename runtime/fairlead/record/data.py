"""Digests of what a run reads and writes."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from fairlead.base.errors import fail, os_error_as
from fairlead.base.progress import Progress, Stage
from fairlead.base.regular import open_regular
from fairlead.record.model import Data

_CHUNK = 4 << 20


@dataclass
class _Read:
    """What was read so far."""

    stage: Stage | None = None
    bytes: int = 0
    files: int = 0


def digests(names: Iterable[str], folder: Path, title: str, progress: Progress) -> tuple[Data, ...]:
    """Files and folders as they are now, each once.

    Args:
        names: their paths, relative to ``folder`` where they are not absolute.
        title: of the stage.
    Raises:
        FairleadError: as :func:`digest_of`.
    """
    once = tuple(dict.fromkeys(names))
    if not once:
        return ()
    with progress.stage(title, unit="B") as stage:
        return tuple(digest_of(name, folder, stage) for name in once)


def digest_of(name: str, folder: Path, stage: Stage | None = None) -> Data:
    """A file or folder as it is now; a link counts as what it leads to.

    Args:
        stage: advances by bytes.
    Raises:
        FairleadError: exit code 2; it cannot be read, or is neither a file nor a folder.
    """
    path = Path(os.path.abspath(folder / Path(name).expanduser()))  # noqa: PTH100
    with os_error_as("record-data", path=path):
        if not path.exists():
            return Data(name, str(path), "absent", files=0)
        read = _Read(stage)
        if path.is_dir():
            return Data(name, str(path), "folder", _tree(path, read), read.bytes, read.files)
        if not path.is_file():
            raise fail("record-data", path=path, reason="it is neither a file nor a folder")
        return Data(name, str(path), "file", _file(path.resolve(), read), read.bytes)


def tree_digest(folder: Path) -> str:
    """sha256 over a folder: for each path below it, by name, what it is, the target of a link, and the sha256 of a file.

    Times, owners and permissions do not count. The lines are ``d PATH``, ``f SHA256 PATH`` and ``l TARGET PATH``, sorted by
    their bytes, a NUL behind each.

    Raises:
        OSError: a part of it cannot be read.
    """
    return _tree(folder, _Read())


def _tree(folder: Path, read: _Read) -> str:
    lines = sorted(_lines(os.fsencode(folder), b"", read))
    return hashlib.sha256(b"".join(line + b"\0" for line in lines)).hexdigest()


def _lines(folder: bytes, above: bytes, read: _Read) -> Iterator[bytes]:
    with os.scandir(folder) as entries:
        for item in entries:
            path, kind = above + item.name, stat.S_IFMT(item.stat(follow_symlinks=False).st_mode)
            if kind == stat.S_IFDIR:
                yield b"d " + path
                yield from _lines(item.path, path + b"/", read)
            elif kind == stat.S_IFLNK:
                yield b"l " + os.readlink(item.path) + b" " + path  # noqa: PTH115
            elif kind == stat.S_IFREG:
                yield b"f " + _file(Path(os.fsdecode(item.path)), read).encode() + b" " + path


def _file(path: Path, read: _Read) -> str:
    digest = hashlib.sha256()
    with open_regular(os.fspath(path)) as stream:
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
            read.bytes += len(chunk)
            if read.stage:
                read.stage.advance(len(chunk))
    read.files += 1
    return digest.hexdigest()
