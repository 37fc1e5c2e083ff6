"""A folder and a prefix of a store, or two prefixes, made the same; what changed on both sides is a conflict.

What the last sync left on both sides is remembered, by name and sha256. With it:

=====================  =====================  ==========================================================
source                 destination            then
=====================  =====================  ==========================================================
new or changed         as it was              copied to the destination
as it was              new or changed         with ``both``: copied to the source; else a conflict if it is
                                              changed, and left if it is new
changed                changed                the same content: nothing; else a conflict
removed                as it was              with ``delete``: removed; else with ``both``: copied back; else left
as it was              removed                copied again; with ``both`` and ``delete``: removed
changed                removed                a conflict with ``both``; else copied again
removed                changed                with ``both``: a conflict; else left
=====================  =====================  ==========================================================

Nothing is copied as long as there is a conflict that ``prefer`` does not decide; it removes nothing without ``delete``. The first sync of two places remembers
nothing: files of the same name that differ are conflicts.
"""

from __future__ import annotations

import enum
import functools
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fairlead.base import bounded_json
from fairlead.base.errors import fail
from fairlead.base.paths import atomic_write, state_dir
from fairlead.base.serde import from_json, to_json
from fairlead.objects import workers
from fairlead.objects.budget import Budget
from fairlead.objects.cache import Cache
from fairlead.objects.dataset import FileThere, Folder, OnBytes, Place, Prefix, all_digests
from fairlead.objects.fetch import fetch
from fairlead.objects.model import MARK, Listing, Object
from fairlead.objects.names import folders_and_files
from fairlead.objects.send import Source, send


class Prefer(enum.StrEnum):
    """Which side wins a conflict."""

    NONE = "none"
    SOURCE = "source"
    DESTINATION = "destination"


@dataclass(frozen=True)
class Rules:
    """How two places are made the same.

    Attributes:
        both: changes of the destination come to the source, too.
        delete: what was removed on one side is removed on the other.
    """

    both: bool = False
    delete: bool = False
    prefer: Prefer = Prefer.NONE


@dataclass(frozen=True)
class Side:
    """A file as one side has it.

    Attributes:
        version: as the side's listing has it.
    """

    sha256: str
    version: str


@dataclass(frozen=True)
class Plan:
    """What a sync does, by names.

    Attributes:
        there, back: copied to the destination, and to the source.
        gone_there, gone_here: removed at the destination, and at the source.
        conflicts: changed on both sides.
        same: as they are.
    """

    there: tuple[str, ...] = ()
    back: tuple[str, ...] = ()
    gone_there: tuple[str, ...] = ()
    gone_here: tuple[str, ...] = ()
    conflicts: tuple[str, ...] = ()
    same: tuple[str, ...] = ()

    @property
    def is_empty(self) -> bool:
        return not (self.there or self.back or self.gone_there or self.gone_here or self.conflicts)


def plan(
    source: Mapping[str, str], destination: Mapping[str, str], last: Mapping[str, str], rules: Rules
) -> Plan:
    """What is to be done; a pure function of what the sides have and had, sha256 by name."""
    todo: dict[str, list[str]] = {
        name: [] for name in ("there", "back", "gone_there", "gone_here", "conflicts", "same")
    }
    for name in sorted(source.keys() | destination.keys()):
        one, other, before = source.get(name), destination.get(name), last.get(name)
        action = _action(one, other, before, rules)
        if action == "conflicts" and rules.prefer is Prefer.SOURCE:
            action = "there" if one else "gone_there" if rules.delete else "back"
        elif action == "conflicts" and rules.prefer is Prefer.DESTINATION:
            kept = "gone_here" if rules.delete else "there"
            action = "same" if not rules.both else "back" if other else kept
        todo[action].append(name)
    return Plan(**{name: tuple(names) for name, names in todo.items()})


