"""Allreduce within a node: the core of ``fairlead.comm`` against ``MPI_Allreduce`` of the same MPI.

Both take turns in one process, pinned, so that a noisy machine is as noisy for both (``comm_sweep.c``).
The bars are DESIGN.md's: gradients of CosmoFlow's (13 MB) and ResNet-50's size (102 MB) are where it
matters; nowhere may it cost more than MPI does.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from statistics import median

from benchmarks import plots
from benchmarks.measure import Compared, Result, compare
from fairlead import native
from fairlead.base.paths import cache_dir
from fairlead.doctor.install.host_mpi import install_wheel_mpi

ROUNDS = 10
BARS = {2376704: 0.85, 13107200: 0.60, 102495232: 0.33}
_BAR = 1.05
# An MPI, and what keeps rank 0 on one core and rank 1 on another.
MPIS: tuple[tuple[tuple[str, str], tuple[str, ...], Mapping[str, str]], ...] = (
    (("mpich", "5.0.2"), ("-bind-to", "user:0,1"), {}),
    (("impi-rt", "2021.18.1"), (), {"I_MPI_PIN_PROCESSOR_LIST": "0,1"}),
)


def measure() -> Result:
    """Rows: each MPI and size; and, reported, the same against what memory allows."""
    rows: list[Compared] = []
    points: dict[str, list[tuple[int, float]]] = {"fairlead": []}
    with tempfile.TemporaryDirectory(prefix="fairlead-bench-") as folder:
        core = native.ensure_core(cache_dir())
        program = _compile(Path(folder), core)
        for (name, version), pin, variables in MPIS:
            prefix = install_wheel_mpi(name, version)
            found = _run(prefix, pin, variables, program)
            for size in sorted({size for _, size in found}):
                ours, mpi, bound = (found[side, size] for side in ("ours", "mpi", "bound"))
                points.setdefault(f"{name} {version}", []).append((size, median(mpi)))
                if name == "mpich":
                    points["fairlead"].append((size, median(ours)))
                    points.setdefault("what memory allows", []).append((size, median(bound)))
                label = f"{name} {version}: {size} B"
                rows.append(compare(label, ours, mpi, BARS.get(size, _BAR)))
                if size >= 1 << 20 and name == "mpich":
                    rows.append(compare(f"{label}, against memory", ours, bound, None))
    plots.sweep(points, "comm-node")
    return Result(
        "comm-node",
        f"allreduce of float32 on 2 ranks of a node by the native core, pinned; {ROUNDS} rounds",
        "MPI_Allreduce of the same MPI in the same process, in turns; or a sum in place in memory that"
        " both ranks see",
        tuple(rows),
        {"mpis": ", ".join(" ".join(mpi) for mpi, _, _ in MPIS)},
    )


def _compile(folder: Path, core: Path) -> Path:
    program = folder / "comm_sweep"
    mpicc = install_wheel_mpi("mpich", "5.0.2") / "bin" / "mpicc"
    source = Path(__file__).with_name("comm_sweep.c")
    include = native.core_folder() / "include"
    words = (mpicc, "-O3", "-march=native", "-I", include, "-o", program, source, core)
    # The core finds libc in the process, not by itself.
    subprocess.run(
        [*words, f"-Wl,-rpath,{core.parent}", "-Wl,--unresolved-symbols=ignore-in-shared-libs"],
        check=True,
    )
    return program


def _run(
    prefix: Path, pin: tuple[str, ...], variables: Mapping[str, str], program: Path
) -> dict[tuple[str, int], list[float]]:
    done = subprocess.run(
        [prefix / "bin" / "mpiexec", *pin, "-n", "2", program, str(ROUNDS)],
        env={**os.environ, **variables, "LD_LIBRARY_PATH": str(prefix / "lib")},
        capture_output=True,
        text=True,
        check=True,
        timeout=1200,
    )
    found: dict[tuple[str, int], list[float]] = defaultdict(list)
    for line in done.stdout.splitlines():
        side, size, seconds = line.split()
        found[side, int(size)].append(float(seconds))
    return found
