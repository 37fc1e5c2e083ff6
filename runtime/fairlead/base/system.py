"""The machine as checks and probes see it, so that they can be shown a recorded one.

:class:`World` is what may be asked; :class:`Machine` is the one we are on. Tests have a third that
answers from a file; :mod:`tests.recording` has one of a whole machine, and writes it.
"""

from __future__ import annotations

import os
import platform
import pwd
import re
import resource
import shutil
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from fairlead import site as sites
from fairlead.base import process
from fairlead.base.errors import FairleadError, Finding
from fairlead.base.paths import bundled
from fairlead.base.process import Ran
from fairlead.engines import registry as engines
from fairlead.engines.find import find_apptainer
from fairlead.engines.model import Engine
from fairlead.mpi import host
from fairlead.mpi.host import HostMpi
from fairlead.site import Site

if TYPE_CHECKING:
    from fairlead.doctor.experiments import ClockState

# Of a program that a check asks; the engine's own trials have more.
LONGEST_RUN_S = 20.0


@dataclass(frozen=True)
class FileSystem:
    """The file system that holds, or would hold, a folder.

    Attributes:
        kind: as the kernel names it, e.g. ``ext4``, ``lustre``; empty when it cannot be told.
        mount: where it is mounted.
        options: of that mount, e.g. ``noexec``.
        free_bytes, free_files: what this user may still fill; ``total_files`` is 0 where the file
            system does not count them.
    """

    kind: str
    mount: str
    options: tuple[str, ...]
    free_bytes: int
    total_bytes: int
    free_files: int
    total_files: int


@dataclass(frozen=True)
class Profile:
    """What is known of this site.

    Attributes:
        site: None where no profile fits, or one that is named is wrong; ``findings`` say why.
        reason: why it is this one.
    """

    site: Site | None
    reason: str = ""
    findings: tuple[Finding, ...] = ()


_MOST_BYTES = 4 << 20


class View(Protocol):
    """What may be seen of a machine. Nothing in it changes the machine, and nothing in it raises for what
    is absent, forbidden or of another kind than expected."""

    @property
    def uid(self) -> int: ...

    @property
    def user(self) -> str:
        """The login name of ``uid``; its number where it has none."""

    @property
    def environ(self) -> Mapping[str, str]: ...

    @property
    def hostname(self) -> str: ...

    @property
    def kernel(self) -> tuple[str, str]:
        """The kernel's release and the machine's architecture, as ``uname -r`` and ``uname -m``."""

    def read(self, path: str) -> str | None:
        """A file's text; None when it is absent, may not be read, or is no plain file."""

    def access(self, path: str, mode: int) -> bool:
        """As ``os.access``: ``os.F_OK``, ``os.R_OK | os.W_OK``, ..."""

    def which(self, program: str) -> str | None:
        """The path of a program on PATH."""

    def free_bytes(self, folder: str) -> int:
        """Space this user may still fill, in the file system that would hold ``folder``."""

    def real(self, path: str) -> str:
        """``path`` with its links followed."""

    def matching(self, pattern: str) -> tuple[str, ...]:
        """Paths that fit an absolute pattern, sorted; ``**`` is not known."""

    def listdir(self, folder: str) -> tuple[str, ...]:
        """The names in a folder, sorted; none when it is no folder or may not be read."""

    def owner_mode(self, path: str) -> tuple[int, int] | None:
        """Owner and permission bits of a file, links followed; None when it is absent."""

    def cores(self) -> int:
        """Cores that this process may use."""

    def ask(self, argv: Sequence[str], timeout_s: float = 2.0) -> Ran:
        """The end of a program that may hang or crash: code 127 when there is none of that name, 124 when
        it was ended."""

    def host_mpis(self) -> tuple[HostMpi, ...]:
        """Every MPI, the preferred first."""

    def mpis_below(self, prefix: str, reason: str) -> tuple[HostMpi, ...]:
        """The MPIs whose libraries are in one folder, or in the library folders of a prefix."""