def _action(one: str | None, other: str | None, before: str | None, rules: Rules) -> str:
    if one == other:
        return "same"
    if one is None:
        return _only_there(other, before, rules)
    if other is None:
        return _only_here(one, before, rules)
    if other == before:
        return "there"
    if one == before and rules.both:
        return "back"
    return "conflicts"


def _only_here(one: str, before: str | None, rules: Rules) -> str:
    if before is None or not rules.both:
        return "there"
    if one != before:
        return "conflicts"
    return "gone_here" if rules.delete else "there"


def _only_there(other: str | None, before: str | None, rules: Rules) -> str:
    if before is None:
        return "back" if rules.both else "same"
    if other != before:
        return "conflicts" if rules.both else "same"
    if rules.delete:
        return "gone_there"
    return "back" if rules.both else "same"


@dataclass(frozen=True)
class Synced:
    """What a sync did.

    Attributes:
        moved: bytes that travelled.
    """

    plan: Plan
    moved: int


def sync(
    source: Place,
    destination: Place,
    rules: Rules,
    *,
    dry_run: bool = False,
    rate: float = 0.0,
    on_bytes: OnBytes = lambda count: None,
) -> Synced:
    """Makes two places the same, as the table of this module says.

    Raises:
        FairleadError: exit code 1: conflicts, nothing was copied; else as the stores fail or refuse.
        OSError: of a folder.
    """
    state = _State(source, destination)
    ours, theirs = state.side("source", source), state.side("destination", destination)
    decided = plan(_shas(ours), _shas(theirs), state.last, rules)
    if decided.conflicts:
        few = ", ".join(decided.conflicts[:5])
        raise fail("object-conflict", count=len(decided.conflicts), few=few)
    if dry_run:
        return Synced(decided, 0)
    budget = Budget(rate)
    moved = copy(source, destination, decided.there, _shas(ours), budget, on_bytes)
    moved += copy(destination, source, decided.back, _shas(theirs), budget, on_bytes)
    _remove(destination, decided.gone_there)
    _remove(source, decided.gone_here)
    state.keep(source, destination, ours, theirs, decided)
    return Synced(decided, moved)


def _shas(side: Mapping[str, Side]) -> dict[str, str]:
    return {name: one.sha256 for name, one in side.items()}


class _State:
    """What the last sync of two places left.

    Attributes:
        last: sha256 by name of what was the same on both sides.
    """

    def __init__(self, source: Place, destination: Place):
        key = hashlib.sha256(f"{source.title}\0{destination.title}".encode()).hexdigest()[:32]
        self.path = state_dir() / "sync" / f"{key}.json"
        self._known: dict[str, dict[str, Side]] = {}
        self.last: dict[str, str] = {}
        try:
            kept = bounded_json.loads(self.path.read_text("utf-8"))
            self._known = from_json(dict[str, dict[str, Side]], kept["known"])
            self.last = from_json(dict[str, str], kept["last"])
        except (OSError, ValueError, KeyError):
            pass  # nothing is remembered: files that differ are conflicts

    def side(self, which: str, place: Place) -> dict[str, Side]:
        """What a side has. A file is read only if its version is a new one and its writer has noted no sha256."""
        known, side = self._known.get(which, {}), {}
        unread: list[FileThere] = []
        for name, file in place.files().items():
            if name == MARK:
                continue
            if name in known and known[name].version == file.version:
                side[name] = known[name]
            else:
                unread.append(file)
        claims: dict[str, str] = {}
        if isinstance(place, Prefix):

            def claim(file: FileThere, stop: object) -> None:
                claims[file.name] = place.claimed(file)

            workers.each(unread, claim, lambda count: None, lambda: 0)
        for file in unread:
            if claims.get(file.name):
                side[file.name] = Side(claims[file.name], file.version)
        digests = all_digests(place, [file for file in unread if file.name not in side])
        for file in unread:
            if file.name in digests:
                side[file.name] = Side(digests[file.name], file.version)
        return side

    def keep(
        self,
        source: Place,
        destination: Place,
        ours: Mapping[str, Side],
        theirs: Mapping[str, Side],
        done: Plan,
    ) -> None:
        """Remembers both sides as they are now."""
        gone = {*done.gone_here, *done.gone_there}
        last = {n: s.sha256 for n, s in theirs.items() if n in ours and ours[n].sha256 == s.sha256}
        last |= {name: ours[name].sha256 for name in done.there}
        last |= {name: theirs[name].sha256 for name in done.back}
        for name in gone:
            last.pop(name, None)
        known = {
            "source": _now(source, ours, {n: theirs[n] for n in done.back}),
            "destination": _now(destination, theirs, {n: ours[n] for n in done.there}),
        }
        with atomic_write(self.path, "w", permissions=0o600) as stream:
            json.dump(to_json({"known": known, "last": last}), stream)


