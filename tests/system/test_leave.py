"""Ranks that end early: the run ends where the others wait for them, and only there; real MPIs."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.system import hosts
from tests.system.hosts import answer, fairlead

START = """
import sys, time
from mpi4py import MPI
world = MPI.COMM_WORLD
rest = world.Split(world.rank == world.size - 1, world.rank)
if world.rank == world.size - 1:
    sys.exit(0)
begun = time.monotonic()
"""
# Calls that the rank which left never comes to.
WAITS = {
    "Barrier": "world.Barrier()",
    "Mprobe": "world.recv(source=world.size - 1)",
    "Allreduce": "world.Allreduce(bytearray(8), bytearray(8))",
}
# What others may go on with for as long as they like, here longer than it takes to judge.
WORKS = {
    "computes": "while time.monotonic() - begun < 32: pass",
    "sleeps": "time.sleep(32)",
    "talks": "while rest.allreduce(time.monotonic() - begun, MPI.MIN) < 32: pass",
    "writes": """
file = MPI.File.Open(MPI.COMM_SELF, f"/tmp/fairlead-leave.{world.rank}", MPI.MODE_CREATE | MPI.MODE_WRONLY)
while time.monotonic() - begun < 32: file.Write_at(0, bytearray(1 << 20))
file.Close()
""",
    "works in a thread": """
import threading
def work():
    while time.monotonic() - begun < 32: pass
    rest.send(1, rest.rank, 7)
thread = threading.Thread(target=work)
thread.start()
rest.recv(source=rest.rank, tag=7)
""",
}
MPIS: dict[str, Callable[[], Path]] = {
    "mpich": hosts.mpich,
    "intel": hosts.intel,
    "openmpi": hosts.openmpi,
}


def run(mpi: str, ranks: int, code: str) -> subprocess.CompletedProcess[str]:
    prefix = MPIS[mpi]()
    env = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return fairlead(
        *("run", "-n", str(ranks), "--json", "--mpi", prefix, "--launcher", prefix / "bin/mpiexec"),
        *(hosts.image(), "--", "python3", "-c", START + code),
        env=env,
    )


def may_observe() -> None:
    level = Path("/proc/sys/kernel/perf_event_paranoid")
    if os.geteuid() and level.exists() and int(level.read_text()) > 2:
        pytest.skip("kernel.perf_event_paranoid")
    if os.uname().machine != "x86_64":
        pytest.skip("stacks of x86-64 only")


@pytest.mark.parametrize(
    "mpi", ["mpich", *(pytest.param(mpi, marks=pytest.mark.full) for mpi in ("intel", "openmpi"))]
)
@pytest.mark.parametrize("call", WAITS)
def test_rank_that_exits_while_the_others_wait_is_named_and_the_run_ends(
    call: str, mpi: str
) -> None:
    may_observe()
    done = run(mpi, 2, WAITS[call])
    said = answer(done)
    assert done.returncode == 124, done.stdout + done.stderr
    [found] = [f for f in said["findings"] if f["check"] == "rank-left"]
    assert found["where"] == f"rank 1 on {os.uname().nodename}, which is in MPI_Finalize"
    assert f"rank 0 in MPI_{call}:" in found["why"]


@pytest.mark.full
@pytest.mark.parametrize("work", WORKS)
def test_rank_that_exits_while_the_others_work_ends_nothing(work: str) -> None:
    done = run("mpich", 3 if work == "talks" else 2, WORKS[work])
    assert done.returncode == 0, done.stdout + done.stderr
