"""Items that are in an object store, or go to one: as staging sees them."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from fairlead.base.errors import Finding, warning
from fairlead.base.system import mount_of
from fairlead.objects import send
from fairlead.objects.budget import Budget
from fairlead.objects.cache import Cache, folder_in
from fairlead.objects.fetch import fetch
from fairlead.objects.model import Listing
from fairlead.objects.names import check_storable, folders_and_files
from fairlead.objects.registry import open_store
from fairlead.objects.send import Source
from fairlead.objects.survey import survey
from fairlead.transfer.copying import Copied, OnProgress
from fairlead.transfer.model import Entry, Kind, Moved, Tree

_ALL = 1 << 62  # a limit that no storage reaches
_SHOWN = 5


@dataclass(frozen=True)
class Remote:
    """How bytes of stores travel.

    Attributes:
        pins: what was at each URL when the run began: all nodes get these versions.
        rate: bytes per second of this node; 0 for no limit.
        cache: bytes that may stay on the node for later runs.
    """

    pins: Mapping[str, Listing] = field(default_factory=dict)
    rate: float = 0.0
    cache: int = 0


PLAIN = Remote()


@cache
def listing_of(url: str) -> Listing:
    """What is at a URL, listed once in a process.

    Raises:
        FairleadError: as :func:`fairlead.objects.survey.survey`.
    """
    return survey(open_store(url))


def check_target(url: str) -> None:
    """Tests that results can be written to a URL.

    Raises:
        FairleadError: as :func:`fairlead.objects.send.check_target`.
    """
    send.check_target(open_store(url))


def tree_of(listing: Listing) -> Tree:
    """A listing as a tree: what space it takes, and how many files."""
    folders, files = folders_and_files(listing)
    entries = [] if listing.single else [Entry("", Kind.FOLDER, listing.url, 0o700, 0)]
    entries += [Entry(name, Kind.FOLDER, listing.url, 0o700, 0) for name in folders]
    entries += [
        Entry(each.name, Kind.FILE, listing.url, 0o644, 0, size=each.size, data=each.size)
        for each in files
    ]
    return Tree(listing.url, tuple(sorted(entries, key=lambda entry: entry.path)))


def bring(
    listing: Listing,
    target: str,
    root: str,
    how: Remote,
    keep: bool,
    on_progress: OnProgress,
) -> tuple[Copied, int, list[Finding]]:
    """Brings a listing to ``target``; how, how many bytes travelled, and what to say of it.

    Args:
        root: the storage that the target is in, and the cache.
        keep: all of it stays for the next run of the job.
    """
    kind = ""
    with contextlib.suppress(OSError):
        kind = mount_of(Path(root), Path("/")).kind
    limit = how.cache or (_ALL if keep else 0)
    kept = Cache(folder_in(Path(root)), limit, resumes=kind not in ("tmpfs", "ramfs"))
    store = open_store(listing.url)
    done = fetch(store, listing, target, kept, Budget(how.rate), on_progress)
    findings = []
    if done.unverified:
        few = ", ".join(name or listing.url for name in done.unverified[:_SHOWN])
        count = len(done.unverified)
        findings.append(warning("object-unverified", place=listing.url, few=few, count=count))
    return Copied(done.digest, dict(done.files), done.copy_s, done.verify_s), done.moved, findings


def back(name: str, tree: Tree, target: str, how: Remote, on_progress: OnProgress) -> Moved:
    """Writes a result to the URL ``target``: all of it, or it is marked as incomplete there.

    Raises:
        FairleadError: the store fails or refuses; a name is none that a store takes.
    """
    begun = time.monotonic()
    sources = sources_of(tree)
    check_storable(target, [source.name for source in sources])
    done = send.send(open_store(target), sources, Budget(how.rate), on_progress)
    return Moved(
        os.uname().nodename, name, tree.top, target, len(done.files),
        sum(source.size for source in sources), done.moved, time.monotonic() - begun, 0.0,
        done.digest, done.skipped == len(sources),
    )  # fmt: skip


def sources_of(tree: Tree) -> Sequence[Source]:
    """What of a tree becomes objects: files, links that stay within it, and folders that are empty."""
    filled = {entry.path.rpartition("/")[0] for entry in tree.entries if entry.path}
    sources = []
    for entry in tree.entries:
        if entry.kind is Kind.FILE:
            sources.append(Source(entry.path, entry.source, entry.size, entry.mode))
        elif entry.kind is Kind.LINK and entry.path not in tree.outward:
            sources.append(Source(entry.path, entry.source, 0, link=entry.target))
        elif entry.kind is Kind.FOLDER and entry.path and entry.path not in filled:
            sources.append(Source(f"{entry.path}/", entry.source, 0))
    return sources
