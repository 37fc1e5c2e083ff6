"""What one node does: it copies in, it copies back, and it removes what was staged.

On each node of a job the same step may run in several processes, and several nodes may see one
storage: the process that makes the folder works, the others report that they did not.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from fairlead.base.errors import ExitCode, FairleadError, Finding, error, fail, info, warning
from fairlead.base.paths import rename_new
from fairlead.base.process import PYTHON
from fairlead.objects.model import Listing
from fairlead.objects.url import is_url
from fairlead.transfer import copying, folder, free_space, remote, tree
from fairlead.transfer.copying import Copied, OnProgress, silent
from fairlead.transfer.folder import Owner, Staged
from fairlead.transfer.model import MOUNT, InItem, Kind, Links, Moved, NodeReport, OutItem, Tree
from fairlead.transfer.remote import PLAIN, Remote


@dataclass(frozen=True)
class Begun:
    """A folder that was filled, and the descriptor of the lock that shows that its run is alive."""

    report: NodeReport
    lock: int | None = None


@dataclass(frozen=True)
class InOptions:
    """How data are staged in.

    Attributes:
        job: what an earlier run of it has left is reused, if it is unchanged.
        keep: it is to be left to the next run of that job.
        step: other processes do the same; one of them works.
        hold: the calling process lives as long as the run: the folder is stale when it ends.
        outs: what is to be copied back.
        remote: how what is in object stores travels.
    """

    links: Links = Links.REFUSE
    job: str = ""
    keep: bool = False
    step: bool = False
    hold: bool = True
    outs: tuple[OutItem, ...] = ()
    remote: Remote = PLAIN


def stage_in(
    where: str,
    items: Sequence[InItem],
    options: InOptions = InOptions(),
    on_progress: OnProgress = silent,
) -> Begun:
    """Makes the folder ``where`` and copies ``items`` into it, all of them or none.

    Args:
        on_progress: called with ``size`` and the bytes that are to be copied, then as :func:`copying.copy`.
    Raises:
        FairleadError: exit codes 2, 121 and 123. Nothing is left then.
    """
    root, me = os.path.dirname(where), os.uname().nodename
    folder.check_usable(root)
    findings = [_left_by_killed(*left) for left in folder.clear_stale(root)]
    notes: list[Finding] = []
    outs = {item.name: item.target for item in options.outs}
    try:
        lock = folder.make(where, Owner(me, options.job, options.hold, options.keep, outs=outs))
    except FileExistsError:
        if options.step:
            return Begun(NodeReport(me, acted=False))
        raise fail("stage-place-exists", where=where) from None
    except OSError as exc:
        raise _as_error(exc, root) from None
    try:
        moved = _filled(where, items, options, notes, on_progress)
    except BaseException as exc:
        with contextlib.suppress(OSError):
            copying.remove(where)
        if lock is not None:
            os.close(lock)
        if isinstance(exc, OSError):
            raise _as_error(exc, root) from None
        raise
    return Begun(NodeReport(me, acted=True, items=moved, findings=(*findings, *notes)), lock)


def _left_by_killed(where: str, results: Mapping[str, str]) -> Finding:
    """The finding for results that a killed run has left in its folder ``where``."""
    items = [word for name, target in results.items() for word in ("--item", name, target)]
    again = shlex.join((*PYTHON, "-m", "fairlead.transfer", "out", where, *items))
    names = ", ".join(results)
    return warning("stage-left", names=names, where=where, node=os.uname().nodename, words=again)


def copy_in(
    top: str, items: Sequence[InItem], how: Remote = PLAIN, on_progress: OnProgress = silent
) -> NodeReport:
    """Copies ``items`` into a folder that stays, each whole or not at all. What is there already stays as it is.

    Raises:
        FairleadError: exit codes 2, 121 and 123.
    """
    me, options = os.uname().nodename, InOptions(remote=how)
    moved: list[Moved] = []
    there = {item.name for item in items if os.path.lexists(f"{top}/{item.name}")}
    notes = [info("stage-in-there", place=f"{top}/{name}") for name in sorted(there)]
    try:
        os.makedirs(top, exist_ok=True)
        filling = _Filling(_sources([i for i in items if i.name not in there], options), options)
        filling.check(top, on_progress)
        for item in filling.items:
            partial = f"{top}/.{item.name.replace('/', '.')}.{os.urandom(4).hex()}.partial"
            try:
                moved.append(filling.fill(item, partial, f"{top}/{item.name}", top, on_progress))
            except BaseException:
                with contextlib.suppress(OSError):
                    copying.remove(partial)
                raise
    except OSError as exc:
        raise _as_error(exc, top) from None
    return NodeReport(me, True, tuple(moved), (*notes, *filling.notes))


def _sources(items: Sequence[InItem], options: InOptions) -> dict[InItem, Tree | Listing]:
    """What is to be copied: trees of this machine, and what is in stores."""
    pins = options.remote.pins
    return {
        item: (pins.get(item.source) or remote.listing_of(item.source))
        if is_url(item.source)
        else tree.scan(item.source, options.links)
        for item in items
    }


@dataclass
class _Filling:
    """Items on their way into a folder.

    Attributes:
        whole: what was copied from trees, by name.
    """

    sources: Mapping[InItem, Tree | Listing]
    options: InOptions
    notes: list[Finding] = field(default_factory=list)
    whole: dict[str, Staged] = field(default_factory=dict)

    @property
    def items(self) -> Sequence[InItem]:
        return list(self.sources)

    def check(self, where: str, on_progress: OnProgress) -> None:
        """Tests that there is room for all of them."""
        trees = [s if isinstance(s, Tree) else remote.tree_of(s) for s in self.sources.values()]
        free_space.check(where, trees)
        on_progress("size", sum(source.bytes for source in trees))

    def fill(
        self, item: InItem, partial: str, target: str, root: str, on_progress: OnProgress
    ) -> Moved:
        """Copies one item; it has the name ``target`` when all of it is there.

        Args:
            root: the storage that the target is in.
        """
        source, how = self.sources[item], self.options
        if isinstance(source, Listing):
            copied, count, problem = remote.bring(
                source, partial, root, how.remote, how.keep, on_progress
            )
            self.notes += problem
            moved = Moved(
                os.uname().nodename, item.name, source.url, target, len(copied.files), source.bytes, count,
                copied.copy_s, copied.verify_s, copied.digest, bool(source.bytes) and not count,
            )  # fmt: skip
        else:
            copied = copying.copy(source, partial, on_progress)
            copying.unchanged(source, how.links)
            self.whole[item.name] = Staged(source.top, copied.digest, copied.files, source.entries)
            moved = _moved(item.name, source.top, target, source, copied)
        os.makedirs(os.path.dirname(target), 0o700, exist_ok=True)
        rename_new(Path(partial), Path(target))
        return moved


def _filled(
    where: str,
    items: Sequence[InItem],
    options: InOptions,
    notes: list[Finding],
    on_progress: OnProgress,
) -> tuple[Moved, ...]:
    root, sources = os.path.dirname(where), _sources(items, options)
    moved: dict[str, Moved] = {}
    whole: dict[str, Staged] = {}
    with folder.of_job(root, options.job) as earlier:
        for item, source in sources.items():
            target = f"{where}/data/{item.name}"
            for other in earlier if isinstance(source, Tree) else ():
                assert isinstance(source, Tree)
                begun = time.monotonic()
                if staged := _taken_over(other, source, target, on_progress):
                    copied = Copied(staged.digest, {}, 0.0, time.monotonic() - begun)
                    whole[item.name] = staged
                    moved[item.name] = _moved(item.name, source.top, target, source, copied, True)
                    break
    filling = _Filling({i: s for i, s in sources.items() if i.name not in whole}, options)
    filling.check(where, on_progress)
    for item in filling.items:
        target, partial = f"{where}/data/{item.name}", f"{where}/new/copy"
        moved[item.name] = filling.fill(item, partial, target, root, on_progress)
    notes += filling.notes
    folder.write_manifest(where, whole | filling.whole)
    return tuple(moved[item.name] for item in items)


def _taken_over(other: str, source: Tree, target: str, on_progress: OnProgress) -> Staged | None:
    """Moves an item over from an earlier run's folder, if source and copy are what they were."""
    known = folder.manifest(other)
    for name, staged in known.items():
        if staged.top != source.top:
            continue
        place = f"{other}/data/{name}"
        try:
            copy = tree.scan(place, Links.KEEP, seen_as="\0", leave_special=True)
            right = (
                not tree.differences(staged.tree, source)
                and not tree.differences(source, copy, copied=True)
                and copying.digests(copy, on_progress) == staged.files
            )
        except (OSError, FairleadError):
            right = False
        folder.write_manifest(other, {n: s for n, s in known.items() if n != name})
        if not right:
            copying.remove(place)
            return None
        os.makedirs(os.path.dirname(target), 0o700, exist_ok=True)
        rename_new(Path(place), Path(target))
        return staged
    return None


