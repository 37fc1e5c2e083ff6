"""Allreduce of one float32 array by every library, 2 ranks of a node, in turns: the picture of the margin.

Each library is called as a user would call it from Python, with its array already where the library wants it: NumPy for
fairlead and MPI, a tensor for Horovod and torch. ``comm_node.py`` has the same for the core alone, from C, with bars;
nothing here has one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

from benchmarks.pictures import sweep
from benchmarks.result import Benchmark, Result, compare
from benchmarks.sides import Job, image, slowest, started
from benchmarks.tables import finished
from fairlead.doctor.install.host_mpi import install_wheel_mpi

# Gradients of HEP-CNN, CosmoFlow and ResNet-50 among them.
SIZES = (1024, 65536, 1048576, 2376704, 13107200, 33554432, 102495232)
TITLES = {
    "fairlead": "fairlead",
    "mpich": "MPICH 5.0.2",
    "impi": "Intel MPI 2021.18",
    "gloo": "Gloo, torch.distributed",
    "horovod": "Horovod, default",
    "horovod-best": "Horovod, grouped, cycle 50",
}
_MOST_OFF = 1e-6  # of a sum of small integers; float32 holds them exactly


@dataclass(frozen=True)
class Effort:
    """How much is measured."""

    sizes: tuple[int, ...] = SIZES
    libraries: tuple[str, ...] = tuple(TITLES)
    rounds: int = 5


def measure(effort: Effort = Effort()) -> Result:
    """Rows: fairlead over each library at each size."""
    seconds = samples(effort)
    rows = tuple(
        compare(
            f"{size} B: fairlead over {TITLES[library]}",
            seconds["fairlead", size],
            seconds[library, size],
            None,
        )
        for library in effort.libraries[1:]
        for size in effort.sizes
    )
    return Result(
        "comm-peers",
        "allreduce of one float32 array on 2 ranks of a node, a core each, called from Python; medians",
        "the same by each library, in turns",
        rows,
        {"rounds": str(effort.rounds)},
    )


def samples(effort: Effort) -> dict[tuple[str, int], list[float]]:
    """Seconds by library and bytes, one a round.

    Raises:
        RuntimeError: a library failed, or gave a wrong sum.
    """
    seconds: dict[tuple[str, int], list[float]] = {}
    with started({name: partial(_job, name) for name in effort.libraries}) as sides:
        for size in effort.sizes:
            count = size // 4
            repeats = 40 if size <= 65536 else 10 if size <= 4 << 20 else 4
            for name, side in sides.items():
                with side.turn():
                    off = max(side.ask("check", count=count))
                    side.ask("times", count=count, repeats=3)
                if off > _MOST_OFF:
                    raise RuntimeError(f"{TITLES[name]} is off by {off:g} at {size} B")
            names = list(sides)
            for number in range(effort.rounds):
                at = number % len(names)
                for name in names[at:] + names[:at]:
                    with sides[name].turn() as side:
                        ranks = side.ask("times", count=count, repeats=repeats)
                    seconds.setdefault((name, size), []).append(median(slowest(ranks)))
    return seconds


def _job(name: str) -> Job:
    library = name.removesuffix("-best")
    wheel = ("mpich", "5.0.2")
    env: dict[str, str] = {}
    if name in ("mpich", "impi"):
        library = "mpi"
    if name == "impi":
        wheel, env = ("impi-rt", "2021.18.1"), {"I_MPI_PIN": "0"}  # the ranks pin themselves
    if name == "horovod-best":
        env = {"HOROVOD_CYCLE_TIME": "50"}
    recipe = "pytorch" if name == "gloo" else "tensorflow-horovod"
    run = ("--mpi", str(install_wheel_mpi(*wheel)))
    return Job(image(recipe), ["reduce_core.py", library], env=env, run=run)


def _by_size(result: Mapping[str, Any]) -> dict[int, dict[str, Mapping[str, Any]]]:
    rows: dict[int, dict[str, Mapping[str, Any]]] = {}
    for row in result["rows"]:
        size, library = row["name"].split(" B: fairlead over ")
        rows.setdefault(int(size), {})[library] = row
    return rows


def _table(result: Mapping[str, Any]) -> str:
    """How many times as long as fairlead each library takes: a row a size."""
    sizes = _by_size(result)
    libraries = list(next(iter(sizes.values())))
    lines = ["| bytes | " + " | ".join(libraries) + " |", "| ---: |" + " ---: |" * len(libraries)]
    for size, row in sizes.items():
        cells = [f"{1 / row[name]['value']:.2g}" for name in libraries]
        lines.append(f"| {size:,} | " + " | ".join(cells) + " |")
    return finished(lines, result)


def _picture(result: Mapping[str, Any]) -> str:
    points: dict[str, list[tuple[int, float]]] = {}
    for size, rows in _by_size(result).items():
        own = median(next(iter(rows.values()))["samples"])
        points.setdefault("fairlead", []).append((size, own))
        for library, row in rows.items():
            points.setdefault(library, []).append((size, median(row["baseline"])))
    return sweep(points)


BENCHMARKS = (Benchmark("comm-peers", 110, measure, _table, _picture),)
