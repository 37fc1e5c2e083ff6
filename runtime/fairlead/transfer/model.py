"""What is staged and what became of it, as frozen values."""

from __future__ import annotations

import enum
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fairlead.base.errors import Finding, Severity

MOUNT = "/opt/fairlead/stage"  # where staged data appears in every container
VARIABLE = "FAIRLEAD_STAGE"  # which says so
PREFIX = "fairlead-stage."  # of every folder that is made on a node


class Kind(enum.StrEnum):
    FILE = "file"
    FOLDER = "folder"
    LINK = "link"


class Links(enum.StrEnum):
    """What becomes of a link that leads out of the tree it is in."""

    REFUSE = "refuse"
    FOLLOW = "follow"  # what it leads to is copied in its place
    KEEP = "keep"  # as it is; it may lead nowhere then


@dataclass(frozen=True)
class Entry:
    """A file, folder or link of a tree.

    Attributes:
        path: below the tree's top, which is "" itself. Bytes that are no UTF-8 are surrogates, as
            ``os.fsdecode`` makes them.
        source: what is read for it.
        mode: its permission bits.
        size: of a file, bytes.
        data: of these, bytes that are no holes.
        target: of a link.
        same_as: the path of the file before it that it is a hard link to.
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
        entries: sorted by path, a folder before what is in it.
        left_out: ``(path, what it is)`` of what cannot be copied: sockets, devices.
        outward: paths of links that lead out and were kept.
    """

    top: str
    entries: tuple[Entry, ...]
    left_out: tuple[tuple[str, str], ...] = ()
    outward: tuple[str, ...] = ()

    @property
    def files(self) -> int:
        return sum(entry.kind is Kind.FILE for entry in self.entries)

    @property
    def bytes(self) -> int:
        """Of content, holes among them, hard links once."""
        return sum(entry.size for entry in self.entries if not entry.same_as)

    @property
    def data(self) -> int:
        """Bytes that have to be moved: the content without its holes."""
        return sum(entry.data for entry in self.entries if not entry.same_as)


@dataclass(frozen=True)
class InItem:
    """Something to copy to the nodes: ``source`` as ``name`` below the mount."""

    source: str
    name: str


@dataclass(frozen=True)
class OutItem:
    """Something to copy back: ``name`` below the mount to the path ``target``."""

    name: str
    target: str


@dataclass(frozen=True)
class Moved:
    """One item that was copied and verified on one node.

    Attributes:
        bytes: of content, holes among them.
        data: of these, bytes that were moved.
        copy_s: until it was written to the storage.
        verify_s: until all of it had been read back.
        digest: of the tree, see :mod:`fairlead.transfer.digest`.
        reused: it was there already, and what was there is what it should be.
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
        """Bytes a second while copying; 0 where nothing was copied."""
        return 0.0 if self.reused else self.data / max(self.copy_s, 1e-6)

    def to_json(self) -> dict[str, Any]:
        return {
            "node": self.node,
            "name": self.name,
            "source": self.source,
            "target": self.target,
            "files": self.files,
            "bytes": self.bytes,
            "data": self.data,
            "copy_s": self.copy_s,
            "verify_s": self.verify_s,
            "bytes_per_s": self.rate,
            "digest": self.digest,
            "reused": self.reused,
        }


@dataclass(frozen=True)
class NodeReport:
    """What one process of a step did.

    Attributes:
        acted: it was this process that worked for its node, or for the storage that nodes share.
        error: the exit code of what stopped it; 0 when nothing did.
        kept: what could not be copied back, by name: where it is.
        missing: what was to be copied back and is not there.
    """

    node: str
    acted: bool
    items: tuple[Moved, ...] = ()
    findings: tuple[Finding, ...] = ()
    error: int = 0
    kept: Mapping[str, str] = field(default_factory=dict)
    missing: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {
            "node": self.node,
            "acted": self.acted,
            "items": [item.to_json() for item in self.items],
            "findings": [finding.to_json() for finding in self.findings],
            "error": self.error,
            "kept": dict(self.kept),
            "missing": list(self.missing),
        }


def report_of(data: Mapping[str, Any]) -> NodeReport:
    """The report that :meth:`NodeReport.to_json` wrote."""
    items = tuple(
        Moved(**{key: value for key, value in item.items() if key != "bytes_per_s"})
        for item in data["items"]
    )
    findings = tuple(
        Finding(**{**item, "severity": Severity(item["severity"])}) for item in data["findings"]
    )
    return NodeReport(
        data["node"], data["acted"], items, findings, int(data["error"]), data["kept"],
        tuple(data["missing"]),
    )  # fmt: skip


def node_name() -> str:
    """This node, as its kernel calls it."""
    return os.uname().nodename
