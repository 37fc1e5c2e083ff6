"""What one node does: it copies in, it copies back, and it removes what was staged.

On each node of a job the same step may run in several processes, and several nodes may see one
storage: the process that makes the folder works, the others report that they did not.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

from fairlead.base.errors import ExitCode, FairleadError, Finding, error, fail, warning
from fairlead.transfer import copying, folder, room, tree
from fairlead.transfer.copying import OnProgress
from fairlead.transfer.folder import Lock, Owner, Staged
from fairlead.transfer.model import (
    MOUNT,
    InItem,
    Links,
    Moved,
    NodeReport,
    OutItem,
    Tree,
    node_name,
)

_AT_FDCWD = -100
_RENAME_NOREPLACE = 1
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


@dataclass(frozen=True)
class Begun:
    """A folder that was filled, and the lock that says that its run lives."""

    report: NodeReport
    lock: Lock | None = None


def _nobody(what: str, amount: int) -> None: ...


@dataclass(frozen=True)
class InOptions:
    """How data are staged in.

    Attributes:
        job: what an earlier run of it has left is used, when it is what it should be.
        keep: it is to be left to the next run of that job.
        step: other processes do the same; one of them does it.
        hold: the process that calls lives as long as the run: when it ends, the folder is nobody's.
    """

    links: Links = Links.REFUSE
    job: str = ""
    keep: bool = False
    step: bool = False
    hold: bool = True


def stage_in(
    where: str,
    items: Sequence[InItem],
    options: InOptions = InOptions(),
    on_progress: OnProgress = _nobody,
) -> Begun:
    """Makes the folder ``where`` and copies ``items`` into it, all of them or none.

    Args:
        on_progress: called with ``size`` and the bytes that are to be copied, then as :func:`copying.copy`.
    Raises:
        FairleadError: exit codes 2, 121 and 123. Nothing is left then.
    """
    root, me = os.path.dirname(where), node_name()
    folder.usable(root)
    folder.clear_stale(root)
    try:
        lock = folder.make(where, Owner(me, options.job, options.hold, options.keep))
    except FileExistsError:
        if options.step:
            return Begun(NodeReport(me, acted=False))
        raise fail("stage-place-exists", where=where) from None
    except OSError as exc:
        raise _in_words(exc, root) from None
    try:
        moved = _filled(where, root, items, options.links, options.job, on_progress)
    except BaseException as exc:
        with contextlib.suppress(OSError):
            copying.remove(where)
        if lock:
            lock.release()
        if isinstance(exc, OSError):
            raise _in_words(exc, root) from None
        raise
    return Begun(NodeReport(me, acted=True, items=tuple(moved)), lock)


def _filled(
    where: str, root: str, items: Sequence[InItem], links: Links, job: str, on_progress: OnProgress
) -> list[Moved]:
    trees = {item.name: tree.scan(item.source, links) for item in items}
    moved: list[Moved] = []
    whole: dict[str, Staged] = {}
    with folder.of_job(root, job) as earlier:
        for item in items:
            if again := _reused(where, item, trees[item.name], earlier, on_progress):
                whole[item.name], one = again
                moved.append(one)
    todo = [item for item in items if item.name not in whole]
    room.check(where, [trees[item.name] for item in todo])
    on_progress("size", sum(trees[item.name].bytes for item in todo))
    for item in todo:
        seen, partial = trees[item.name], f"{where}/new/copy"
        copied = copying.copy(seen, partial, on_progress)
        copying.unchanged(seen, links)
        target = f"{where}/data/{item.name}"
        os.makedirs(os.path.dirname(target), 0o700, exist_ok=True)
        _moved(partial, target)
        whole[item.name] = Staged(seen, copied.digest, copied.files)
        moved.append(
            Moved(
                node_name(), item.name, seen.top, target, seen.files, seen.bytes, seen.data,
                copied.copy_s, copied.verify_s, copied.digest,
            )
        )  # fmt: skip
    folder.write_manifest(where, whole)
    order = {item.name: n for n, item in enumerate(items)}
    return sorted(moved, key=lambda one: order[one.name])


def _reused(
    where: str, item: InItem, seen: Tree, earlier: Sequence[str], on_progress: OnProgress
) -> tuple[Staged, Moved] | None:
    """Takes an item over from an earlier run of the job, if source and copy are what they were."""
    for other in earlier:
        known = folder.manifest(other)
        for name, staged in known.items():
            if staged.tree.top != seen.top:
                continue
            begun, place = time.monotonic(), f"{other}/data/{name}"
            try:
                there = tree.scan(place, Links.KEEP, seen_as="\0", leave_special=True)
                right = not tree.differences(staged.tree, seen)
                right = right and not copying.differing(seen, there)
                right = right and copying.digests(there, on_progress) == dict(staged.files)
            except (OSError, FairleadError):
                right = False
            folder.write_manifest(other, {n: s for n, s in known.items() if n != name})
            if not right:
                copying.remove(place)
                break
            target = f"{where}/data/{item.name}"
            os.makedirs(os.path.dirname(target), 0o700, exist_ok=True)
            _moved(place, target)
            one = Moved(
                node_name(), item.name, seen.top, target, seen.files, seen.bytes, seen.data,
                0.0, time.monotonic() - begun, staged.digest, reused=True,
            )  # fmt: skip
            return staged, one
    return None


def _moved(source: str, target: str) -> None:
    """Renames within a storage; a folder that may not be written to is made writable for that."""
    mode = os.lstat(source).st_mode
    ours = os.path.isdir(source) and not os.path.islink(source)
    if ours:
        os.chmod(source, 0o700)
    _rename(source, target)
    if ours:
        os.chmod(target, mode & 0o7777)


def stage_out(
    where: str,
    items: Sequence[OutItem],
    *,
    each: bool = False,
    step: bool = False,
    on_progress: OnProgress = _nobody,
) -> NodeReport:
    """Copies ``items`` back from the folder ``where``, then removes it; what is not back stays.

    Args:
        each: several nodes have folders of their own: each copies into a folder of its name.
        step: other processes do the same; one of them does it.
    Raises:
        KeyboardInterrupt: after what is not back was marked as kept.
    """
    me, owner = node_name(), folder.owner_of(where)
    if owner is None or (step and not _acts(where, owner, me)):
        return NodeReport(me, acted=False)
    way_back = _WayBack(where, owner, on_progress)
    for item in items:
        way_back.bring(item, f"{item.target}/{me}" if each else item.target)
    report = way_back.finished(me, items)
    if way_back.interrupted and not step:
        raise Interrupted(report)
    return report


def _acts(where: str, owner: Owner, me: str) -> bool:
    """Whether this process, of several that try, copies back."""
    try:
        if owner.node != me:
            return False
        os.mkdir(f"{where}/out")
    except OSError:
        return False
    return True


class _WayBack:
    """What is back, what is kept where it was, and why.

    Attributes:
        interrupted: by Ctrl-C; what comes after that is kept.
    """

    def __init__(self, where: str, owner: Owner, on_progress: OnProgress):
        self._where, self._owner, self._on_progress = where, owner, on_progress
        self.interrupted = False
        self._moved: list[Moved] = []
        self._findings: list[Finding] = []
        self._kept: dict[str, str] = {}
        self._missing: list[str] = []
        self._code = 0

    def bring(self, item: OutItem, target: str) -> None:
        """Copies one item back."""
        place = f"{self._where}/data/{item.name}"
        if not os.path.lexists(place):
            self._missing.append(item.name)
            return
        try:
            if self.interrupted:
                raise KeyboardInterrupt
            moved, findings = _back(place, item, target, self._on_progress)
            self._moved.append(moved)
            self._findings += findings
            if not self._owner.keep:
                copying.remove(place)
        except (FairleadError, OSError, KeyboardInterrupt) as exc:
            self.interrupted = self.interrupted or isinstance(exc, KeyboardInterrupt)
            self._kept[item.name] = place
            self._code = ExitCode.LAUNCH_FAILED
            self._findings.append(_kept(exc, self._where, item, place, target))

    def finished(self, me: str, items: Sequence[OutItem]) -> NodeReport:
        """Removes what is not kept."""
        where, back = self._where, {moved.name for moved in self._moved}
        for name in folder.kept_results(where):  # by a run before this call
            if name not in back and os.path.lexists(f"{where}/data/{name}"):
                self._kept.setdefault(name, f"{where}/data/{name}")
        try:
            _cleared(where, self._owner, items, self._kept)
        except OSError as exc:
            self._findings.append(
                warning(
                    "stage-clear",
                    filename=exc.filename or where,
                    reason=exc.strerror or str(exc),
                    where=shlex.quote(where),
                )
            )
        return NodeReport(
            me, True, tuple(self._moved), tuple(self._findings), self._code, self._kept,
            tuple(self._missing),
        )  # fmt: skip


class Interrupted(KeyboardInterrupt):
    """Ctrl-C while results were copied back, and what is back by then."""

    def __init__(self, report: NodeReport):
        super().__init__()
        self.report = report


def clear(where: str, *, step: bool = False) -> NodeReport:
    """Removes a run's folder with all that is in it."""
    return stage_out(where, (), step=step)


