"""SIGUSR1, by which schedulers warn of a job's end, reaches the programs of the ranks, and kills nothing on its way."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.system import hosts, slurm
from tests.system.netns import launcher, two_hosts

# Rank 0 has a handler, and rank 1, which has none, would die of the signal.
CODE = """
import os, signal, time
rank, got = int(os.environ["RANK"]), []
if rank == 0 or "SLURM_PROCID" in os.environ:
    signal.signal(signal.SIGUSR1, lambda number, frame: got.append(number))
os.write(1, f"ready {rank}\\n".encode())
end = time.monotonic() + (20 if rank == 0 or "SLURM_PROCID" in os.environ else 3)
while not got and time.monotonic() < end:
    time.sleep(0.05)
time.sleep(1)
os.write(1, f"rank {rank} got {got}\\n".encode())
"""


@contextmanager
def started(words: Sequence[str | Path], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A run whose two ranks are ready."""
    with log.open("wb") as out:
        process = subprocess.Popen(
            [str(w) for w in words], stdout=out, stderr=subprocess.STDOUT, env={**os.environ}
        )
    try:
        until = time.monotonic() + 60
        while len(re.findall(r"^ready \d", log.read_text(), re.MULTILINE)) < 2:
            assert process.poll() is None and time.monotonic() < until, log.read_text()
            time.sleep(0.05)
        yield process
        assert process.wait(40) == 0, log.read_text()
    finally:
        process.kill()
        process.wait()


def handed_on(log: Path) -> None:
    text = log.read_text()
    assert "rank 0 got [10]" in text and "rank 1 got []" in text, text


def words(*more: str | Path) -> list[str | Path]:
    return [
        sys.executable,
        "-m",
        "fairlead",
        "run",
        "-n",
        "2",
        *more,
        hosts.image(),
        "--",
        "python3",
        "-c",
        CODE,
    ]


@pytest.mark.parametrize(
    "engine",
    ["apptainer", *(pytest.param(e, marks=pytest.mark.full) for e in ("podman", "charliecloud"))],
)
def test_signal_to_fairlead_reaches_what_has_a_handler_for_it(engine: str, tmp_path: Path) -> None:
    with started(words("--engine", engine), tmp_path / "log") as process:
        process.send_signal(signal.SIGUSR1)
    handed_on(tmp_path / "log")
    assert "SIGUSR1: handed to 1 processes" in (tmp_path / "log").read_text()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make network namespaces")
def test_signal_reaches_ranks_on_another_host(tmp_path: Path) -> None:
    with two_hosts() as (one, _):
        # The ranks' order: rank 0, which has the handler, is on the other host.
        mpiexec = launcher(one, hosts.mpich() / "bin/mpiexec.hydra", hosts="node2:1,node1:1")
        with started(one.words(*words("--launcher", mpiexec)), tmp_path / "log"):
            (fairlead,) = [
                int(p.name)
                for p in Path("/proc").glob("[0-9]*")
                if _words(p)[1:4] == ["-m", "fairlead", "run"] and str(mpiexec) in _words(p)
            ]
            os.kill(fairlead, signal.SIGUSR1)
        handed_on(tmp_path / "log")


def _words(process: Path) -> list[str]:
    try:
        return (process / "cmdline").read_bytes().decode().split("\0")
    except OSError:
        return []


@pytest.mark.skipif(os.geteuid() != 0, reason="slurmd runs jobs of others: only root can start it")
def test_signal_of_slurm_to_a_step_reaches_the_program_and_kills_no_engine(tmp_path: Path) -> None:
    with slurm.slurm() as cluster:
        line = words("-N", "2")
        environ = cluster.environ
        log = tmp_path / "log"
        with started(["env", *(f"{k}={v}" for k, v in environ.items()), *line], log):
            (job,) = cluster.run("squeue", "-h", "-o", "%i").stdout.split()
            cluster.run("scancel", "--signal=USR1", job)
        text = log.read_text()
    # Slurm signals every process of the step, the shells and engines around the ranks as well, and some may hand it on.
    assert "rank 0 got [10" in text and "rank 1 got [10" in text, text