def _moved(
    name: str, source: str, target: str, what: Tree, copied: Copied, reused: bool = False
) -> Moved:
    files = sum(entry.kind is Kind.FILE for entry in what.entries)
    data = sum(file.data for file in what.contents)
    return Moved(
        os.uname().nodename, name, source, target, files, what.bytes, data,
        copied.copy_s, copied.verify_s, copied.digest, reused,
    )  # fmt: skip


def stage_out(
    where: str,
    items: Sequence[OutItem],
    *,
    each: bool = False,
    step: bool = False,
    how: Remote = PLAIN,
    on_progress: OnProgress = silent,
) -> NodeReport:
    """Copies ``items`` back from the folder ``where``, then removes it; what is not back stays.

    Args:
        each: several nodes have such folders: each copies into a folder of its name.
        step: other processes do the same; one of them works.
    Raises:
        Interrupted: after what is not back was marked as kept.
    """
    me, owner = os.uname().nodename, folder.owner_of(where)
    if owner is None or (step and not _acts(where, owner, me)):
        return NodeReport(me, acted=False)
    back = _Back(how, on_progress, removes=not owner.keep)
    for item in items:
        place = f"{where}/data/{item.name}"
        target = f"{item.target}/{me}" if each else item.target
        words = ("out", where, "--item", item.name, target)
        back.copy(_Result(item, place, target, words, f"{MOUNT}/{item.name}", where))
    code = ExitCode.LAUNCH_FAILED if back.kept else 0
    returned = {file.name for file in back.moved}
    for name in folder.kept_results(where):  # by a run before this call
        if name not in returned and os.path.lexists(f"{where}/data/{name}"):
            back.kept.setdefault(name, f"{where}/data/{name}")
    back.findings += _cleared(where, owner, items, back.kept)
    report = back.report(me, code)
    if back.interrupted and not step:
        raise Interrupted(report)
    return report


