"""What is staged and the result, as frozen values."""

from __future__ import annotations

import enum
import posixpath
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fairlead.base.errors import Finding
from fairlead.base.serde import to_json
from fairlead.objects.url import is_url

MOUNT = "/opt/fairlead/stage"  # where staged data appears in every container
VARIABLE = "FAIRLEAD_STAGE"  # contains MOUNT
PREFIX = "fairlead-stage."  # of every folder that is made on a node


class Kind(enum.StrEnum):
    FILE = "file"
    FOLDER = "folder"
    LINK = "link"


class Links(enum.StrEnum):
    """What becomes of a link that leads out of its tree."""

    REFUSE = "refuse"
    FOLLOW = "follow"  # its target is copied in its place
    KEEP = "keep"  # as it is; the copy may lead nowhere


@dataclass(frozen=True)
class Entry:
    """A file, folder or link of a tree.

    Attributes:
        path: below the tree's top, which is "" itself. Bytes that are not UTF-8 are surrogates, as
            ``os.fsdecode`` makes them.
        source: what is read for it.
        mode: its permission bits; 0 of a link, whose own mean nothing and depend on the file system.
        size: of a file, bytes.
        data: of these, bytes outside of holes.
        target: of a link.
        same_as: the path of the earlier file that it is a hard link to.
        stamp: device, inode and time of change of the source, nanoseconds.
    """

    path: str
    kind: Kind
    source: str
    mode: int
    mtime_ns: int
    size: int = 0
    data: int = 0
    target: str = ""
    same_as: str = ""
    stamp: tuple[int, int, int] = (0, 0, 0)


@dataclass(frozen=True)
class Tree:
    """What is below a path, or the one file there.

    Attributes:
        entries: sorted by path, a folder before its content.
        left_out: ``(path, what it is)`` of what cannot be copied: sockets, devices.
        outward: paths of links that lead out and were kept.
    """

    top: str
    entries: tuple[Entry, ...]
    left_out: tuple[tuple[str, str], ...] = ()
    outward: tuple[str, ...] = ()

    @property
    def contents(self) -> tuple[Entry, ...]:
        """The files; hard links once."""
        return tuple(e for e in self.entries if e.kind is Kind.FILE and not e.same_as)

    @property
    def bytes(self) -> int:
        """Of content, holes included; hard links once."""
        return sum(entry.size for entry in self.contents)


@dataclass(frozen=True)
class InItem:
    """Something to copy to the nodes: ``source`` as ``name`` below the mount."""

    source: str
    name: str

    def __str__(self) -> str:
        """As ``--stage-in`` takes it."""
        plain = not is_url(self.source) and posixpath.basename(self.source) == self.name
        return self.source if plain else f"{self.source}:{self.name}"


@dataclass(frozen=True)
class OutItem:
    """Something to copy back: ``name`` below the mount to the path or URL ``target``."""

    name: str
    target: str

    def __str__(self) -> str:
        """As ``--stage-out`` takes it."""
        return f"{self.name}:{self.target}"


@dataclass(frozen=True)
class Moved:
    """One item that was copied and verified on one node.

    Attributes:
        bytes: of content, holes included.
        data: of these, bytes that were copied.
        copy_s: until it was written to the storage.
        verify_s: until all of it had been read back.
        digest: of the tree, see :mod:`fairlead.transfer.digest`.
        reused: an earlier run's copy was verified instead.
    """

    node: str
    name: str
    source: str
    target: str
    files: int
    bytes: int
    data: int
    copy_s: float
    verify_s: float
    digest: str
    reused: bool = False

    @property
    def rate(self) -> float:
        """Bytes per second of the copy; 0 where nothing was copied."""
        return 0.0 if self.reused else self.data / max(self.copy_s, 1e-6)

    def to_json(self) -> dict[str, Any]:
        return {**to_json(self), "bytes_per_s": self.rate}


@dataclass(frozen=True)
class NodeReport:
    """What one process of a step did.

    Attributes:
        acted: it was this process that worked for its node, or for the storage that nodes share.
        error: the exit code of what stopped it; 0 without an error.
        kept: where results are that could not be copied back, by name.
        missing: names to copy back that do not exist.
    """

    node: str
    acted: bool
    items: tuple[Moved, ...] = ()
    findings: tuple[Finding, ...] = ()
    error: int = 0
    kept: Mapping[str, str] = field(default_factory=dict)
    missing: tuple[str, ...] = ()
