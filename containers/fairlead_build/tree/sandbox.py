"""A tree to work in: unpacked, with its own programs running in it, isolated from the machine.

A process of its own is root of user, mount, process, network and host name namespaces that end with
it: nothing mounted or started in it outlives it, nothing in it reaches a network, and an ordinary
user may do it. :func:`sandbox` starts a module there (``in_sandbox.py``, ``source_in_sandbox.py``), which
calls :func:`enter` and then :func:`spawn`; what changed in the tree leaves as a tar, by
:func:`write_changes`.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import socket
import stat
import struct
import subprocess
import sys
import tarfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from fairlead_build.base import tar
from fairlead_build.base.proc import child, clean_environment

# Not part of a tree: engines mount over them, or they are caches and scratch.
_LEFT_OUT = frozenset(
    {"dev", "proc", "sys", "run", "tmp", "var/tmp", "var/cache/ldconfig", "var/log", "root"}
)
_OWN = ".fairlead-"
# By the tree's own tar, in it. Debian's /lib is a link to /usr/lib, and stays one.
LAY = ("tar", "-x", "-p", "--no-same-owner", "--keep-directory-symlink", "-C", "/", "-f")
_DEVICES = ("null", "zero", "full", "random", "urandom")


def in_namespaces(module: str, *options: str) -> tuple[list[str | Path], dict[str, str]]:
    """Command and environment of ``python -m module`` as root of its own user and mount namespace."""
    # -P: modules come from where this process has them, never from the current folder.
    python = [sys.executable, "-P", "-m", module]
    argv: list[str | Path] = ["unshare", "--user", "--map-root-user", "--mount", *options, *python]
    return argv, clean_environment({"PYTHONPATH": os.pathsep.join(filter(None, sys.path))})


@contextmanager
def sandbox(
    module: str, request: Mapping[str, Any], scratch: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """Starts ``python -m module`` in namespaces of its own, with a request for :func:`enter`.

    Args:
        scratch: an empty folder of ours; the tree is unpacked in it.
    """
    asked = scratch / "request.json"
    asked.write_text(json.dumps({**request, "root": str(scratch / "root")}), "utf-8")
    options = ("--pid", "--net", "--uts", "--ipc", "--fork", "--kill-child=KILL")
    argv, env = in_namespaces(module, *options)
    # unshare waits for its child and hears nothing but KILL.
    with child([*argv, asked], env=env, stderr=subprocess.PIPE, parting="KILL") as process:
        yield process


# --- inside ------------------------------------------------------------------------------------


def enter(asked: Mapping[str, Any]) -> Path:
    """Unpacks the tree ``asked["base"]`` and makes it ready to run programs in; returns its root.

    Raises:
        OSError, subprocess.CalledProcessError: it cannot be.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # process 1 ignores it otherwise
    os.umask(0o022)
    socket.sethostname("fairlead")
    # MPI programs want an interface to listen on, even alone. Source: netdevice(7).
    with socket.socket() as any_socket:
        flags = struct.pack("16sh14x", b"lo", 0x41)  # IFF_UP | IFF_RUNNING
        fcntl.ioctl(any_socket, 0x8914, flags)  # SIOCSIFFLAGS
    root = Path(asked["root"])
    root.mkdir()
    with subprocess.Popen(asked["untar"], stdout=subprocess.PIPE) as source:
        unpack: list[str | Path] = ["tar", "-x", "-p", "--numeric-owner", "-C", root]
        subprocess.run(unpack, stdin=source.stdout, check=True)
    if source.returncode:
        raise subprocess.CalledProcessError(source.returncode, asked["untar"])
    for name in ("dev", "proc", "sys", "run", "tmp"):
        (root / name).mkdir(exist_ok=True)
    for name in _DEVICES:
        _bind(Path("/dev", name), root / "dev" / name)
    for name, target in (("fd", "/proc/self/fd"), ("stdin", "fd/0"), ("stdout", "fd/1")):
        (root / "dev" / name).symlink_to(target)
    (root / "dev" / "shm").mkdir()
    _mount("-t", "tmpfs", "-o", "mode=1777", "none", root / "dev" / "shm")
    # A process file system of our own is refused where parts of the machine's are covered.
    if subprocess.run(
        ["mount", "-t", "proc", "proc", root / "proc"], capture_output=True
    ).returncode:
        _mount("--rbind", "/proc", root / "proc")
    for target, source_path in asked["binds"].items():
        _bind(Path(source_path), root / target.lstrip("/"))
    return root


def _bind(source: Path, target: Path) -> None:
    if source.is_dir():
        target.mkdir(parents=True, exist_ok=True)
    else:
        target.touch()
    _mount("--bind", source, target)


def _mount(*words: str | Path) -> None:
    subprocess.run(["mount", *words], check=True)


def spawn(
    root: Path,
    argv: Sequence[str],
    env: Mapping[str, str],
    folder: str = "/",
    output: int | None = None,
) -> subprocess.Popen[bytes]:
    """Starts a program of the tree in it.

    Args:
        output: where both its outputs go, ``subprocess.PIPE`` or else stderr: stdout is the answer.
    """

    def move() -> None:
        os.chroot(root)
        os.chdir(folder)

    stdout = sys.stderr.fileno() if output is None else output
    return subprocess.Popen(
        argv, env=dict(env), stdin=subprocess.DEVNULL, stdout=stdout, stderr=subprocess.STDOUT,
        preexec_fn=move,
    )  # fmt: skip


def execute(root: Path, argv: Sequence[str], env: Mapping[str, str]) -> None:
    """Runs a program of the tree to its end.

    Raises:
        SystemExit: it failed; with its exit code.
    """
    if code := spawn(root, argv, env).wait():
        sys.exit(code if code > 0 else 128 - code)


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


def leave(root: Path, asked: Mapping[str, Any]) -> None:
    """Removes all that is not the tree's, but for the system's own file systems.

    Raises:
        OSError, subprocess.CalledProcessError: it cannot be.
    """
    for target in asked["binds"]:
        place = root / target.lstrip("/")
        subprocess.run(["umount", place], check=True)
        place.rmdir() if place.is_dir() else place.unlink()
    for name in _LEFT_OUT - {"dev", "proc", "sys"}:
        shutil.rmtree(root / name, ignore_errors=True)


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
                out.writelines(tar.member(member, data))
            continue
        out.write(tar.header(member))
    out.flush()
