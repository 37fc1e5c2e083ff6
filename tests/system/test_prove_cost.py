"""What the start of a probe's rank costs the file system: at 10,000 ranks every file is a storm."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

from tests.system import hosts

from fairlead import prove

MOST_FILES = 150
# What the kernel makes up costs no file system anything.
_KERNEL = ("/proc/", "/sys/", "/dev/")


def opened(argv: list[str | Path], log: Path, env: dict[str, str]) -> list[str]:
    """The files of file systems that a program opened, by strace."""
    trace = ["strace", "-f", "-qq", "-e", "trace=open,openat", "-e", "status=successful", "-o", log]
    subprocess.run([*trace, *argv], env={**os.environ, **env}, check=True, timeout=120)
    paths = re.findall(r'open(?:at)?\((?:[^"]*, )?"([^"]*)"', log.read_text())
    return [path for path in paths if not path.startswith(_KERNEL)]


def test_rank_of_a_probe_opens_few_files(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    spec = {"out": str(out), "via": "names", "names": ["libmpi.so.12"], "app": ""}
    (tmp_path / "spec.json").write_text(json.dumps(spec))
    argv: list[str | Path] = [sys.executable, "-I", prove.__file__, tmp_path / "spec.json"]
    env = {"LD_LIBRARY_PATH": str(hosts.mpich() / "lib")}
    files = opened(argv, tmp_path / "log", env)
    (proof,) = out.glob("proof.*")
    assert json.loads(proof.read_text())["ranks"][0]["ring_ok"], "it really started MPI"
    assert len(files) < MOST_FILES, sorted(files)
    # The same MPI, started with nothing of ours around it: the rest is what we add.
    bare = (
        "import ctypes; m = ctypes.CDLL('libmpi.so.12'); m.MPI_Init(None, None); m.MPI_Finalize()"
    )
    without = opened([sys.executable, "-I", "-c", bare], tmp_path / "bare", env)
    assert len(files) - len(without) < 60, sorted(set(files) - set(without))
