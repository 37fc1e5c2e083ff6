"""A tree to work in: unpacked, with its own programs running in it, isolated from the machine.

:func:`sandbox` starts a module (``in_sandbox.py``, ``source_in_sandbox.py``) as the supervisor of
``base/jail.py``. It calls :func:`enter`, and runs programs of the tree in the jail that this returns. Once
one has run, only what is in the jail too touches the tree; what changed in it leaves as a tar, by
:func:`write_changes`.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import stat
import subprocess
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from fairlead_build.base import tar
from fairlead_build.base.jail import Jail, supervised, tree_owner, within

# Not part of a tree: engines mount over them, or they are caches and scratch.
_LEFT_OUT = frozenset(
    {"dev", "proc", "sys", "run", "tmp", "var/tmp", "var/cache/ldconfig", "var/log", "root"}
)
_OWN = ".fairlead-"
_LARGE = 1 << 18
# By the tree's own tar, in it. Debian's /lib is a link to /usr/lib, and stays one.
LAY = ("tar", "-x", "-p", "--no-same-owner", "--keep-directory-symlink", "-C", "/", "-f")


@contextmanager
def sandbox(
    module: str, request: Mapping[str, Any], scratch: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """Starts ``python -m module`` as a supervisor, with a request for :func:`enter`.

    Args:
        scratch: an empty folder of ours; the tree is unpacked in it.
    """
    asked = scratch / "request.json"
    asked.write_text(json.dumps({**request, "root": str(scratch / "root")}), "utf-8")
    with supervised(module, asked) as process:
        yield process


# --- inside ------------------------------------------------------------------------------------


def enter(asked: Mapping[str, Any]) -> Jail:
    """Unpacks the tree ``asked["base"]``, which belongs to a jail's root then; returns its jail.

    Raises:
        OSError, subprocess.CalledProcessError: it cannot be.
    """
    root, owner = Path(asked["root"]), tree_owner()
    root.mkdir()
    os.chown(root, owner, owner)
    # By its owner, so that no file has to change hands; it may not be allowed to come here by name.
    how: dict[str, Any] = {"user": owner, "group": owner, "extra_groups": ()} if owner else {}
    with subprocess.Popen(asked["untar"], stdout=subprocess.PIPE) as source:
        unpack = ["tar", "-x", "-p", "--no-same-owner"]
        subprocess.run(unpack, stdin=source.stdout, check=True, cwd=root, **how)
    if source.returncode:
        raise subprocess.CalledProcessError(source.returncode, asked["untar"])
    given = {target: Path(source_path) for target, source_path in asked["given"].items()}
    for name in ("dev", "proc", "sys", "run", "tmp", *_outermost(given)):
        folder = root / name.lstrip("/")
        if not folder.exists():
            folder.mkdir()
            os.chown(folder, owner, owner)
    for folder in _outermost(given).values():
        for path in (folder, *folder.rglob("*")):
            # Whatever the umask was: a jail has other ids.
            if not path.is_symlink():
                mode = stat.S_IMODE(path.stat().st_mode)
                path.chmod(mode | (0o555 if mode & 0o100 else 0o444))
    return Jail(root, given)


def _outermost(given: Mapping[str, Path]) -> dict[str, Path]:
    """Those that do not lie in another, which has a place for them."""
    return {
        target: path
        for target, path in given.items()
        if not any(target.startswith(f"{other}/") for other in given)
    }


# For each path of a tree a mark that changes when it is touched.
Snapshot = dict[str, tuple[int, ...]]


def snapshot(root: Path) -> Snapshot:
    """Looks at every file below ``root``. A change after it moves the change time of its inode."""
    marks = {path: _mark(info) for path, _, info in walk(root)}
    newest = max((mark[2] for mark in marks.values() if len(mark) > 2), default=0)
    probe = root / f"{_OWN}probe"
    # Clocks of file systems tick in milliseconds: the next change must fall into a later tick.
    probe.touch()
    while probe.stat().st_ctime_ns <= newest:
        probe.unlink()
        probe.touch()
    probe.unlink()
    return marks


def _mark(info: os.stat_result) -> tuple[int, ...]:
    if stat.S_ISDIR(info.st_mode):
        return (0, info.st_mode)  # that something was put in it does not matter
    return (info.st_ino, info.st_mode, info.st_ctime_ns)


def walk(root: Path) -> Iterator[tuple[str, Path, os.stat_result]]:
    """Every path of the tree, in one fixed order, a folder before what is in it."""
    waiting = [("", root)]
    while waiting:
        name, folder = waiting.pop()
        inner = []
        with os.scandir(folder) as entries:
            children = sorted(entries, key=lambda entry: entry.name)
        for entry in children:
            path = f"{name}/{entry.name}" if name else entry.name
            if path in _LEFT_OUT or path.startswith(_OWN):
                continue
            info = entry.stat(follow_symlinks=False)
            yield path, Path(entry.path), info
            if stat.S_ISDIR(info.st_mode):
                inner.append((path, Path(entry.path)))
        waiting += reversed(inner)


def leave(jail: Jail) -> None:
    """Removes all that is not the tree's, but for the system's own file systems."""

    def remove() -> None:
        for name in _LEFT_OUT - {"dev", "proc", "sys"}:
            shutil.rmtree(f"/{name}", ignore_errors=True)

    within(jail, remove)
    for target in _outermost(jail.given):
        (jail.root / target.lstrip("/")).rmdir()  # it was mounted over, and is empty


def write_changes(root: Path, before: Snapshot, epoch: int, out: IO[bytes]) -> None:
    """Writes what changed since ``before``: a line of JSON, then a tar without its end mark.

    The line says which paths of the tree are ``replaced`` (they must not come from it any more),
    and how many ``bytes`` the new files have. Owners, times and set-user-id bits are normalised.
    """
    paths = list(walk(root))
    now = {path: _mark(info) for path, _, info in paths}
    replaced = [path for path, mark in before.items() if now.get(path) != mark]
    changed = [item for item in paths if before.get(item[0]) != now[item[0]]]
    size = sum(info.st_size for _, _, info in changed if stat.S_ISREG(info.st_mode))
    head = {"replaced": replaced, "bytes": size, "files": len(changed)}
    out.write(json.dumps(head).encode() + b"\n")
    write_tar(changed, epoch, out)


def _pass(data: IO[bytes], member: tarfile.TarInfo, out: IO[bytes]) -> None:
    """Writes a file's content and its padding; large ones by the kernel, which copies less.

    Raises:
        ValueError: the content is shorter than ``member`` says.
    """
    left = member.size
    if left > _LARGE:
        out.flush()
        with suppress(io.UnsupportedOperation, OSError):
            while left and (sent := os.sendfile(out.fileno(), data.fileno(), None, left)):
                left -= sent
        data.seek(member.size - left)
    out.writelines(tar.content_of(member, data, left))


def write_tar(
    members: Iterable[tuple[str, Path, os.stat_result]], epoch: int, out: IO[bytes]
) -> None:
    """Writes a tar without its end mark, normalised as above.

    Args:
        members: path in the tar, path here, and what ``lstat`` says.
    """
    links: dict[int, str] = {}
    for path, real, info in members:
        member = tarfile.TarInfo(f"./{path}")
        member.mode = stat.S_IMODE(info.st_mode) & 0o1777
        member.mtime = epoch
        member.uname = member.gname = "root"
        if stat.S_ISDIR(info.st_mode):
            member.type = tarfile.DIRTYPE
        elif stat.S_ISLNK(info.st_mode):
            member.type, member.linkname = tarfile.SYMTYPE, str(real.readlink())
        elif not stat.S_ISREG(info.st_mode):
            continue  # sockets and pipes that a build left
        elif info.st_nlink > 1 and info.st_ino in links:
            member.type, member.linkname = tarfile.LNKTYPE, links[info.st_ino]
        else:
            links[info.st_ino] = member.name
            member.size = info.st_size
            with real.open("rb") as data:
                out.write(tar.header(member))
                _pass(data, member, out)
            continue
        out.write(tar.header(member))
    out.flush()
