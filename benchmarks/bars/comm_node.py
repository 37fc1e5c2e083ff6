"""Allreduce within a node: the core of ``fairlead.comm`` against ``MPI_Allreduce`` of the same MPI.

Of tensors anywhere, which are copied through a segment, and of tensors in memory that both ranks see. All take turns in one process, pinned and once more unbound, so that a noisy machine is as noisy for both (``comm_sweep.c``).
The bars are DESIGN.md's: gradients of CosmoFlow's (13 MB) and ResNet-50's size (102 MB) are where it
matters; nowhere may it cost more than MPI does.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import watchdog
from benchmarks.pictures import sweep
from benchmarks.result import Benchmark, Compared, Result, compare, machine_model
from benchmarks.tables import bar, finished, value, verdict
from fairlead import native
from fairlead.base.paths import cache_dir
from fairlead.doctor.install.host_mpi import install_wheel_mpi

ROUNDS = 10
BARS = {2376704: 0.85, 13107200: 0.60, 102495232: 0.45}
_BAR = 1.05
# Of tensors in shared memory, over what memory allows.
BOUND_BARS = {1048576: 2.5, 2376704: 2.5, 13107200: 1.6, 102495232: 1.5}
_UNBOUND = ("-bind-to", "none")
# An MPI, and what keeps rank 0 on one core and rank 1 on another; or leaves both to the scheduler, which is
# reported, since it moves them.
MPIS: tuple[tuple[tuple[str, str], tuple[str, ...], Mapping[str, str]], ...] = (
    (("mpich", "5.0.2"), ("-bind-to", "user:0,1"), {}),
    (("impi-rt", "2021.18.1"), (), {"I_MPI_PIN_PROCESSOR_LIST": "0,1"}),
    (("mpich", "5.0.2"), _UNBOUND, {}),
)


def measure(name: str = "comm-node") -> Result:
    """Rows: each MPI and size; and the same against what memory allows."""
    measured: list[tuple[str, dict[tuple[str, int], list[float]]]] = []
    with tempfile.TemporaryDirectory(prefix="fairlead-bench-") as folder:
        core = native.ensure(native.CORE, cache_dir())
        program = _compile(Path(folder), core)
        for (mpi, version), pin, variables in MPIS:
            prefix = install_wheel_mpi(mpi, version)
            bound_to = ", unbound" if pin == _UNBOUND else ""
            output = _run(prefix, pin, variables, program)
            measured.append((f"{mpi} {version}{bound_to}", samples(output)))
    return result(name, measured)


def result(
    name: str, measured: Sequence[tuple[str, Mapping[tuple[str, int], list[float]]]]
) -> Result:
    """The comparison of what ``comm_sweep`` has printed under each MPI."""
    rows: list[Compared] = []
    for mpi, seconds in measured:
        pinned = not mpi.endswith("unbound")
        for size in sorted({size for _, size in seconds}):
            ours, shared, theirs, bound = (
                seconds[side, size] for side in ("ours", "shared", "mpi", "bound")
            )
            label = f"{mpi}: {size} B"
            bar = BARS.get(size, _BAR) if pinned else None
            rows.append(compare(label, ours, theirs, bar))
            rows.append(compare(f"{label}, shared", shared, theirs, bar))
            if size >= 1 << 20 and mpi.startswith("mpich") and pinned:
                rows.append(compare(f"{label}, against memory", ours, bound, None))
                bar = BOUND_BARS.get(size)
                rows.append(compare(f"{label}, shared, against memory", shared, bound, bar))
    return Result(
        name,
        f"allreduce of float32 on 2 ranks of a node by the native core, pinned and not; {ROUNDS} rounds",
        "MPI_Allreduce of the same MPI in the same process, in turns; or a sum in place in memory that"
        " both ranks see",
        tuple(rows),
        {"mpis": ", ".join(sorted({mpi.removesuffix(", unbound") for mpi, _ in measured}))},
    )


def _compile(folder: Path, core: Path) -> Path:
    program = folder / "comm_sweep"
    mpicc = install_wheel_mpi("mpich", "5.0.2") / "bin" / "mpicc"
    source = Path(__file__).parents[1] / "programs/comm_sweep.c"
    include = native.core_folder() / "include"
    words = (mpicc, "-O3", "-march=native", "-I", include, "-o", program, source, core)
    # The core finds libc in the process, not by itself.
    subprocess.run(
        [*words, f"-Wl,-rpath,{core.parent}", "-Wl,--unresolved-symbols=ignore-in-shared-libs"],
        check=True,
    )
    return program


def _run(prefix: Path, pin: tuple[str, ...], variables: Mapping[str, str], program: Path) -> str:
    return watchdog.run(
        [prefix / "bin" / "mpiexec", *pin, "-n", "2", program, str(ROUNDS)],
        {**os.environ, **variables, "LD_LIBRARY_PATH": str(prefix / "lib")},
        quiet_s=300,  # a round of the largest sizes
    )


def samples(output: str) -> dict[tuple[str, int], list[float]]:
    """Seconds of each round by side and size."""
    seconds: dict[tuple[str, int], list[float]] = defaultdict(list)
    for line in output.splitlines():
        side, size, took = line.split()
        seconds[side, int(size)].append(float(took))
    return seconds


Rows = dict[str, Mapping[str, Any]]


def _by_size(result: Mapping[str, Any]) -> dict[int, tuple[Rows, Rows]]:
    """By bytes: rows of tensors anywhere and in shared memory, by library; ``memory`` is what memory allows."""
    sizes: dict[int, tuple[Rows, Rows]] = {}
    for row in result["rows"]:
        match = re.fullmatch(r"(.*): (\d+) B(, shared)?(, against memory)?", row["name"])
        assert match is not None
        copied, shared = sizes.setdefault(int(match[2]), ({}, {}))
        (shared if match[3] else copied)["memory" if match[4] else match[1]] = row
    return sizes


def _table(result: Mapping[str, Any]) -> str:
    """A row a size: fairlead's time, as many times each MPI's, and what memory allows."""
    sizes = _by_size(result)
    libraries = [name for name in next(iter(sizes.values()))[0] if name != "memory"]
    over = " | ".join(f"over {name}" for name in libraries)
    lines = [f"| bytes | tensors | fairlead | {over} | over what memory allows |"]
    lines.append("| ---: | --- | ---: |" + " ---: |" * (len(libraries) + 1))
    for size, kinds in sizes.items():
        for kind, rows in zip(("anywhere", "shared"), kinds, strict=True):
            own = 1e6 * median(rows[libraries[0]]["samples"])
            took = f"{own:.3g} µs" if own < 1000 else f"{own / 1000:.3g} ms"
            every = [rows[name] for name in libraries] + [rows[m] for m in ("memory",) if m in rows]
            cells = [
                f"{value(row)}, bar {bar(row)}: {verdict(row)}" if bar(row) else value(row)
                for row in every
            ]
            cells += [""] * (len(libraries) + 1 - len(cells))
            lines.append(f"| {size:,} | {kind} | {took} | {' | '.join(cells)} |")
    return finished(lines, result)


def _picture(result: Mapping[str, Any]) -> str:
    points: dict[str, list[tuple[int, float]]] = {"fairlead": [], "fairlead, shared": []}
    for size, (copied, shared) in _by_size(result).items():
        for name, row in copied.items():
            title = "what memory allows" if name == "memory" else name
            points.setdefault(title, []).append((size, median(row["baseline"])))
            if name == next(iter(copied)):
                points["fairlead"].append((size, median(row["samples"])))
                points["fairlead, shared"].append((size, median(shared[name]["samples"])))
    return sweep(points)


def _intel() -> bool:
    return "Intel" in machine_model()


# One kept result for each family of processors.
BENCHMARKS = (
    Benchmark("comm-node", 80, measure, _table, _picture, lambda: not _intel()),
    Benchmark("comm-node-intel", 81, lambda: measure("comm-node-intel"), _table, _picture, _intel),
)