def _back(
    place: str, item: OutItem, target: str, on_progress: OnProgress
) -> tuple[Moved, list[Finding]]:
    """Copies one item to ``target``, under another name until it is whole."""
    seen_as = f"{MOUNT}/{item.name}"
    seen = tree.scan(place, Links.KEEP, seen_as=seen_as, leave_special=True)
    above = os.path.dirname(target)
    os.makedirs(above, exist_ok=True)
    room.check(above, [seen])
    token = os.urandom(4).hex()
    partial = f"{above}/.{os.path.basename(target)}.{token}.partial"
    on_progress("size", seen.bytes)
    findings = _left(item, seen)
    try:
        copied = copying.copy(seen, partial, on_progress)
        copying.unchanged(seen, Links.KEEP, seen_as)
        try:
            _moved(partial, target)
        except FileExistsError:
            instead = f"{target}.{token}"
            findings.append(
                warning(
                    "stage-out-renamed",
                    item_name=item.name,
                    instead=instead,
                    target=target,
                    quoted_instead=shlex.quote(instead),
                )
            )
            target = instead
            _moved(partial, target)
    except BaseException:
        with contextlib.suppress(OSError):
            copying.remove(partial)
        raise
    return (
        Moved(
            node_name(), item.name, place, target, seen.files, seen.bytes, seen.data,
            copied.copy_s, copied.verify_s, copied.digest,
        ),
        findings,
    )  # fmt: skip


