"""Who else can replace a file: what is preloaded into ranks, or trusted, must be in nobody else's hands."""

from __future__ import annotations

import errno
import os
import shlex
import stat
from collections.abc import Iterator
from pathlib import Path

from fairlead.base.errors import fail

_LINKS = 40  # as many as the kernel follows
_UNMAPPED = 65534  # the owner of what another user namespace owns


def open_to_others(path: Path) -> str:
    """Why another user could replace ``path``; empty if only its owner and root can.

    A sticky folder (``/tmp``) is closed: only the owner of a file there may replace it.

    Raises:
        OSError: it cannot be looked at.
    """
    status = path.stat()
    if status.st_uid not in (0, os.geteuid()):
        return f"it belongs to user {status.st_uid}"
    sticky = stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX
    if status.st_mode & 0o022 and not sticky:
        return f"its mode is {stat.S_IMODE(status.st_mode):04o}"
    return ""


def lent_to_root(folder: Path) -> str:
    """Whose ``folder`` root would fill with files of its own, as with `sudo`; empty for all others and root's own.

    What root made there before is still the user's, by the folder above.
    """
    if os.geteuid() != 0:
        return ""
    there = [path for path in (folder, *folder.parents) if path.exists()]
    nearest = there[:2] if there[0] == folder else there[:1]
    owners = [path.stat().st_uid for path in nearest]
    uid = next((uid for uid in owners if uid not in (0, _UNMAPPED)), None)
    if uid is None:
        return ""
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def private_group(gid: int) -> bool:
    """Whether a group is the user's own, as Debian and Red Hat make them: then a umask of 002 opens nothing."""
    import grp
    import pwd

    try:
        own, group = pwd.getpwuid(os.geteuid()), grp.getgrgid(gid)
    except KeyError:
        return False
    alone = set(group.gr_mem) <= {own.pw_name}
    return own.pw_gid == gid and group.gr_name == own.pw_name and alone


def way(path: Path) -> list[Path]:
    """The folders through which ``path`` is found, links followed, from ``/`` to itself, as far as they exist.

    Whoever can write to one of them decides what ``path`` is. Each is given by its real path; a link counts as far as
    its owner may replace it: in a sticky folder.

    Raises:
        OSError: one cannot be looked at, or links lead round in a circle.
    """
    at, links = Path("/"), 0
    folders = [at]
    ahead = list(reversed((Path.cwd() / path).parts[1:]))
    while ahead:
        name = ahead.pop()
        if name == "..":
            at = at.parent
            continue
        entry = at / name
        try:
            status = entry.lstat()
        except FileNotFoundError:
            break
        if not stat.S_ISLNK(status.st_mode):
            at = entry
        else:
            links += 1
            if links > _LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
            target = entry.readlink()
            at = Path("/") if target.is_absolute() else at
            ahead += reversed([part for part in target.parts if part != "/"])
        folders.append(entry)
    return list(dict.fromkeys(folders))


def exposed(path: Path, top: Path) -> Iterator[tuple[Path, str]]:
    """What others can write to, of ``path`` and all through which it is found, links followed; and why.

    From ``top``, which is fairlead's, a group that may write counts; above, whose members share a project's folder,
    everybody, and who owns an entry of a sticky folder.

    Raises:
        OSError: one cannot be looked at.
    """
    between = [path, *(part for part in path.parents if top in (part, *part.parents))]
    ours = {Path(os.path.realpath(part)) for part in (top, *between)}
    for part in reversed(way(path)):
        status, own = part.lstat(), (0, os.geteuid())
        why = ""
        if not stat.S_ISLNK(status.st_mode):
            why = open_to_others(part)
            if not ours & {part, *part.parents}:
                sticky = status.st_mode & stat.S_ISVTX
                why = why if status.st_mode & 0o002 and not sticky else ""
            elif not status.st_mode & 0o002 and status.st_uid in own:
                why = "" if private_group(status.st_gid) else why
        if not why and status.st_uid not in own and _is_shared(part.parent):
            why = f"it belongs to user {status.st_uid}"
        if why:
            yield part, why


def _is_shared(folder: Path) -> bool:
    """Whether several users write to a folder, each replacing what is their own, as to ``/tmp``."""
    mode = folder.stat().st_mode
    return bool(mode & stat.S_ISVTX and mode & 0o022)


def refuse_exposed(folder: Path, cache: Path) -> None:
    """Refuses what is to be mapped into ranks where somebody else could have put it there.

    Raises:
        FairleadError: exit code 121; others can write to ``folder`` in ``cache``, or to a folder above.
    """
    for part, why in exposed(folder, cache):
        raise fail(
            "cache-exposed",
            part=part,
            why=why,
            quoted_part=shlex.quote(str(part)),
            quoted_folder=shlex.quote(str(folder)),
        )
