"""More ranks on a node than the shell's limit of open files has room for, with real launchers."""

from __future__ import annotations

import subprocess
import sys

import pytest
from tests.system import hosts
from tests.system.hosts import AS_ROOT, program

RANKS, SOFT = 40, 100


def limited(mpi: str, hard: int, *command: str) -> subprocess.CompletedProcess[str]:
    """``fairlead run`` of :data:`RANKS` ranks, in a shell with these limits."""
    options = ("--mpi", hosts.mpich(), hosts.image())
    if mpi == "openmpi":
        more = "--launcher-arg=--oversubscribe"
        options = (more, "--mpi", hosts.openmpi(), hosts.image("mpi-base:openmpi"))
    limits = ("prlimit", f"--nofile={SOFT}:{hard}")
    words = ("run", "-n", str(RANKS), *options, "--", *command)
    return program(*limits, sys.executable, "-m", "fairlead", *words, env=AS_ROOT)


@pytest.mark.parametrize("mpi", ["mpich", pytest.param("openmpi", marks=pytest.mark.full)])
def test_launcher_gets_the_files_that_its_ranks_take_and_these_keep_their_limit(mpi: str) -> None:
    done = limited(mpi, 4096, "sh", "-c", "ulimit -Sn; ulimit -Hn")
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.split()) == [str(SOFT)] * RANKS + ["4096"] * RANKS


def test_launcher_whose_hard_limit_is_too_low_is_named_with_what_it_needs() -> None:
    done = limited("mpich", SOFT, "true")
    assert done.returncode != 0
    assert "Too many open files" in done.stderr, "Hydra's own words"
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("error[")]
    assert line.startswith("error[launch]: the launcher may not open as many files"), done.stderr
    assert f"the limit is {SOFT}" in line and "`ulimit -Hn`" in done.stderr
