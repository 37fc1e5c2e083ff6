"""The real Podman, root's or an ordinary user's, with a store of its own that goes with the test."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.system import hosts

from fairlead.base.paths import locked

# crun refuses machines with mixed cgroups, and root may not have the limits that Podman asks for.
_CONF = """\
[containers]
default_ulimits = ["nofile=4096:4096", "nproc=4096:4096"]
[engine]
runtime = "runc"
events_logger = "file"
cgroup_manager = "cgroupfs"
"""


@dataclass(frozen=True)
class Podman:
    """Podman with its own store.

    Attributes:
        folder: everything of it; gone after the test.
        environ: what other programs need to meet the same store, e.g. the docker SDK's service.
        account: id and home of the user who runs it, if that is not the user of the tests.
    """

    folder: Path
    environ: dict[str, str]
    account: tuple[int, Path] | None = None

    def words(self, *words: str | Path) -> list[str]:
        """``podman WORDS``, for a shell that has ``environ``."""
        places = ("--root", self.folder / "root", "--runroot", self.folder / "run")
        return ["podman", "--log-level=error", *map(str, (*places, *words))]

    def argv(self, *words: str | Path) -> list[str]:
        """The command line of ``podman WORDS``."""
        own = self.words(*words)
        return hosts.as_user(*self.account, self.environ, *own) if self.account else own

    def rank(self, *options: str | Path) -> list[str]:
        """``podman run OPTIONS`` as a rank: Podman hands descriptors on from 3, and Hydra's is any."""
        alike = ("--network=host", "--ipc=host", "--pid=host", "--env=PMI_*")
        run = self.words("run", "--rm", "--preserve-fds=1", *alike, *options)
        return ["bash", "-c", 'eval "exec 3<&$PMI_FD"; PMI_FD=3 exec "$@"', "rank", *run]

    def __call__(self, *words: str | Path, fails: bool = False, limit_s: float = 120) -> str:
        """stdout of ``podman WORDS``; with ``fails``, stderr of one that must fail."""
        done = subprocess.run(
            self.argv(*words),
            capture_output=True,
            text=True,
            env=self.environ,
            timeout=limit_s,
            stdin=subprocess.DEVNULL,
            check=False,
        )
        assert (done.returncode != 0) is fails, f"podman {words}: {done.stdout}{done.stderr}"
        return done.stderr if fails else done.stdout


@contextmanager
def specified(file: Path) -> Iterator[None]:
    """A CDI specification where root installs them: releases of Podman before 5 have no option for another folder."""
    folder = Path("/var/run/cdi")
    with locked(hosts.KEPT / ".cdi.lock"):  # tests of several files have some
        there = folder.is_dir()
        folder.mkdir(exist_ok=True)
        installed = Path(shutil.copy(file, folder))
        try:
            yield
        finally:
            installed.unlink()
            if not there:
                folder.rmdir()


@contextmanager
def rootless(uid: int, home: Path) -> Iterator[Podman]:
    """Podman of another user."""
    folder = Path(tempfile.mkdtemp(prefix="fairlead-podman-"))
    (folder / "containers.conf").write_text(_CONF)
    (folder / "xdg").mkdir(mode=0o700)
    subprocess.run(["chown", "-R", f"{uid}:{uid}", folder], check=True)
    environ = {
        "CONTAINERS_CONF": str(folder / "containers.conf"),
        "XDG_RUNTIME_DIR": str(folder / "xdg"),
        "PATH": "/usr/bin:/bin:/usr/sbin:/sbin",
    }
    made = Podman(folder, environ, (uid, home))
    try:
        yield made
    finally:
        # What belongs to subordinate ids, the user cannot remove from outside.
        for words in (("rm", "--all", "--force"), ("unshare", "rm", "-rf", folder / "root")):
            subprocess.run(made.argv(*words), capture_output=True)
        until = time.monotonic() + 20
        while (
            folder.exists() and time.monotonic() < until
        ):  # Podman still cleans up after the killed
            shutil.rmtree(folder, ignore_errors=True)
            time.sleep(0.1)


@contextmanager
def podman(parent: Path | None = None) -> Iterator[Podman]:
    """Podman with an empty store, below ``parent`` if given, for root or an ordinary user."""
    folder = Path(tempfile.mkdtemp(prefix="fairlead-podman-", dir=parent))
    (folder / "containers.conf").write_text(_CONF)
    (folder / "xdg").mkdir(mode=0o700)
    environ = {
        **os.environ,
        "CONTAINERS_CONF": str(folder / "containers.conf"),
        "XDG_RUNTIME_DIR": str(folder / "xdg"),
        "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin",
    }
    made = Podman(folder, environ)
    try:
        yield made
    finally:
        subprocess.run(made.argv("rm", "--all", "--force"), env=environ, capture_output=True)
        subprocess.run(made.argv("rmi", "--all", "--force"), env=environ, capture_output=True)
        if os.getuid() == 0:
            subprocess.run(["umount", "-l", str(folder / "root" / "overlay")], capture_output=True)
            shutil.rmtree(folder, ignore_errors=True)
        else:
            subprocess.run(["podman", "unshare", "rm", "-rf", str(folder)], capture_output=True)
