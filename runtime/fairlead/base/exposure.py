"""Who else can replace a file: what is preloaded into ranks, or trusted, must be in nobody else's hands."""

from __future__ import annotations

import os
import shlex
import stat
from collections.abc import Iterator
from pathlib import Path

from fairlead.base.errors import fail


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


def exposed(folder: Path, top: Path) -> Iterator[tuple[Path, str]]:
    """The folders that others can write to, of ``folder`` and those above it, as far as they exist; and why.

    Up to ``top``, which is fairlead's, a group that may write counts; above, whose members share a project's folder,
    everybody.

    Raises:
        OSError: one cannot be looked at.
    """
    for part in (folder, *folder.parents):
        if not part.exists():
            continue
        status, why = part.stat(), open_to_others(part)
        ours = part == top or top in part.parents
        if not ours:
            sticky = status.st_mode & stat.S_ISVTX
            why = why if status.st_mode & 0o002 and not sticky else ""
        elif not status.st_mode & 0o002 and status.st_uid in (0, os.geteuid()):
            why = "" if private_group(status.st_gid) else why
        if why:
            yield part, why


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