def copy_out(
    top: str, items: Sequence[OutItem], how: Remote = PLAIN, on_progress: OnProgress = silent
) -> NodeReport:
    """Copies ``items`` of a folder that stays, as :func:`stage_out` does; the name ``.`` is that of the whole folder.

    Raises:
        Interrupted: what is not copied stays where it is.
    """
    me, back = os.uname().nodename, _Back(how, on_progress)
    for item in items:
        place = os.path.normpath(f"{top}/{item.name}")
        words = ("copy", top, "--item", item.name, item.target)
        back.copy(_Result(item, place, item.target, words))
    report = back.report(me, ExitCode.LAUNCH_FAILED if back.kept else 0)
    if back.interrupted:
        raise Interrupted(report)
    return report


@dataclass(frozen=True)
class _Result:
    """Something to copy back.

    Attributes:
        words: of ``python3 -m fairlead.transfer``, which do it again.
        seen_as: the path by which links within it name it; ``place`` otherwise.
        stage: the folder of the run, which knows what is unfinished; empty without one.
    """

    item: OutItem
    place: str
    target: str
    words: tuple[str, ...]
    seen_as: str = ""
    stage: str = ""


@dataclass
class _Back:
    """What was copied back, and what was not.

    Attributes:
        removes: what is back is removed.
    """

    how: Remote
    on_progress: OnProgress
    removes: bool = False
    moved: list[Moved] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    kept: dict[str, str] = field(default_factory=dict)
    interrupted: bool = False

    def copy(self, result: _Result) -> None:
        """Copies one result, unless there was an interrupt."""
        name = result.item.name
        if not os.path.lexists(result.place):
            self.missing.append(name)
            return
        try:
            if self.interrupted:
                raise KeyboardInterrupt
            copy = functools.partial(_sent, self.how) if is_url(result.target) else _back
            self.moved.append(copy(result, self.findings, self.on_progress))
            if self.removes:
                copying.remove(result.place)
        except (FairleadError, OSError, KeyboardInterrupt) as exc:
            self.interrupted = self.interrupted or isinstance(exc, KeyboardInterrupt)
            self.kept[name] = result.place
            self.findings.append(_kept(exc, result))

    def report(self, node: str, code: int) -> NodeReport:
        moved, findings = tuple(self.moved), tuple(self.findings)
        return NodeReport(node, True, moved, findings, code, self.kept, tuple(self.missing))


def _acts(where: str, owner: Owner, me: str) -> bool:
    """Whether this process, of several that try, copies back."""
    with contextlib.suppress(OSError):
        if owner.node == me:
            os.mkdir(f"{where}/out")
            return True
    return False