class World(View, Protocol):
    """What doctor's checks may ask besides: what is tried, which takes longer."""

    def run(self, argv: Sequence[str]) -> Ran:
        """A program's end; code 127 when there is none of that name."""

    def engine(self) -> str | None:
        """The container engine's program."""

    def probe_engine(self) -> Ran:
        """Apptainer running ``true`` in a tiny image."""

    def other_engines(self) -> Mapping[str, Ran]:
        """The other engines that are here doing the same, by kind."""

    def file_system(self, folder: str) -> FileSystem:
        """Of ``folder``, or of the nearest folder above it that exists."""

    def limit(self, name: str) -> tuple[int, int]:
        """A limit of this process, soft and hard, by its name in setrlimit(2) without RLIMIT_; -1 is
        unlimited."""

    def clock_state(self) -> ClockState:
        """How good this machine's clock is."""

    def clock_offset_s(self, folder: str) -> float | None:
        """Seconds by which the clock of a folder's file system is ahead; None when nothing can be
        written there."""

    def try_cma(self) -> Ran:
        """One process reading another's memory: JSON, see ``cma_probe.py``."""

    def try_squashfuse(self, compression: str) -> Ran:
        """A tiny squashfs mounted by squashfuse_ll and read."""

    def try_image(self, compression: str) -> Ran:
        """As ``probe_engine``, of an image that is compressed so."""

    def look_inside(self) -> tuple[Ran, Ran]:
        """What a process sees of the node, here and in a container: lines ``name=value``."""

    def engine_here(self) -> Engine | None:
        """The engine as it behaves here."""

    def profile(self) -> Profile:
        """The site's profile."""

    def image_glibcs(self) -> Mapping[str, str]:
        """The C library's version of each image that the catalogue has a lock for."""


