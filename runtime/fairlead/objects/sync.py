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
import getpass
import hashlib
import json
import os
import shutil
import socket
import tempfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fairlead.base import bounded_json
from fairlead.base.errors import FairleadError, fail
from fairlead.base.paths import atomic_write, exchange, locked, rename_new, state_dir
from fairlead.base.serde import from_json, to_json
from fairlead.objects import workers
from fairlead.objects.budget import Budget
from fairlead.objects.cache import Cache
from fairlead.objects.dataset import (
    FileThere,
    Folder,
    OnBytes,
    Place,
    Prefix,
    all_read,
    version_of,
)
from fairlead.objects.failures import is_lost
from fairlead.objects.fetch import fetch
from fairlead.objects.model import MARK, Listing, Object
from fairlead.objects.names import check_storable, folders_and_files
from fairlead.objects.send import Source, upload
from fairlead.objects.survey import small

_PARTIAL = ".fairlead-sync"  # begins the names of what is on its way into a folder


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
        sha256: empty as long as nothing depends on it, of a file that one side alone has and had.
        version: as the side's listing has it.
    """

    sha256: str
    version: str


_NOTHING = Side("", "")  # where no file was


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
        left, other, before = source.get(name), destination.get(name), last.get(name)
        action = _action(left, other, before, rules)
        if action == "conflicts" and rules.prefer is Prefer.SOURCE:
            action = "there" if left else "gone_there" if rules.delete else "back"
        elif action == "conflicts" and rules.prefer is Prefer.DESTINATION:
            kept = "gone_here" if rules.delete else "there"
            action = "same" if not rules.both else "back" if other else kept
        todo[action].append(name)
    return Plan(**{name: tuple(names) for name, names in todo.items()})


def _action(left: str | None, other: str | None, before: str | None, rules: Rules) -> str:
    if left == other:
        return "same"
    if left is None:
        return _only_there(other, before, rules)
    if other is None:
        return _only_here(left, before, rules)
    if other == before:
        return "there"
    if left == before and rules.both:
        return "back"
    return "conflicts"


def _only_here(present: str, before: str | None, rules: Rules) -> str:
    if before is None or not rules.both:
        return "there"
    if present != before:
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
        left_out: what of the source is no file.
    """

    plan: Plan
    moved: int
    left_out: tuple[str, ...] = ()


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
    with locked(state.path.with_suffix(".lock"), functools.partial(_busy, state.path)):
        how = _Copying(Budget(rate), on_bytes, state.writer)
        return _sync(state, source, destination, rules, dry_run, how)


def _busy(path: Path) -> None:
    raise fail("object-sync-busy", state=path)


def _sync(
    state: _State, source: Place, destination: Place, rules: Rules, dry_run: bool, how: _Copying
) -> Synced:
    for place in (source, destination):
        _check_mark(place, state.writer)
    ours, theirs = state.sides(source, destination)
    if not ours and not state.last and not rules.both and isinstance(source, Prefix):
        raise fail("data-place", place=source.title)  # a prefix that is not there is an empty one
    decided = plan(_shas(ours), _shas(theirs), state.last, rules)
    if decided.conflicts:
        few = ", ".join(decided.conflicts[:5])
        raise fail("object-conflict", count=len(decided.conflicts), few=few)
    left_out = source.left_out if isinstance(source, Folder) else ()
    if dry_run:
        return Synced(decided, 0, left_out)
    went = _brought(source, destination, decided.there, ours, theirs, how)
    came = _brought(destination, source, decided.back, theirs, ours, how)
    _remove(destination, decided.gone_there, theirs)
    _remove(source, decided.gone_here, ours)
    ours, theirs = _known(ours, went.files), _known(theirs, came.files)
    state.keep(source, destination, ours, theirs, decided)
    return Synced(decided, went.moved + came.moved, left_out)


def _known(side: Mapping[str, Side], sha256s: Mapping[str, str]) -> dict[str, Side]:
    """The files of a side whose sha256 is known: of those that travelled, as it was on the way."""
    known = {n: Side(sha256s.get(n, file.sha256), file.version) for n, file in side.items()}
    return {name: file for name, file in known.items() if file.sha256}


def _shas(side: Mapping[str, Side]) -> dict[str, str]:
    return {name: file.sha256 for name, file in side.items()}


