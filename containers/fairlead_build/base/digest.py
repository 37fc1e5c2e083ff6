"""sha256 of files and values, the only hash that fairlead's store, locks and images use."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

# Is called with the number of bytes of each piece that was read or written.
Advance = Callable[[int], object]
_CHUNK = 1 << 20


def json_digest(value: Any) -> str:
    """The sha256 of a value's JSON, keys sorted, hex."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def unseen(amount: int) -> None:
    """An :data:`Advance` that shows nothing."""


def sha256_of(path: Path, advance: Advance = unseen) -> str:
    """The sha256 of a file's content, hex.

    Raises:
        OSError: it cannot be read.
    """
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
            advance(len(chunk))
    return digest.hexdigest()


def copy_file(source: Path, target: Path, advance: Advance = unseen) -> str:
    """Copies a file that anybody may read, and returns the sha256 of what was copied, hex.

    Raises:
        OSError: as reading and writing do.
    """
    digest = hashlib.sha256()
    with source.open("rb") as content, target.open("wb") as out:
        while chunk := content.read(_CHUNK):
            digest.update(chunk)
            out.write(chunk)
            advance(len(chunk))
    target.chmod(0o644)
    return digest.hexdigest()