class Interrupted(KeyboardInterrupt):
    """Ctrl-C while results were copied back; ``report`` says what is back by then."""

    def __init__(self, report: NodeReport):
        super().__init__()
        self.report = report


def _back(result: _Result, findings: list[Finding], on_progress: OnProgress) -> Moved:
    """Copies one item to a path, under another name until it is complete; adds warnings."""
    item, target = result.item, result.target
    scanned = tree.scan(result.place, Links.KEEP, seen_as=result.seen_as, leave_special=True)
    above = os.path.dirname(target)
    os.makedirs(above, exist_ok=True)
    free_space.check(above, [scanned])
    token = os.urandom(4).hex()
    partial = f"{above}/.{os.path.basename(target)}.{token}.partial"
    on_progress("size", scanned.bytes)
    notes = _incomplete(item, scanned)
    if result.stage:
        folder.will_make(result.stage, partial)
    try:
        copied = copying.copy(scanned, partial, on_progress)
        copying.unchanged(scanned, Links.KEEP, result.seen_as)
        try:
            rename_new(Path(partial), Path(target))
        except FileExistsError:
            own = f"{target}.{token}"
            notes.append(
                warning(
                    "stage-out-renamed", item=item, target=target, own=own, quoted=shlex.quote(own)
                )
            )
            target = own
            rename_new(Path(partial), Path(target))
    except BaseException:
        with contextlib.suppress(OSError):
            copying.remove(partial)
        raise
    findings += notes
    return _moved(item.name, result.place, target, scanned, copied)


def _sent(how: Remote, result: _Result, findings: list[Finding], on_progress: OnProgress) -> Moved:
    """Writes one item to a URL; adds warnings."""
    item = result.item
    scanned = tree.scan(result.place, Links.KEEP, seen_as=result.seen_as, leave_special=True)
    on_progress("size", scanned.bytes)
    moved = remote.back(item.name, scanned, result.target, how, on_progress)
    copying.unchanged(scanned, Links.KEEP, result.seen_as)
    outward = tuple((path, "a link that leads out") for path in scanned.outward)
    findings += _incomplete(item, replace(scanned, left_out=scanned.left_out + outward, outward=()))
    return moved


def _incomplete(item: OutItem, result: Tree) -> list[Finding]:
    notes = []
    if result.left_out:
        few = ", ".join(f"{path}: {what}" for path, what in result.left_out[:5])
        count = len(result.left_out)
        notes.append(warning("stage-special-results", count=count, item=item, few=few))
    if result.outward:
        few, count = ", ".join(result.outward[:5]), len(result.outward)
        notes.append(warning("stage-link-out-of-results", count=count, item=item, few=few))
    return notes


def _kept(exc: BaseException, result: _Result) -> Finding:
    if isinstance(exc, FairleadError):
        first = exc.findings[0]
        why = f"{first.what}: {first.where}; {first.why}"
    elif isinstance(exc, OSError):
        why = f"{exc.filename or result.target}: {exc.strerror or exc}"
    else:
        why = "it was interrupted"
    again = shlex.join((*PYTHON, "-m", "fairlead.transfer", *result.words))
    item, me, place = result.item, os.uname().nodename, result.place
    if result.stage:
        return error("stage-out-failed", item=item, node=me, place=place, why=why, words=again)
    return error("stage-out-folder", node=me, place=place, why=why, words=again)


def _cleared(
    where: str, owner: Owner, items: Sequence[OutItem], kept: dict[str, str]
) -> list[Finding]:
    """Removes what is neither kept nor left to the next run."""
    try:
        if kept:
            folder.keep_results(where, list(kept))
        elif owner.keep:
            whole = folder.manifest(where)
            folder.hand_on(where, owner, [i.name for i in items if i.name not in whole])
        else:
            copying.remove(where)
    except OSError as exc:
        reason = exc.strerror or str(exc)
        filename, quoted = exc.filename or where, shlex.quote(where)
        return [warning("stage-clear", filename=filename, reason=reason, where=quoted)]
    return []


def _as_error(exc: OSError, root: str) -> FairleadError:
    """An error of the system while something was staged in."""
    filename, reason = exc.filename or root, exc.strerror or str(exc)
    if exc.errno in (errno.ENOSPC, errno.EDQUOT):
        why = f"{reason} while {filename} was written: others also fill it"
        return fail("stage-room", folder=root, why=why)
    return fail("stage-copy", filename=filename, reason=reason, where=root)
