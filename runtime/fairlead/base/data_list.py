"""``data.json``: the files of a data folder, with the rows, bytes and sha256 of each.

A file cannot say that its end is missing where a record ends, nor a folder that a file is gone; the list can.
:mod:`fairlead.ml.data.generate` writes it, and ``python3 -m fairlead.ml.data.manifest FOLDER`` for files from elsewhere,
after reading them. :func:`fairlead.ml.data.manifest.read_manifest` compares it: names, rows and bytes each time,
digests with ``verify``.
"""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from fairlead.base import bounded_json
from fairlead.base.errors import FairleadError, fail
from fairlead.base.paths import atomic_write
from fairlead.base.serde import from_json, to_json

NAME = "data.json"
_SCHEMA, _VERSION = "fairlead.data.files", 1


@dataclass(frozen=True)
class ListedFile:
    """What a file is, as the list says.

    Attributes:
        name: its path from the list's folder.
        rows: samples in it; None where they were not counted, since it is not a file of a data set.
        bytes: its size.
        sha256: of its content.
    """

    name: str
    rows: int | None
    bytes: int
    sha256: str

    def differs(self, path: Path, rows: int) -> str:
        """Why a file of ``rows`` samples is not this one, judged by lengths; "" if it may be.

        Raises:
            OSError: it cannot be read.
        """
        size = path.stat().st_size
        if size == self.bytes and self.rows in (None, rows):
            return ""
        return f"it has {rows} samples in {size} bytes; {NAME} lists {self.rows} in {self.bytes}"


@dataclass(frozen=True)
class _Document:
    schema: str
    version: int
    files: tuple[ListedFile, ...]


def listed(folder: Path, path: Path, rows: int) -> ListedFile:
    """The entry of a file, which is read.

    Raises:
        OSError: it cannot be read.
    """
    name = path.relative_to(folder).as_posix()
    return ListedFile(name, rows, path.stat().st_size, sha256(path))


def sha256(path: Path) -> str:
    """Of a file's content.

    Raises:
        OSError: it cannot be read.
    """
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def read_list(folder: Path) -> dict[str, ListedFile] | None:
    """The entries of a folder's list by their names; None if it has no list.

    Raises:
        FairleadError: the list is damaged, or of another version.
    """
    path = folder / NAME
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as exc:
        raise _damaged(str(path), exc) from exc
    return parsed(content, str(path))


def parsed(content: bytes, where: str) -> dict[str, ListedFile]:
    """The entries of a list by their names.

    Args:
        where: its path or URL, for messages.
    Raises:
        FairleadError: it is damaged, or of another version.
    """
    try:
        document = from_json(_Document, bounded_json.loads(content))
        if (document.schema, document.version) != (_SCHEMA, _VERSION):
            raise ValueError(f"schema {document.schema}, version {document.version}")
    except ValueError as exc:
        raise _damaged(where, exc) from exc
    return {file.name: file for file in document.files}


def _damaged(where: str, reason: Exception) -> FairleadError:
    folder = shlex.quote(where.removesuffix(f"/{NAME}"))
    return fail("data-list-damaged", path=where, reason=reason, quoted_folder=folder)


def set_digest(files: Iterable[tuple[str, str]]) -> str:
    """The digest of a data set: the sha256 of what ``sha256sum`` prints for its files, sorted by name.

    Args:
        files: name and sha256 of each.
    """
    lines = "".join(f"{sha256}  {name}\n" for name, sha256 in sorted(files) if name != NAME)
    return hashlib.sha256(lines.encode("utf-8", "surrogateescape")).hexdigest()


def write_list(folder: Path, files: Iterable[ListedFile]) -> None:
    """Writes the list of a folder.

    Raises:
        OSError: it cannot be written.
    """
    with atomic_write(folder / NAME, "w") as stream:
        stream.write(text_of(files))


def text_of(files: Iterable[ListedFile]) -> str:
    """The list of files as JSON."""
    document = _Document(_SCHEMA, _VERSION, tuple(sorted(files, key=lambda file: file.name)))
    return json.dumps(to_json(document), indent=1)