class _State:
    """What the last sync of two places left.

    Attributes:
        last: sha256 by name of what was the same on both sides.
    """

    def __init__(self, source: Place, destination: Place):
        places = f"{source.identity}\0{destination.identity}"
        key = hashlib.sha256(places.encode()).hexdigest()[:32]
        # The same command goes on with what it has begun; it is another one for another user or host.
        self.writer = f"sync {key} of {getpass.getuser()}@{socket.gethostname()}\n".encode()
        self.path = state_dir() / "sync" / f"{key}.json"
        self._known: dict[str, dict[str, Side]] = {}
        self.last: dict[str, str] = {}
        try:
            kept = bounded_json.loads(self.path.read_text("utf-8"))
            self._known = from_json(dict[str, dict[str, Side]], kept["known"])
            self.last = from_json(dict[str, str], kept["last"])
        except (OSError, ValueError, KeyError):
            pass  # nothing is remembered: files that differ are conflicts

    def sides(self, source: Place, destination: Place) -> tuple[dict[str, Side], dict[str, Side]]:
        """What both sides have."""
        ours, theirs = source.files(), destination.files()
        compared = (ours.keys() & theirs.keys()) | self.last.keys()
        return (
            self._side("source", source, ours, compared),
            self._side("destination", destination, theirs, compared),
        )

    def _side(
        self, which: str, place: Place, files: Mapping[str, FileThere], compared: Collection[str]
    ) -> dict[str, Side]:
        """A file is read only if its content matters, its version is a new one and its writer has noted no sha256."""
        known, side = self._known.get(which, {}), {}
        unread: list[FileThere] = []
        for name, file in files.items():
            if name == MARK:
                continue
            if name in known and known[name].version == file.version:
                side[name] = known[name]
            elif name in compared:
                unread.append(file)
            else:
                side[name] = Side("", file.version)
        digests: dict[str, str] = {}

        def claim(file: FileThere, stop: object) -> None:
            if sha256 := place.claimed(file):
                digests[file.name] = sha256

        workers.each(unread, claim, lambda count: None, lambda: 0)
        read = all_read(place, [file for file in unread if file.name not in digests])
        digests |= {name: file.sha256 for name, file in read.items()}
        for file in unread:
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


@dataclass(frozen=True)
class _Brought:
    """Bytes that travelled, and the sha256 of what is there now."""

    moved: int = 0
    files: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class _Copying:
    """How bytes travel.

    Attributes:
        writer: what the mark says that a prefix has meanwhile.
    """

    budget: Budget
    on_bytes: OnBytes
    writer: bytes = b""

    def on_progress(self, phase: str, count: int) -> None:
        self.on_bytes(count)


def copy(
    source: Place,
    destination: Place,
    names: Sequence[str],
    sha256s: Mapping[str, str],
    budget: Budget,
    on_bytes: OnBytes,
) -> int:
    """Copies files from one place to another, whatever is there; how many bytes travelled.

    At a destination in a store, the prefix is marked as incomplete meanwhile. In a folder, each file gets its name when
    all have come.
    """
    there = source.files()
    sides = {name: Side(sha256s[name], there[name].version) for name in names}
    return _brought(source, destination, names, sides, None, _Copying(budget, on_bytes)).moved


def _brought(
    source: Place,
    destination: Place,
    names: Sequence[str],
    sides: Mapping[str, Side],
    replaced: Mapping[str, Side] | None,
    how: _Copying,
) -> _Brought:
    """Copies the versions of ``sides``; at the destination they take the place of those of ``replaced``, and of no others."""
    if not names:
        return _Brought()
    if isinstance(destination, Folder):
        assert isinstance(source, Prefix), "the command line refuses two folders"
        return _down(source, destination, names, sides, replaced, how)
    assert isinstance(destination, Prefix)
    if isinstance(source, Folder):
        return _up(source.top, destination, names, replaced, how)
    with tempfile.TemporaryDirectory(prefix="fairlead-sync-") as name:
        between = Folder(Path(name))
        assert isinstance(source, Prefix)
        _down(source, between, names, sides, None, how)
        return _up(between.top, destination, names, replaced, how)


def _up(
    top: Path,
    destination: Prefix,
    names: Sequence[str],
    replaced: Mapping[str, Side] | None,
    how: _Copying,
) -> _Brought:
    check_storable(destination.title, names)

    def source(name: str) -> Source:
        info = (top / name).stat()
        was = replaced[name].version if replaced and name in replaced else ""
        return Source(
            name, str(top / name), info.st_size, info.st_mode, replaces=None if replaced is None else was
        )  # fmt: skip

    sources = [source(name) for name in names]
    _mark(destination, how.writer)
    there = destination.files()
    done = upload(destination.store, sources, how.budget, how.on_progress, there)
    workers.tried_again(functools.partial(destination.store.delete, MARK))
    return _Brought(done.moved, done.files)


def _mark(place: Prefix, writer: bytes) -> None:
    """Marks a prefix as one that is being written, and nobody else's mark is replaced.

    Raises:
        FairleadError: exit code 2; another has its mark there.
    """
    put = functools.partial(place.store.put, MARK, writer, {}, _check_mark(place, writer))
    try:
        workers.tried_again(put)
    except FairleadError as exc:
        if not is_lost(exc):
            raise
    if not _check_mark(place, writer):  # somebody has written and ended meanwhile
        raise fail("object-sync-changed", place=place.title, count=1, few=MARK)