class Machine:
    """The machine we are on.

    Args:
        root: the folder that stands for ``/``; another than that for a system that is mounted there.
        patience_s: how long a launcher of an MPI may take to say its version.
    """

    def __init__(
        self,
        environ: Mapping[str, str] = os.environ,
        root: Path = Path("/"),
        patience_s: float = 10.0,
    ):
        self.uid = os.geteuid()
        self.patience_s = patience_s
        self.environ = environ
        self.root = root
        self.hostname = platform.node()
        self.kernel = (platform.release(), platform.machine())
        self._profile: Profile | None = None
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
            # Not to wait for whoever should write into a FIFO, nor to start what a device does.
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
        return os.access(self._at(path), mode)

    def which(self, program: str) -> str | None:
        return shutil.which(program, path=self.environ.get("PATH", os.defpath))

    def free_bytes(self, folder: str) -> int:
        there = Path(self._at(folder))
        while not there.exists():
            there = there.parent
        room = os.statvfs(there)
        return room.f_bavail * room.f_frsize

    def run(self, argv: Sequence[str]) -> Ran:
        return process.run(argv, environ=self.environ, timeout_s=LONGEST_RUN_S)

    def engine(self) -> str | None:
        found = find_apptainer(self.environ)
        return str(found) if found else None

    # The trials are imported when they are made: a launch looks at the machine, and tries nothing.
    def probe_engine(self) -> Ran:
        from fairlead.doctor.engine_probe import probe_engine

        return probe_engine(self.environ)

    def other_engines(self) -> Mapping[str, Ran]:
        from fairlead.doctor.engine_probe import probe_others

        return probe_others(self.environ)

    def host_mpis(self) -> tuple[HostMpi, ...]:
        return host.discover(
            self.environ, self.root, self.profile().site, patience_s=self.patience_s
        )

    def matching(self, pattern: str) -> tuple[str, ...]:
        try:
            found = self.root.glob(pattern.lstrip("/"))
            return tuple(sorted(self._shown(str(path)) for path in found))
        except (OSError, ValueError, NotImplementedError):
            return ()

    def listdir(self, folder: str) -> tuple[str, ...]:
        try:
            return tuple(sorted(path.name for path in Path(self._at(folder)).iterdir()))
        except OSError:
            return ()

    def real(self, path: str) -> str:
        return self._shown(os.path.realpath(self._at(path)))

    def cores(self) -> int:
        return len(os.sched_getaffinity(0))

    def ask(self, argv: Sequence[str], timeout_s: float = 2.0) -> Ran:
        return process.run_boxed(argv, environ=self.environ, timeout_s=timeout_s)

    def mpis_below(self, prefix: str, reason: str) -> tuple[HostMpi, ...]:
        return host.in_prefix(
            Path(self._at(prefix)), reason, self.environ, patience_s=self.patience_s
        )

    def owner_mode(self, path: str) -> tuple[int, int] | None:
        try:
            status = Path(self._at(path)).stat()
        except (OSError, ValueError):
            return None
        return status.st_uid, status.st_mode & 0o7777

    def file_system(self, folder: str) -> FileSystem:
        there = Path(folder)
        while not there.exists():
            there = there.parent
        stat = os.statvfs(there)
        mount, kind, options = _mount_of(there)
        return FileSystem(
            kind=kind,
            mount=mount,
            options=options,
            free_bytes=stat.f_bavail * stat.f_frsize,
            total_bytes=stat.f_blocks * stat.f_frsize,
            free_files=stat.f_favail,
            total_files=stat.f_files,
        )

    def limit(self, name: str) -> tuple[int, int]:
        return resource.prlimit(0, getattr(resource, f"RLIMIT_{name}"))

    def clock_state(self) -> ClockState:
        from fairlead.doctor import experiments

        return experiments.clock_state()

    def clock_offset_s(self, folder: str) -> float | None:
        from fairlead.doctor import experiments

        return experiments.clock_offset_s(Path(folder))

    def try_cma(self) -> Ran:
        from fairlead.doctor import experiments

        return experiments.try_cma(self.environ)

    def try_squashfuse(self, compression: str) -> Ran:
        from fairlead.doctor import experiments

        return experiments.try_squashfuse(compression, self.environ)

    def try_image(self, compression: str) -> Ran:
        from fairlead.doctor.engine_probe import probe_engine

        return probe_engine(self.environ, compression)

    def look_inside(self) -> tuple[Ran, Ran]:
        from fairlead.doctor.engine_probe import look_inside

        return look_inside(self.environ)

    def engine_here(self) -> Engine | None:
        return engines.driver("apptainer").detect(self.environ)

    def profile(self) -> Profile:
        if self._profile is None:  # no fix changes it, and several checks ask
            try:
                self._profile = Profile(*sites.resolve(None, self.environ))
            except FairleadError as exc:
                self._profile = Profile(None, findings=exc.findings)
        return self._profile

    def image_glibcs(self) -> Mapping[str, str]:
        found = {}
        for lock in sorted(bundled("recipes").glob("*/lock*.toml")):
            variant = lock.name.removeprefix("lock.").removesuffix("toml").rstrip(".")
            version = _LIBC.search(lock.read_text())
            if version:
                found[lock.parent.name + (f":{variant}" if variant else "")] = version[1]
        return found


def _read(fd: int) -> bytes:
    """Piece by piece: a file of /proc/sys refuses to be read into a buffer of 4 MiB (ENOMEM)."""
    found = bytearray()
    while len(found) < _MOST_BYTES and (piece := os.read(fd, 1 << 16)):
        found += piece
    return bytes(found[:_MOST_BYTES])


# How a lock names the package, with its version's upstream part.
_LIBC = re.compile(r'name = "libc6", version = "(\d+\.\d+)')


def _mount_of(folder: Path) -> tuple[str, str, tuple[str, ...]]:
    """Mount point, kind and options of a folder's file system: proc(5), /proc/pid/mountinfo."""
    device = folder.stat().st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    real = str(folder.resolve())
    best: tuple[str, str, tuple[str, ...]] = ("", "", ())
    fallback = best
    for line in Path("/proc/self/mountinfo").read_text(errors="replace").splitlines():
        left, _, right = line.partition(" - ")
        fields, kind = left.split(), right.split()[0]
        mount = re.sub(r"\\([0-7]{3})", lambda m: chr(int(m[1], 8)), fields[4])
        if real != mount and not real.startswith(mount.rstrip("/") + "/"):
            continue
        here = (mount, kind, tuple(fields[5].split(",")))
        # A later line is mounted over an earlier; btrfs gives a folder another device number.
        if fields[2] == wanted and len(mount) >= len(best[0]):
            best = here
        if len(mount) >= len(fallback[0]):
            fallback = here
    return best if best[0] else fallback
