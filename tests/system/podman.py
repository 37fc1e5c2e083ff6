"""The real Podman, with a store of its own that goes with the test."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

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
    """

    folder: Path
    environ: dict[str, str]

    def argv(self, *words: str | Path) -> list[str]:
        """The command line of ``podman WORDS``."""
        places = ("--root", self.folder / "root", "--runroot", self.folder / "run")
        return ["podman", *map(str, (*places, *words))]

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