def _now(place: Place, had: Mapping[str, Side], got: Mapping[str, Side]) -> dict[str, Side]:
    """A side after the sync. What changed meanwhile has a version that is not known, and is read next time."""
    side = {}
    for name, file in place.files().items():
        if name in got:
            side[name] = Side(got[name].sha256, file.version)
        elif name in had and had[name].version == file.version:
            side[name] = had[name]
    return side


# --- copies --------------------------------------------------------------------------------------


def copy(
    source: Place,
    destination: Place,
    names: Sequence[str],
    sha256s: Mapping[str, str],
    budget: Budget,
    on_bytes: OnBytes,
) -> int:
    """Copies files from one place to another; how many bytes travelled.

    At a destination in a store, the prefix is marked as incomplete meanwhile. In a folder, each file gets its name when
    all have come.
    """
    if not names:
        return 0
    if isinstance(destination, Folder):
        assert isinstance(source, Prefix), "the command line refuses two folders"
        return _down(source, destination, names, sha256s, budget, on_bytes)
    assert isinstance(destination, Prefix)
    if isinstance(source, Folder):
        return _up(source.top, destination, names, budget, on_bytes)
    with tempfile.TemporaryDirectory(prefix="fairlead-sync-") as name:
        between = Folder(Path(name))
        assert isinstance(source, Prefix)
        _down(source, between, names, sha256s, budget, on_bytes)
        return _up(between.top, destination, names, budget, on_bytes)


def _up(
    top: Path, destination: Prefix, names: Sequence[str], budget: Budget, on_bytes: OnBytes
) -> int:
    def source(name: str) -> Source:
        info = (top / name).stat()
        return Source(name, str(top / name), info.st_size, info.st_mode)

    sources = [source(name) for name in names]
    done = send(
        destination.store, sources, budget, lambda phase, count: on_bytes(count), listed=False
    )
    return done.moved


def _down(
    source: Prefix,
    destination: Folder,
    names: Sequence[str],
    sha256s: Mapping[str, str],
    budget: Budget,
    on_bytes: OnBytes,
) -> int:
    listed = source.objects()
    objects = [Object(n, listed[n].size, listed[n].etag, sha256s[n]) for n in names]
    listing = Listing(source.title, tuple(objects))
    folders_and_files(listing)
    work = destination.top / f".fairlead-sync.{os.getpid()}.partial"
    # What a killed sync has brought is in here, and is not brought again.
    cache = Cache(destination.top / ".fairlead-sync.cache.partial")
    try:
        done = fetch(
            source.store, listing, str(work), cache, budget, lambda phase, count: on_bytes(count)
        )
        for name in names:
            target = destination.path(name)
            target.parent.mkdir(parents=True, exist_ok=True)
            os.replace(work / name, target)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    shutil.rmtree(cache.top, ignore_errors=True)
    return done.moved


def _remove(place: Place, names: Sequence[str]) -> None:
    for name in names:
        if isinstance(place, Prefix):
            workers.tried_again(functools.partial(place.store.delete, name))
        elif isinstance(place, Folder):
            place.path(name).unlink(missing_ok=True)
