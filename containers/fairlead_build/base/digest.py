"""sha256 of files, the only hash that fairlead's store, locks and images use."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

_CHUNK = 1 << 20


def sha256_of(path: Path, advance: Callable[[int], object] = lambda amount: None) -> str:
    """The sha256 of a file's content, hex.

    Args:
        advance: called with the number of bytes of each piece that was read.
    Raises:
        OSError: it cannot be read.
    """
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
            advance(len(chunk))
    return digest.hexdigest()
