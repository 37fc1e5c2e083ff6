"""Ranks that end early: the run ends where the others wait for them, and only there; real MPIs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.system import hosts
from tests.system.hosts import answer

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
    "computes": "while time.monotonic() - begun < 36: pass",
    "sleeps": "time.sleep(36)",
    "talks": "while rest.allreduce(time.monotonic() - begun, MPI.MIN) < 36: pass",
    "writes": """
file = MPI.File.Open(MPI.COMM_SELF, f"/tmp/fairlead-leave.{world.rank}", MPI.MODE_CREATE | MPI.MODE_WRONLY)
while time.monotonic() - begun < 36: file.Write_at(0, bytearray(1 << 20))
file.Close()
""",
    "polls": """
left = world.irecv(source=world.size - 1)
while not left.Test() and time.monotonic() - begun < 36: time.sleep(0.01)
left.Cancel()
""",
    "works in a thread": """
import threading
def work():
    while time.monotonic() - begun < 36: pass
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
    return hosts.program(
        *(
            sys.executable,
            "-m",
            "fairlead",
            "run",
            "-n",
            str(ranks),
            "--json",
            "--mpi",
            prefix,
            "--launcher",
            prefix / "bin/mpiexec",
        ),
        *(hosts.image(), "--", "python3", "-c", START + code),
        env=env,
    )


x86_64_only = pytest.mark.skipif(os.uname().machine != "x86_64", reason="stacks of x86-64 only")


@x86_64_only
@pytest.mark.parametrize(
    "mpi", ["mpich", *(pytest.param(mpi, marks=pytest.mark.full) for mpi in ("intel", "openmpi"))]
)
@pytest.mark.parametrize(
    "call",
    [pytest.param(call, marks=[pytest.mark.full] if n else []) for n, call in enumerate(WAITS)],
)
def test_rank_that_exits_while_the_others_wait_is_named_and_the_run_ends(
    call: str, mpi: str
) -> None:
    done = run(mpi, 2, WAITS[call])
    said = answer(done)
    assert done.returncode == 124, done.stdout + done.stderr
    [found] = [f for f in said["findings"] if f["check"] == "rank-left"]
    assert found["where"] == f"rank 1 on {os.uname().nodename}, which is in MPI_Finalize"
    assert f"rank 0 in MPI_{call}:" in found["why"]


ABORTS = {
    "call": "from mpi4py import MPI\nif MPI.COMM_WORLD.rank == 1: MPI.COMM_WORLD.Abort(7)\n",
    "exception": "import fairlead.comm as fc\nif fc.init().rank == 1: raise SystemError('no')\n",
}


@pytest.mark.parametrize(("how", "code"), [("call", 7), ("exception", 1)])
def test_rank_that_aborts_the_job_is_named_with_its_host(how: str, code: int) -> None:
    """Its own shell is killed by the launcher, too, before that notes an exit code."""
    waits = "import time; time.sleep(60)"
    line = ("run", "-n", "3", "--json", hosts.image(), "--", "python3", "-c", ABORTS[how] + waits)
    done = hosts.fairlead(*line)
    assert done.returncode == code
    found = answer(done)["error"]
    assert f"called MPI_Abort with code {code}" in found["what"] or found["check"] == "rank-failed"
    assert f"rank 1 on {os.uname().nodename}" in found["where"], done.stdout


@pytest.mark.full
@pytest.mark.parametrize("work", WORKS)
def test_rank_that_exits_while_the_others_work_is_named_and_ends_nothing(
    work: str,
) -> None:
    done = run("mpich", 3 if work == "talks" else 2, WORKS[work])
    assert done.returncode == 0, done.stdout + done.stderr
    left = 2 if work == "talks" else 1
    assert done.stderr.count(f"warning[rank-left]: rank {left} has left the job") == 1
    assert f"where: rank {left} on {os.uname().nodename}, which is in MPI_Finalize" in done.stderr
