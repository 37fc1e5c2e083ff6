"""What one node does: it copies in, it copies back, and it removes what was staged.

On each node of a job the same step may run in several processes, and several nodes may see one
storage: the process that makes the folder works, the others report that they did not.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import os
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from fairlead.base.errors import ExitCode, FairleadError, Finding, error, fail, warning
from fairlead.objects.model import Listing
from fairlead.objects.url import is_url
from fairlead.transfer import copying, folder, free_space, remote, tree
from fairlead.transfer.copying import Copied, OnProgress, silent
from fairlead.transfer.folder import Owner, Staged
from fairlead.transfer.model import MOUNT, InItem, Kind, Links, Moved, NodeReport, OutItem, Tree
from fairlead.transfer.remote import PLAIN, Remote

_AT_FDCWD = -100
_RENAME_NOREPLACE = 1


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
    found = [_left_by_killed(*left) for left in folder.clear_stale(root)]
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
    return Begun(NodeReport(me, acted=True, items=moved, findings=(*found, *notes)), lock)


def _left_by_killed(where: str, results: Mapping[str, str]) -> Finding:
    """The finding for results that a killed run has left in its folder ``where``."""
    items = [word for name, target in results.items() for word in ("--item", name, target)]
    again = shlex.join((sys.executable, "-m", "fairlead.transfer", "out", where, *items))
    names = ", ".join(results)
    return warning("stage-left", names=names, where=where, node=os.uname().nodename, words=again)


def _filled(
    where: str,
    items: Sequence[InItem],
    options: InOptions,
    notes: list[Finding],
    on_progress: OnProgress,
) -> tuple[Moved, ...]:
    root, how = os.path.dirname(where), options.remote
    listings = {
        item.name: how.pins.get(item.source) or remote.listing_of(item.source)
        for item in items
        if is_url(item.source)
    }
    trees = {
        item.name: remote.tree_of(listings[item.name])
        if item.name in listings
        else tree.scan(item.source, options.links)
        for item in items
    }
    moved: dict[str, Moved] = {}
    whole: dict[str, Staged] = {}
    with folder.of_job(root, options.job) as earlier:
        for item in items:
            source, target = trees[item.name], f"{where}/data/{item.name}"
            for other in earlier if item.name not in listings else ():
                begun = time.monotonic()
                if staged := _taken_over(other, source, target, on_progress):
                    copied = Copied(staged.digest, {}, 0.0, time.monotonic() - begun)
                    whole[item.name] = staged
                    moved[item.name] = _moved(item.name, source.top, target, source, copied, True)
                    break
    todo = [item for item in items if item.name not in whole]
    free_space.check(where, [trees[item.name] for item in todo])
    on_progress("size", sum(trees[item.name].bytes for item in todo))
    for item in todo:
        source, target = trees[item.name], f"{where}/data/{item.name}"
        partial = f"{where}/new/copy"
        if item.name in listings:
            listing = listings[item.name]
            moved[item.name] = _brought(item, listing, where, options, notes, on_progress)
            continue
        copied = copying.copy(source, partial, on_progress)
        copying.unchanged(source, options.links)
        os.makedirs(os.path.dirname(target), 0o700, exist_ok=True)
        _rename(partial, target)
        whole[item.name] = Staged(source.top, copied.digest, copied.files, source.entries)
        moved[item.name] = _moved(item.name, source.top, target, source, copied)
    folder.write_manifest(where, whole)
    return tuple(moved[item.name] for item in items)


def _brought(
    item: InItem,
    listing: Listing,
    where: str,
    options: InOptions,
    notes: list[Finding],
    on_progress: OnProgress,
) -> Moved:
    """Brings one item from its store; adds warnings."""
    partial, target = f"{where}/new/copy", f"{where}/data/{item.name}"
    root = os.path.dirname(where)
    copied, count, said = remote.bring(
        listing, partial, root, options.remote, options.keep, on_progress
    )
    notes += said
    os.makedirs(os.path.dirname(target), 0o700, exist_ok=True)
    _rename(partial, target)
    files = len(copied.files)
    return Moved(
        os.uname().nodename, item.name, listing.url, target, files, listing.bytes, count,
        copied.copy_s, copied.verify_s, copied.digest, bool(listing.bytes) and not count,
    )  # fmt: skip


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
        _rename(place, target)
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
    moved: list[Moved] = []
    findings: list[Finding] = []
    missing: list[str] = []
    kept: dict[str, str] = {}
    interrupted = False
    for item in items:
        place = f"{where}/data/{item.name}"
        target = f"{item.target}/{me}" if each else item.target
        if not os.path.lexists(place):
            missing.append(item.name)
            continue
        try:
            if interrupted:
                raise KeyboardInterrupt
            copy_back = functools.partial(_sent, how) if is_url(target) else _back
            moved.append(copy_back(where, item, target, findings, on_progress))
            if not owner.keep:
                copying.remove(place)
        except (FairleadError, OSError, KeyboardInterrupt) as exc:
            interrupted = interrupted or isinstance(exc, KeyboardInterrupt)
            kept[item.name] = place
            findings.append(_kept(exc, where, item, place, target))
    code = ExitCode.LAUNCH_FAILED if kept else 0
    back = {one.name for one in moved}
    for name in folder.kept_results(where):  # by a run before this call
        if name not in back and os.path.lexists(f"{where}/data/{name}"):
            kept.setdefault(name, f"{where}/data/{name}")
    findings += _cleared(where, owner, items, kept)
    report = NodeReport(me, True, tuple(moved), tuple(findings), code, kept, tuple(missing))
    if interrupted and not step:
        raise Interrupted(report)
    return report


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


def _back(
    where: str, item: OutItem, target: str, findings: list[Finding], on_progress: OnProgress
) -> Moved:
    """Copies one item to ``target``, under another name until it is complete; adds warnings."""
    seen_as, place = f"{MOUNT}/{item.name}", f"{where}/data/{item.name}"
    result = tree.scan(place, Links.KEEP, seen_as=seen_as, leave_special=True)
    above = os.path.dirname(target)
    os.makedirs(above, exist_ok=True)
    free_space.check(above, [result])
    token = os.urandom(4).hex()
    partial = f"{above}/.{os.path.basename(target)}.{token}.partial"
    on_progress("size", result.bytes)
    notes = _incomplete(item, result)
    folder.will_make(where, partial)
    try:
        copied = copying.copy(result, partial, on_progress)
        copying.unchanged(result, Links.KEEP, seen_as)
        try:
            _rename(partial, target)
        except FileExistsError:
            own = f"{target}.{token}"
            notes.append(
                warning(
                    "stage-out-renamed", item=item, target=target, own=own, quoted=shlex.quote(own)
                )
            )
            target = own
            _rename(partial, target)
    except BaseException:
        with contextlib.suppress(OSError):
            copying.remove(partial)
        raise
    findings += notes
    return _moved(item.name, place, target, result, copied)


def _sent(
    how: Remote,
    where: str,
    item: OutItem,
    target: str,
    findings: list[Finding],
    on_progress: OnProgress,
) -> Moved:
    """Writes one item to the URL ``target``; adds warnings."""
    seen_as, place = f"{MOUNT}/{item.name}", f"{where}/data/{item.name}"
    result = tree.scan(place, Links.KEEP, seen_as=seen_as, leave_special=True)
    on_progress("size", result.bytes)
    moved = remote.back(item.name, result, target, how, on_progress)
    copying.unchanged(result, Links.KEEP, seen_as)
    outward = tuple((path, "a link that leads out") for path in result.outward)
    findings += _incomplete(item, replace(result, left_out=result.left_out + outward, outward=()))
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


def _kept(exc: BaseException, where: str, item: OutItem, place: str, target: str) -> Finding:
    if isinstance(exc, FairleadError):
        first = exc.findings[0]
        why = f"{first.what}: {first.where}; {first.why}"
    elif isinstance(exc, OSError):
        why = f"{exc.filename or target}: {exc.strerror or exc}"
    else:
        why = "it was interrupted"
    words = (sys.executable, "-m", "fairlead.transfer", "out", where, "--item", item.name, target)
    me, again = os.uname().nodename, shlex.join(words)
    return error("stage-out-failed", item=item, node=me, place=place, why=why, words=again)


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


def _rename(source: str, target: str) -> None:
    """Renames within a storage; replaces nothing, which ``os.rename`` would.

    A folder that is not writable is made writable for that.

    Raises:
        FileExistsError: ``target`` exists.
    """
    mode = os.lstat(source).st_mode
    is_folder = os.path.isdir(source) and not os.path.islink(source)
    if is_folder:
        os.chmod(source, 0o700)
    libc = ctypes.CDLL(None, use_errno=True)
    paths = (os.fsencode(source), os.fsencode(target))
    try:
        failed = libc.renameat2(_AT_FDCWD, paths[0], _AT_FDCWD, paths[1], _RENAME_NOREPLACE)
        number = ctypes.get_errno() if failed else 0
    except AttributeError:  # a C library before glibc 2.28
        number = errno.ENOSYS
    if number in (errno.ENOSYS, errno.EINVAL):  # NFS, Lustre: no such rename
        if not is_folder:
            os.link(source, target, follow_symlinks=False)
            os.unlink(source)
        elif os.path.lexists(target):
            number = errno.EEXIST
        else:
            os.rename(source, target)  # over an empty folder at most
    if number not in (0, errno.ENOSYS, errno.EINVAL):
        raise OSError(number, os.strerror(number), source, None, target)
    if is_folder:
        os.chmod(target, mode & 0o7777)
