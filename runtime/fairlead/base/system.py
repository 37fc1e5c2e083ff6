"""The machine as probes and checks see it: files, programs, environment.

:class:`View` is the interface and :class:`Machine` the real machine; tests implement it with
recordings.
"""

from __future__ import annotations

import os
import platform
import pwd
import re
import shutil
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from fairlead.base import proc_stat, process
from fairlead.base.process import Ran

_MOST_BYTES = 4 << 20


class View(Protocol):
    """What may be seen of a machine. Nothing in it changes the machine, and nothing in it raises for what
    is absent, forbidden or of another kind than expected."""

    @property
    def uid(self) -> int: ...

    @property
    def user(self) -> str:
        """The login name of ``uid``; its number if it has no name."""

    @property
    def environ(self) -> Mapping[str, str]: ...

    @property
    def hostname(self) -> str: ...

    @property
    def kernel(self) -> tuple[str, str]:
        """The kernel's release and the machine's architecture, as ``uname -r`` and ``uname -m``."""

    def read(self, path: str) -> str | None:
        """A file's text; None if it is absent, unreadable or not a regular file."""

    def access(self, path: str, mode: int) -> bool:
        """As ``os.access``: ``os.F_OK``, ``os.R_OK | os.W_OK``, ..."""

    def which(self, program: str) -> str | None:
        """The path of a program on PATH."""

    def free_bytes(self, folder: str) -> int:
        """Bytes available to this user in the file system that contains ``folder``."""

    def real(self, path: str) -> str:
        """``path`` with its links followed."""

    def matching(self, pattern: str) -> tuple[str, ...]:
        """Paths that match an absolute glob pattern, sorted; ``**`` is not supported."""

    def listdir(self, folder: str) -> tuple[str, ...]:
        """The names in a folder, sorted; empty if it is unreadable or not a folder."""

    def owner_mode(self, path: str) -> tuple[int, int] | None:
        """Owner and permission bits of a file, links followed; None when it is absent."""

    def cores(self) -> int:
        """Cores that this process may use."""

    def ask(self, argv: Sequence[str], timeout_s: float = 2.0) -> Ran:
        """The end of a program that may hang or crash: code 127 when there is none of that name, 124 when
        it was ended."""


class Machine:
    """The machine we are on.

    Args:
        root: the folder that stands for ``/``; another than that for a system that is mounted there.
    """

    def __init__(self, environ: Mapping[str, str] = os.environ, root: Path = Path("/")):
        self.uid = os.geteuid()
        self.environ = environ
        self.root = root
        self.hostname = platform.node()
        self.kernel = (platform.release(), platform.machine())
        try:
            self.user = pwd.getpwuid(self.uid).pw_name
        except KeyError:
            self.user = str(self.uid)

    def _at(self, path: str) -> str:
        return path if self.root == Path("/") else f"{self.root}/{path.lstrip('/')}"

    def _shown(self, path: str) -> str:
        return path if self.root == Path("/") else "/" + path[len(str(self.root)) :].lstrip("/")

    def read(self, path: str) -> str | None:
        try:
            # Do not block on a FIFO without a writer, and do not trigger a device.
            fd = os.open(self._at(path), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
        except (OSError, ValueError):
            return None
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                return None
            return _read(fd).decode(errors="replace")
        except OSError:
            return None
        finally:
            os.close(fd)

    def access(self, path: str, mode: int) -> bool:
        return "\0" not in path and os.access(self._at(path), mode)

    def which(self, program: str) -> str | None:
        return shutil.which(program, path=self.environ.get("PATH", os.defpath))

    def free_bytes(self, folder: str) -> int:
        there = Path(self._at(folder))
        while not there.exists():
            there = there.parent
        room = os.statvfs(there)
        return room.f_bavail * room.f_frsize

    def matching(self, pattern: str) -> tuple[str, ...]:
        try:
            paths = self.root.glob(pattern.lstrip("/"))
            return tuple(sorted(self._shown(str(path)) for path in paths))
        except (OSError, ValueError, NotImplementedError):
            return ()

    def listdir(self, folder: str) -> tuple[str, ...]:
        try:
            return tuple(sorted(path.name for path in Path(self._at(folder)).iterdir()))
        except (OSError, ValueError):  # a NUL in the name
            return ()

    def real(self, path: str) -> str:
        return path if "\0" in path else self._shown(os.path.realpath(self._at(path)))

    def cores(self) -> int:
        return len(os.sched_getaffinity(0))

    def ask(self, argv: Sequence[str], timeout_s: float = 2.0) -> Ran:
        return process.run_boxed(argv, environ=self.environ, timeout_s=timeout_s)

    def owner_mode(self, path: str) -> tuple[int, int] | None:
        try:
            status = Path(self._at(path)).stat()
        except (OSError, ValueError):
            return None
        return status.st_uid, status.st_mode & 0o7777


def stay_on_one_core() -> None:
    """Keeps this process, and those it starts, on the core it runs on: for the only reader of a FUSE file system.

    Reader and server work in turns, and waking each other on another core costs more than what they do: a look into an
    image of 1.8 GB takes 14 to 24 s on the two cores of a virtual machine, 8 s on one of them.
    """
    with suppress(OSError, ValueError, IndexError):
        os.sched_setaffinity(0, {int(proc_stat.fields()[proc_stat.PROCESSOR])})


def _read(fd: int) -> bytes:
    """Reads in small blocks: files of /proc/sys refuse a buffer of 4 MiB (ENOMEM)."""
    content = bytearray()
    while len(content) < _MOST_BYTES and (piece := os.read(fd, 1 << 16)):
        content += piece
    return bytes(content[:_MOST_BYTES])


@dataclass(frozen=True)
class Mount:
    """A mounted file system: a line of proc(5), /proc/pid/mountinfo; empty where there is none."""

    point: str = ""
    kind: str = ""
    options: tuple[str, ...] = ()


def mount_of(folder: Path, root: Path = Path("/")) -> Mount:
    """The mount that a folder is on.

    Args:
        root: where this machine's ``proc`` is.
    Raises:
        OSError: the folder does not exist, or there is no ``proc``.
    """
    number = folder.stat().st_dev
    device = f"{os.major(number)}:{os.minor(number)}"
    text = (root / "proc/self/mountinfo").read_text(errors="surrogateescape")
    above = list(mounts_above(text, str(folder.resolve())))
    # btrfs gives a folder another device number than its mount has.
    return innermost([m for d, m in above if d == device] or [m for _, m in above])


def is_mounted(folder: Path) -> bool:
    """Whether something is mounted at a folder, even if it cannot be read: ``Path.is_mount`` is False then."""
    text = Path("/proc/self/mountinfo").read_text(errors="surrogateescape")
    point = str(folder.parent.resolve() / folder.name)
    return any(mount.point == point for _, mount in mounts_above(text, point))


def mounts_above(text: str, path: str) -> Iterator[tuple[str, Mount]]:
    """The mounts of ``text``, as of mountinfo, that ``path`` lies in, each with its device as ``major:minor``."""
    for line in text.splitlines():
        left, _, right = line.partition(" - ")
        fields = left.split()
        point = re.sub(r"\\([0-7]{3})", lambda m: chr(int(m[1], 8)), fields[4])
        if path == point or path.startswith(point.rstrip("/") + "/"):
            yield fields[2], Mount(point, right.split()[0], tuple(fields[5].split(",")))


def innermost(mounts: Sequence[Mount]) -> Mount:
    """The longest mount point; of equals the last, which is mounted over the others."""
    return max(reversed(mounts), key=lambda m: len(m.point), default=Mount())
