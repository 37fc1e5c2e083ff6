"""What a copy is compared with: a digest of leaves, so that many threads can compute it, and holes are free.

A file is cut into leaves of 4 MiB. Its digest is the SHA-256 of ``fairlead-file-1``, its size (8 bytes,
little endian) and the SHA-256 of each leaf; a tree's is that of one line per entry, sorted by path.

Why SHA-256: of what the standard library has it takes the least time where the processor has
instructions for it (Zen, Ice Lake and later, Arm with its cryptographic extension).
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from functools import cache

from fairlead.transfer.model import Kind, Tree

LEAF = 4 << 20  # bytes


def leaf(content: bytes | memoryview) -> bytes:
    return hashlib.sha256(content, usedforsecurity=False).digest()


@cache
def empty_leaf(length: int) -> bytes:
    """Of ``length`` zeros, as a hole reads."""
    return leaf(bytes(length))


def of_file(size: int, leaves: Sequence[bytes]) -> str:
    """A file's digest, hexadecimal.

    >>> of_file(0, [])[:16]
    '1e4a775f76260b96'
    """
    return leaf(b"fairlead-file-1" + size.to_bytes(8, "little") + b"".join(leaves)).hex()


def of_tree(tree: Tree, files: Mapping[str, str]) -> str:
    """A tree's digest, hexadecimal: kinds, permissions, names and contents, without times.

    Args:
        files: digest of each file that is not a hard link to an earlier one.
    """
    digest = hashlib.sha256(b"fairlead-tree-1\n", usedforsecurity=False)
    for entry in tree.entries:
        content = files[entry.same_as or entry.path] if entry.kind is Kind.FILE else entry.target
        parts = (entry.kind.value, f"{entry.mode:o}", entry.path, content)
        digest.update(b"\0".join(os.fsencode(part) for part in parts) + b"\n\0")
    return digest.hexdigest()