def _left(item: OutItem, seen: Tree) -> list[Finding]:
    found = []
    if seen.left_out:
        shown = ", ".join(f"{path}: {what}" for path, what in seen.left_out[:5])
        found.append(
            warning(
                "stage-special-results",
                left_out_count=len(seen.left_out),
                item_name=item.name,
                shown=shown,
            )
        )
    if seen.outward:
        found.append(
            warning(
                "stage-link-out-of-results",
                outward_count=len(seen.outward),
                item_name=item.name,
                outward=", ".join(seen.outward[:5]),
            )
        )
    return found


def _kept(exc: BaseException, where: str, item: OutItem, place: str, target: str) -> Finding:
    if isinstance(exc, FairleadError):
        first = exc.findings[0]
        why = f"{first.what}: {first.where}; {first.why}"
    elif isinstance(exc, OSError):
        why = f"{exc.filename or target}: {exc.strerror or exc}"
    else:
        why = "it was interrupted"
    words = (sys.executable, "-m", "fairlead.transfer", "out", where, "--item", item.name, target)
    return error(
        "stage-out-failed",
        item_name=item.name,
        node_name=node_name(),
        place=place,
        why=why,
        words=shlex.join(words),
    )


def _cleared(where: str, owner: Owner, items: Sequence[OutItem], kept: dict[str, str]) -> None:
    if kept:
        folder.keep_results(where, list(kept))
    elif owner.keep:
        whole = folder.manifest(where)
        folder.hand_on(where, owner, [i.name for i in items if i.name not in whole])
    else:
        copying.remove(where)


def _in_words(exc: OSError, root: str) -> FairleadError:
    if exc.errno in _NO_ROOM:
        return room.no_room(
            root, f"{exc.strerror} while {exc.filename or root} was written: others also fill it"
        )
    return folder.in_words(exc, root)


def _rename(source: str, target: str) -> None:
    """Renames, and replaces nothing.

    Raises:
        FileExistsError: there is something at ``target``.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    words = (os.fsencode(source), os.fsencode(target))
    try:
        failed = libc.renameat2(_AT_FDCWD, words[0], _AT_FDCWD, words[1], _RENAME_NOREPLACE)
        number = ctypes.get_errno() if failed else 0
    except AttributeError:  # a C library before glibc 2.28
        number = errno.ENOSYS
    if not number:
        return
    if number not in (errno.ENOSYS, errno.EINVAL):  # NFS, Lustre: no such rename
        raise OSError(number, os.strerror(number), source, None, target)
    if os.path.isdir(source) and not os.path.islink(source):
        if os.path.lexists(target):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), target)
        os.rename(source, target)  # over an empty folder at most
    else:
        os.link(source, target, follow_symlinks=False)
        os.unlink(source)
