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
from fairlead.base.errors import fail
from fairlead.base.paths import atomic_write
from fairlead.base.serde import from_json, to_json

NAME = "data.json"
_SCHEMA, _VERSION = "fairlead.data.files", 1


@dataclass(frozen=True)
class ListedFile:
    """What a file is, as the list says.

    Attributes:
        name: its path from the list's folder.
        rows: samples in it.
        bytes: its size.
        sha256: of its content.
    """

    name: str
    rows: int
    bytes: int
    sha256: str

    def differs(self, path: Path, rows: int) -> str:
        """Why a file of ``rows`` samples is not this one, judged by lengths; "" if it may be.

        Raises:
            OSError: it cannot be read.
        """
        size = path.stat().st_size
        if (rows, size) == (self.rows, self.bytes):
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
        document = from_json(_Document, bounded_json.loads(path.read_bytes()))
        if (document.schema, document.version) != (_SCHEMA, _VERSION):
            raise ValueError(f"schema {document.schema}, version {document.version}")
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as exc:
        raise fail(
            "data-list-damaged", path=path, reason=exc, quoted_folder=shlex.quote(str(folder))
        ) from exc
    return {file.name: file for file in document.files}


def write_list(folder: Path, files: Iterable[ListedFile]) -> None:
    """Writes the list of a folder.

    Raises:
        OSError: it cannot be written.
    """
    document = _Document(_SCHEMA, _VERSION, tuple(sorted(files, key=lambda file: file.name)))
    with atomic_write(folder / NAME, "w") as stream:
        json.dump(to_json(document), stream, indent=1)
