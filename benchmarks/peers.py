"""Allreduce of one float32 array by every library, 2 ranks of a node, in turns: the picture of the margin.

Each library is called as a user would call it from Python, with its array already where the library wants
it: NumPy for fairlead and MPI, a tensor for Horovod and torch. ``comm.py`` has the same for the core alone,
from C, with bars; nothing here has one.
"""

from __future__ import annotations

import statistics
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from benchmarks import plots
from benchmarks.measure import Compared, Result, compare
from benchmarks.sides import Side, Turn, image
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
    sizes: tuple[int, ...] = SIZES
    libraries: tuple[str, ...] = tuple(TITLES)
    rounds: int = 5


def measure(effort: Effort = Effort()) -> Result:
    """Rows: fairlead over each library at each size."""
    found = samples(effort)
    rows: list[Compared] = []
    for library in effort.libraries[1:]:
        for size in effort.sizes:
            name = f"{size} B: fairlead over {TITLES[library]}"
            rows.append(compare(name, found["fairlead", size], found[library, size], None))
    if effort == Effort():
        points = {
            TITLES[library]: [(s, statistics.median(found[library, s])) for s in effort.sizes]
            for library in effort.libraries
        }
        plots.sweep(points, "comm-peers")
    return Result(
        "comm-peers",
        "allreduce of one float32 array on 2 ranks of a node, a core each, called from Python; medians",
        "the same by each library, in turns",
        tuple(rows),
        {"rounds": str(effort.rounds)},
    )


def samples(effort: Effort) -> dict[tuple[str, int], list[float]]:
    """Seconds by library and bytes, one a round.

    Raises:
        RuntimeError: a library failed, or added wrongly.
    """
    found: dict[tuple[str, int], list[float]] = {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fairlead-")))
        folder.chmod(0o755)
        sides = {name: stack.enter_context(_start(name, folder)) for name in effort.libraries}
        for side in sides.values():
            side.ready()
        for side in sides.values():
            side.pause()
        for size in effort.sizes:
            count = size // 4
            repeats = 40 if size <= 65536 else 10 if size <= 4 << 20 else 4
            for name, side in sides.items():
                with Turn(side):
                    off = max(side.ask("check", count=count))
                    side.ask("times", count=count, repeats=3)
                if off > _MOST_OFF:
                    raise RuntimeError(f"{TITLES[name]} is off by {off:g} at {size} B")
            for number in range(effort.rounds):
                names = list(sides)
                at = number % len(names)
                for name in names[at:] + names[:at]:
                    with Turn(sides[name]) as side:
                        ranks = side.ask("times", count=count, repeats=repeats)
                    slowest = [max(each) for each in zip(*ranks, strict=True)]
                    found.setdefault((name, size), []).append(statistics.median(slowest))
    return found


def _start(name: str, folder: Path) -> Side:
    mpich = str(install_wheel_mpi("mpich", "5.0.2"))
    run: tuple[str, ...] = ("--mpi", mpich)
    env: dict[str, str] = {}
    recipe, library = "tensorflow-horovod", {"mpich": "mpi", "impi": "mpi"}.get(name, name)
    if name == "impi":
        run = ("--mpi", str(install_wheel_mpi("impi-rt", "2021.18.1")))
        env["I_MPI_PIN"] = "0"  # the ranks pin themselves
    elif name == "gloo":
        recipe = "pytorch"
    elif name.startswith("horovod"):
        library = "horovod"
        env = {"HOROVOD_CYCLE_TIME": "50"} if name == "horovod-best" else {}
    return Side(name, image(recipe), ["reduce_core.py", library], folder, env=env, run=run)
