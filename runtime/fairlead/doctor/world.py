"""The machine as doctor's checks see it, with what only a trial shows.

A trial leaves nothing behind and ends by itself. The version of a container engine does not show that it
works: it needs user namespaces, FUSE, capabilities and loaders that agree. So a tiny image is made, the
machine's own /usr is bound into it, and ``true`` runs there.
"""

from __future__ import annotations

import ctypes
import io
import os
import re
import resource
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fairlead.base.errors import Finding
from fairlead.base.exposure import exposed
from fairlead.base.paths import bundled
from fairlead.base.process import Ran, run
from fairlead.base.system import mount_of
from fairlead.detect.machine import MpiMachine
from fairlead.doctor import cma_probe
from fairlead.engines import registry as engines
from fairlead.engines.apptainer import find_apptainer
from fairlead.engines.model import Call, Engine, Takes
from fairlead.nccl.model import HostNetwork
from fairlead.proof.wire import Settings, wire

LONGEST_RUN_S = 20.0  # an engine has longer
WORDS = b"fairlead\n" * 4096
_FOLDERS = ("usr", "etc", "dev", "proc", "sys", "tmp", "root", "home", "var", "var/tmp")
_FILES = ("etc/passwd", "etc/group", "etc/hosts", "etc/resolv.conf", "etc/localtime")
_LINKS = ("bin", "sbin", "lib", "lib64")
# What the ranks of a node must have in common, and limits that a container must not lower.
_SCRIPT = """\
id() { stat -L -c %d:%i "$1" 2>/dev/null || echo absent; }
echo "shm=$(id /dev/shm)"
echo "tmp=$(id /tmp)"
for kind in user pid ipc net; do echo "$kind=$(readlink /proc/self/ns/$kind)"; done
echo "memlock=$(ulimit -l)"
"""
# squashfuse_ll stays in the foreground, so that it ends with its mount namespace.
_MOUNT = """\
squashfuse_ll -f -o ro "$1" "$2" & server=$!
n=0
until [ -e "$2/etc/words" ]; do
    kill -0 $server 2>/dev/null || { wait $server; exit 1; }
    n=$((n + 1)); [ $n -lt 500 ] || { echo "not mounted after 10 s" >&2; kill $server; exit 1; }
    sleep 0.02
done
head -c 8 "$2/etc/words"; code=$?
kill $server; wait $server 2>/dev/null
exit $code
"""
_STA_UNSYNC = 0x40
_TRAFFIC = Settings(size=1 << 20, count=32, wait_s=5.0, limit_s=20.0)
# How a lock names the package, with its version's upstream part.
_LIBC = re.compile(r'name = "libc6", version = "(\d+\.\d+)')


