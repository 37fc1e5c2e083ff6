"""What is known of a tree, next to it in the cache: its files, what uses an MPI, its packages.

A tree is never without its record: the record is written first, and depends on the tree alone.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from pathlib import Path

import fairlead
from fairlead.base.paths import atomic_write
from fairlead.base.serde import from_json, to_json
from fairlead.elf.facts import Elf, ImageFacts
from fairlead.image.budget import Budget
from fairlead.image.packages import Installed, installed, walk
from fairlead.image.scan import scan_tree
from fairlead.image.tree_digest import Entry, Tree
from fairlead_build.base.digest import sha256_of
from fairlead_build.cache.store import Cache, publish

# Files that are laid over a tree: content and mode by path.
Files = dict[str, tuple[bytes, int]]


@dataclass(frozen=True)
class Contents:
    """What a tree contains."""

    facts: ImageFacts
    installed: Installed

    @classmethod
    def of(cls, root: Path, known: dict[str, Elf | str] | None = None) -> Contents:
        """Those of the image that the tree at ``root`` becomes, in which root has all files and no file has capabilities.

        Args:
            known: what ``scan_tree`` takes as ``contents``.
        """
        budget = Budget(root)
        folders = list(walk(root, budget))
        facts = replace(scan_tree(root, budget, folders, known), set_ids={}, capable=())
        return cls(facts, installed(root, budget, folders))


@dataclass(frozen=True)
class TreeRecord:
    """What is known of a tree.

    Attributes:
        sha256: of its squashfs.
        entries: its files and folders, as ``fairlead.image.tree_digest`` defines them.
        contents: None if they are unknown, or found by an older fairlead, which may have found less.
        whole: those of the image with fairlead over the tree; known only where the tree has just been built.
    """

    sha256: str
    entries: Tree
    contents: Contents | None = None
    whole: Contents | None = None


def read_record(cache: Cache, key: str) -> TreeRecord | None:
    """The record of the tree ``key``; None when it or the tree is not there."""
    try:
        data = json.loads(cache.tree_record(key).read_text("utf-8"))
        entries = {path: Entry(*fields) for path, fields in data["entries"].items()}
        if not cache.tree(key).is_file():
            return None
        recorded = {name: data[name] for name in ("facts", "installed")}
        current = data["scanner"] == _scanner() and all(recorded.values())
        contents = from_json(Contents, recorded) if current else None
        return TreeRecord(data["sha256"], entries, contents)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def publish_tree(
    made: Path, cache: Cache, key: str, entries: Tree, contents: Contents | None = None
) -> TreeRecord:
    """Keeps the squashfs ``made`` as the tree ``key``, with its record, which is returned."""
    record = TreeRecord(sha256_of(made), entries, contents)
    write_record(cache, key, record)
    publish(made, cache.tree(key))
    return record


def write_record(cache: Cache, key: str, record: TreeRecord) -> None:
    """Keeps ``record`` for the tree ``key``."""
    with atomic_write(cache.tree_record(key), "w") as out:
        document = {
            "sha256": record.sha256,
            "scanner": _scanner(),
            **(to_json(record.contents) or {"facts": None, "installed": None}),
            "entries": record.entries,
        }
        out.write(json.dumps(document))  # `dump` encodes in Python: five times as long


def _scanner() -> str:
    """The digest of the code that finds facts: newer code finds other facts in the same tree."""
    folder = Path(fairlead.__file__).parent
    names = (
        "base/shell_commands.py", "elf/facts.py", "elf/loader.py", "elf/mpi_symbols.py", "elf/nccl_symbols.py",
        "elf/reader.py", "image/imports.py", "image/objects.py", "image/packages.py", "image/scan.py",
    )  # fmt: skip
    return hashlib.sha256(b"".join((folder / name).read_bytes() for name in names)).hexdigest()
