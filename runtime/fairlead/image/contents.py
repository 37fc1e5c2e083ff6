"""What is inside squashfs files, by their sha256.

An image's own record is its author's word: what a plan rests on is found by looking, once for each digest.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairlead.base import bounded_json
from fairlead.base.paths import atomic_write
from fairlead.base.progress import Progress, Silent
from fairlead.base.serde import cached
from fairlead.elf.facts import ImageFacts
from fairlead.image.mount import look
from fairlead.image.packages import Installed

VERSION = "33"  # of the facts in the cache


@dataclass(frozen=True)
class Contents:
    """What a look has found.

    Attributes:
        record: what fairlead's builder left in the tree; without facts.
    """

    facts: ImageFacts
    installed: Installed
    record: Mapping[str, Any]


def contents_of(
    path: Path,
    offset: int,
    digest: str,
    folder: Path,
    progress: Progress | None = None,
    environ: Mapping[str, str] = os.environ,
) -> Contents:
    """What is in the squashfs at ``offset`` of ``path``, by a look or from an earlier one.

    Args:
        digest: sha256 of that squashfs, just computed.
        folder: the cache's folder of facts.
    Raises:
        CannotLook: this machine cannot mount it.
        FairleadError: the squashfs is damaged.
    """

    def inspect() -> Contents:
        with (progress or Silent()).stage(f"looking into {path.name}") as stage:
            inspected = look(path, offset, environ)
            stage.result(f"{inspected.facts.files} ELF files")
        return Contents(inspected.facts, inspected.installed, _without_facts(inspected.record))

    return cached(Contents, _contents(digest, folder), inspect)


def known_contents(digest: str, folder: Path) -> bool:
    """Whether a squashfs was looked into before."""
    return _contents(digest, folder).is_file()


def keep_contents(
    digest: str,
    folder: Path,
    facts: ImageFacts,
    installed: Installed,
    record: Mapping[str, Any],
) -> None:
    """Keeps what is in a squashfs, where this machine has just made it of a tree that it looked into."""
    contents = Contents(facts, installed, _without_facts(record))
    cached(Contents, _contents(digest, folder), lambda: contents)


def _without_facts(record: Mapping[str, Any]) -> Mapping[str, Any]:
    return {name: value for name, value in record.items() if name != "facts"}


def _contents(digest: str, folder: Path) -> Path:
    return folder / f"contents-{VERSION}-{digest}.json"


def known_tree(digest: str, folder: Path) -> str:
    """The digest of the tree of a squashfs, where it was computed here before; else "" ."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        return str(bounded_json.loads(_tree(digest, folder).read_text("utf-8"))["tree_sha256"])
    return ""


def keep_tree(digest: str, tree: str, folder: Path) -> None:
    """Keeps the digest of the tree of a squashfs. A full or read-only cache costs time, not the answer."""
    with suppress(OSError), atomic_write(_tree(digest, folder), "w") as stream:
        json.dump({"squashfs_sha256": digest, "tree_sha256": tree}, stream)


def _tree(digest: str, folder: Path) -> Path:
    return folder / f"tree-{VERSION}-{digest}.json"