@dataclass(frozen=True)
class FileSystem:
    """The file system that holds, or would hold, a folder.

    Attributes:
        kind: as the kernel names it, e.g. ``ext4``, ``lustre``; empty when it is unknown.
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
class ClockState:
    """How good a clock is.

    Attributes:
        synchronised: with another clock, as the kernel knows (adjtimex(2)); None where it does not say.
        error_s: its largest error as the kernel estimates it, seconds.
        slip_s: by how much the time of day and the monotonic clock went apart in a moment, seconds.
    """

    synchronised: bool | None
    error_s: float
    slip_s: float


@dataclass(frozen=True)
class Driven:
    """What came of driving a network plugin of NCCL.

    Attributes:
        line: what carried the messages.
        findings: what went wrong; empty if nothing did.
    """

    line: str
    findings: tuple[Finding, ...] = ()


class _Timex(ctypes.Structure):
    _fields_ = [
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_char * 256),
    ]


class World(MpiMachine):
    """This machine. Tests put a recorded one in its place."""

    def run(self, argv: Sequence[str]) -> Ran:
        """A program's end; code 127 when there is none of that name."""
        return run(argv, environ=self.environ, timeout_s=LONGEST_RUN_S)

    def file_system(self, folder: str) -> FileSystem:
        """Of ``folder``, or of the nearest folder above it that exists."""
        there = Path(folder)
        while not there.exists():
            there = there.parent
        stat = os.statvfs(there)
        mount = mount_of(there)
        return FileSystem(
            kind=mount.kind,
            mount=mount.point,
            options=mount.options,
            free_bytes=stat.f_bavail * stat.f_frsize,
            total_bytes=stat.f_blocks * stat.f_frsize,
            free_files=stat.f_favail,
            total_files=stat.f_files,
        )

    def exposed(self, folder: str, top: str) -> tuple[tuple[str, str], ...]:
        """The folders, of ``folder`` and those above it, that others can write to, and why; as
        :func:`fairlead.base.exposure.exposed`."""
        try:
            return tuple((str(part), why) for part, why in exposed(Path(folder), Path(top)))
        except OSError:
            return ()  # what cannot be looked at is reported by `quotas`

    def limit(self, name: str) -> tuple[int, int]:
        """A limit of this process, soft and hard, by its name in setrlimit(2) without RLIMIT_; -1 is
        unlimited."""
        return resource.prlimit(0, getattr(resource, f"RLIMIT_{name}"))

    def image_glibcs(self) -> Mapping[str, str]:
        """The C library's version of each image that the catalogue has a lock for."""
        versions = {}
        for lock in sorted(bundled("recipes").glob("*/lock*.toml")):
            variant = lock.name.removeprefix("lock.").removesuffix("toml").rstrip(".")
            version = _LIBC.search(lock.read_text("utf-8"))
            if version:
                versions[lock.parent.name + (f":{variant}" if variant else "")] = version[1]
        return versions

    def clock_state(self) -> ClockState:
        """How good this machine's clock is; nothing is asked of the network."""
        timex = _Timex()
        state = ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.byref(timex))
        before = time.time() - time.monotonic()
        time.sleep(0.03)
        slip = time.time() - time.monotonic() - before
        known = None if state < 0 else not timex.status & _STA_UNSYNC
        return ClockState(known, timex.maxerror / 1e6, slip)

    def clock_offset_s(self, folder: str) -> float | None:
        """Seconds by which the time of a new file in ``folder`` is ahead of this machine's clock; None when
        nothing can be written there."""
        try:
            before = time.time()
            with tempfile.TemporaryFile(dir=folder) as file:
                file.write(b"x")
                file.flush()
                mtime = os.fstat(file.fileno()).st_mtime
            after = time.time()
        except OSError:
            return None
        # The kernel stamps files by a clock that may stand still for 10 ms.
        return 0.0 if before - 0.02 <= mtime <= after + 0.02 else mtime - (before + after) / 2

    def try_cma(self) -> Ran:
        """One process reading another's memory: JSON, see ``cma_probe.py``."""
        # Isolated from the user's own Python, which it does not need.
        return self.run((sys.executable, "-I", "-S", cma_probe.__file__))

    def try_squashfuse(self, compression: str) -> Ran:
        """Mounts a tiny squashfs as :mod:`fairlead.image.mount` does, and prints the first bytes of a file in it."""
        namespaces = ["--mount"] if os.geteuid() == 0 else ["--user", "--map-root-user", "--mount"]
        with tempfile.TemporaryDirectory(prefix="fairlead-probe-") as folder:
            image, mount = Path(folder, "probe.squashfs"), Path(folder, "mount")
            mount.mkdir()
            made = _make_image(image, compression)
            if made.returncode:
                return made
            tied = ("setpriv", "--pdeathsig", "KILL")
            script = ("sh", "-c", _MOUNT, "sh", str(image), str(mount))
            return self.run(("unshare", *namespaces, *tied, *script))

    def drive_plugin(self, network: HostNetwork) -> Driven:
        """Two processes of this node move messages through a network plugin of NCCL; see :mod:`fairlead.proof.wire`.

        Raises:
            FairleadError: what drives it cannot be compiled.
        """
        folders = [str(Path(elf.path).parent) for elf in network.closure]
        path = ":".join(
            filter(None, (self.environ.get("LD_LIBRARY_PATH", ""), *dict.fromkeys(folders)))
        )
        done = wire(
            network.plugin.path, _TRAFFIC, environ={**self.environ, "LD_LIBRARY_PATH": path}
        )
        return Driven(done.line, done.findings())

    def engine(self) -> str | None:
        """The container engine's program."""
        program = find_apptainer(self.environ)
        return str(program) if program else None

    def engine_here(self) -> Engine | None:
        """The engine as it behaves here."""
        return engines.ENGINES.get("apptainer").detect(self.environ)

    def probe_engine(self, compression: str = "zstd") -> Ran:
        """Apptainer running ``true`` in a tiny image.

        Raises:
            FairleadError: there is no engine.
        """
        return self._in_image(("/usr/bin/true",), ("--contain", "--no-home"), compression)

    def look_inside(self) -> tuple[Ran, Ran]:
        """What a process sees of the node, lines ``name=value``: here, and in a container that is started as a
        rank's is.

        Raises:
            FairleadError: there is no engine.
        """
        words = ("/usr/bin/sh", "-c", _SCRIPT)
        return self.run(words), self._in_image(words)

    def _in_image(
        self, command: tuple[str, ...], extra: tuple[str, ...] = (), compression: str = "zstd"
    ) -> Ran:
        engine = engines.choose("apptainer", (), self.environ)
        with tempfile.TemporaryDirectory(prefix="fairlead-probe-") as folder:
            image = Path(folder, "probe.squashfs")
            made = _make_image(image, compression)
            return made if made.returncode else self._start(engine, image, command, extra)

    def _start(
        self, engine: Engine, image: Path, command: tuple[str, ...], extra: tuple[str, ...] = ()
    ) -> Ran:
        call = Call(str(image), command, (("/usr", "/usr", True),), extra=extra)
        argv = engines.ENGINES.get(engine.kind).words(engine, call).argv
        return run(argv, environ=self.environ, timeout_s=60)

    def other_engines(self) -> Mapping[str, Ran]:
        """The same by each other engine that is here and opens folders, by its kind."""
        runs = {}
        for kind in engines.kinds():
            engine = engines.ENGINES.get(kind).detect(self.environ) if kind != "apptainer" else None
            if engine and engine.takes is Takes.FOLDER:
                with tempfile.TemporaryDirectory(prefix="fairlead-probe-") as folder:
                    root = Path(folder, "root")
                    for name in _FOLDERS:
                        (root / name).mkdir(parents=True, exist_ok=True)
                    for name in _FILES:
                        (root / name).touch()
                    for name in _LINKS:
                        (root / name).symlink_to(f"usr/{name}")
                    done = self._start(engine, root, ("/usr/bin/true",))
                # Its own words only: the shell around them is fairlead's.
                runs[kind] = replace(done, argv=(engine.path,))
        return runs


def _make_image(image: Path, compression: str) -> Ran:
    """Writes a tiny squashfs; ``/etc/words`` in it is a file that compresses."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as tar:
        for name in _FOLDERS:
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(entry)
        for name in _FILES:
            tar.addfile(tarfile.TarInfo(name))
        for name in _LINKS:
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = tarfile.SYMTYPE, f"usr/{name}"
            tar.addfile(entry)
        words = tarfile.TarInfo("etc/words")
        words.size = len(WORDS)
        tar.addfile(words, io.BytesIO(WORDS))
    argv = ("tar2sqfs", "--quiet", "--compressor", compression, str(image))
    try:
        done = subprocess.run(argv, input=data.getvalue(), capture_output=True, check=False)
    except FileNotFoundError as exc:
        return Ran(argv, 127, stderr=str(exc))
    return Ran(argv, done.returncode, stderr=done.stderr.decode(errors="replace"))