def _check_mark(place: Place, writer: bytes) -> str:
    """Tests that nobody else writes to a prefix; the version of its mark, empty without one.

    Raises:
        FairleadError: exit code 2; its mark is that of another sync, or of a result.
    """
    if not isinstance(place, Prefix):
        return ""
    mark = workers.tried_again(lambda: place.store.stat(MARK))
    if mark is None:
        return ""
    theirs = small(place.store, mark[0]) if mark[0].size else writer
    if theirs != writer:
        who = theirs.decode("utf-8", "replace").strip()[:200]
        raise fail("object-being-written", place=place.title, mark=MARK, who=who)
    return mark[0].etag


def _down(
    source: Prefix,
    destination: Folder,
    names: Sequence[str],
    sides: Mapping[str, Side],
    replaced: Mapping[str, Side] | None,
    how: _Copying,
) -> _Brought:
    listed = source.objects()
    objects = []
    for name in names:
        if name not in listed or listed[name].etag != sides[name].version:
            reason = "another version is there" if name in listed else "it was removed"
            raise fail("object-changed", place=f"{source.title}/{name}", reason=reason)
        objects.append(Object(name, listed[name].size, listed[name].etag, sides[name].sha256))
    listing = Listing(source.title, tuple(objects))
    folders_and_files(listing)
    destination.top.mkdir(parents=True, exist_ok=True)
    work = destination.top / f"{_PARTIAL}.{os.getpid()}.partial"
    # What a killed sync has brought is in here, and is not brought again.
    cache = Cache(destination.top / f"{_PARTIAL}.cache.partial")
    try:
        done = fetch(source.whole().store, listing, str(work), cache, how.budget, how.on_progress)
        if replaced is not None:
            _check_unchanged(destination, names, replaced)
        for name in names:
            was = None if replaced is None else replaced.get(name, _NOTHING)
            _placed(destination, name, work / name, was)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    shutil.rmtree(cache.top, ignore_errors=True)
    return _Brought(done.moved, done.files)


def _check_unchanged(folder: Folder, names: Sequence[str], had: Mapping[str, Side]) -> None:
    """Tests that files of a folder are as they were when it was looked at, so that nobody's change is lost."""
    changed = [
        name
        for name in names
        if (now := version_of(folder.path(name))) and (name not in had or had[name].version != now)
    ]
    if changed:
        raise _changed(folder, changed)


def _changed(place: Place, names: Sequence[str]) -> FairleadError:
    few = ", ".join(names[:5])
    return fail("object-sync-changed", place=place.title, count=len(names), few=few)


def _placed(folder: Folder, name: str, fresh: Path, was: Side | None) -> None:
    """Gives a file its name in a folder, where the one of ``was`` must be at that moment; None for whatever is there.

    Where the file system cannot exchange two files at once (NFS, Lustre), there is a moment between look and rename.

    Raises:
        FairleadError: another file is there, which stays.
    """
    target = folder.path(name)
    target.parent.mkdir(parents=True, exist_ok=True)
    if was is None or (target.is_dir() and not target.is_symlink()):  # which the system refuses
        os.replace(fresh, target)
        return
    aside = _aside(target)
    os.replace(fresh, aside)
    try:
        if not os.path.lexists(target):
            rename_new(aside, target)
        elif not exchange(aside, target):
            _check_unchanged(folder, [name], {name: was})
            os.replace(aside, target)
        elif version_of(aside) != was.version:
            exchange(aside, target)
            raise _changed(folder, [name])
    except (FileExistsError, FileNotFoundError):  # it came, or went, just now
        raise _changed(folder, [name]) from None
    finally:
        aside.unlink(missing_ok=True)


def _unlinked(folder: Folder, name: str, was: Side) -> None:
    """Removes a file of a folder, if it is the one of ``was``.

    Raises:
        FairleadError: another file is there, which stays.
    """
    target = folder.path(name)
    aside = _aside(target)
    try:
        os.rename(target, aside)
    except FileNotFoundError:
        return
    if version_of(aside) != was.version:
        rename_new(aside, target)
        raise _changed(folder, [name])
    aside.unlink()


def _aside(target: Path) -> Path:
    """A name in the same folder, where a link leads to the same place; no file of :meth:`Folder.files`."""
    return target.with_name(f"{_PARTIAL}.{os.getpid()}.file.partial")


def _remove(place: Place, names: Sequence[str], had: Mapping[str, Side]) -> None:
    if isinstance(place, Folder):
        _check_unchanged(place, names, had)
    for name in names:
        if isinstance(place, Prefix):
            status = workers.tried_again(functools.partial(place.store.stat, name))
            if status and status[0].etag != had[name].version:
                raise _changed(place, [name])
            delete = functools.partial(place.store.delete, name, had[name].version)
            try:
                workers.tried_again(delete)
            except FairleadError as exc:
                if not is_lost(exc):
                    raise
                raise _changed(place, [name]) from None
        elif isinstance(place, Folder):
            _unlinked(place, name, had[name])
