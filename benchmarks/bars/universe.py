"""What the surrogate of `examples/universe` costs and gains in a simulation job, and whether the model chooses well."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.result import FAIRLEAD, PACKAGE, Benchmark, Result, absolute, compare
from fairlead.engines.apptainer import find_apptainer

EXAMPLE = PACKAGE.parent / "examples/universe"
# From shards that arrive to the new model in use; "minutes", by one command.
BAR_S = 300
CONFIG = ("universes=8", "steps=150", "trials=1")
_FINER, _CHECKS, _SEEDS, _LIMIT_S = 48, 4, 6, 3600


def measure() -> Result:
    """Seconds and errors of the stand-in, next to the simulation's and to those of cheaper ones; then new shards."""
    with tempfile.TemporaryDirectory(prefix="fairlead-bench-") as name:
        folder = Path(name)
        _snakemake(folder, *CONFIG)
        rows = []
        for cells in (32, _FINER):
            checks = _used(folder, cells)
            rows += [
                compare(f"{cells}^3: seconds, stand-in / simulation", *_seconds(checks, "simulation"), None),
                compare(f"{cells}^3: seconds, stand-in / 2 steps", *_seconds(checks, "2 steps"), None),
                *(
                    compare(f"{cells}^3: error, stand-in / {other}", *_errors(checks, other), None, unit="cells")
                    for other in ("linear theory", "2 steps", "4 steps")
                ),
            ]  # fmt: skip
        _simulated(folder)
        begun = time.perf_counter()
        _snakemake(folder, *CONFIG)
        took = time.perf_counter() - begun
        rows.append(absolute("shards that arrive, to the new model in use", [took], BAR_S))
    what = "a surrogate in the place of 20 steps of a particle-mesh simulation, 2 ranks"
    return Result("universe", what, "the simulation, and cheaper ones", tuple(rows), {"workflow": " ".join(CONFIG)})  # fmt: skip


def _run(folder: Path, *words: str | Path) -> None:
    path = (
        f"{Path(sys.executable).parent}:{Path(str(find_apptainer())).parent}:{os.environ['PATH']}"
    )
    subprocess.run(
        list(map(str, words)), cwd=folder, env={**os.environ, "PATH": path}, check=True, timeout=_LIMIT_S,
    )  # fmt: skip


def _snakemake(folder: Path, *config: str) -> None:
    program = Path(sys.executable).with_name("snakemake")
    _run(folder, program, "-s", EXAMPLE / "Snakefile", "--cores", "2", "--config", *config)


def _launched(folder: Path, script: str, *words: str | Path) -> None:
    launch = (*FAIRLEAD, "run", "-q", "-n", "2", "tensorflow", "--", "python3")
    _run(folder, *launch, EXAMPLE / script, *words)


def _used(folder: Path, cells: int) -> list[dict[str, Any]]:
    """What was checked; the first use of the network traces it, and is left out."""
    more = ("--cells", str(cells), "--universes", str(_CHECKS + 1), "--check", str(_CHECKS + 1))
    _launched(folder, "use.py", "--model", "models/0.npz", "-o", f"used-{cells}.json", *more)
    checks: list[dict[str, Any]] = json.loads((folder / f"used-{cells}.json").read_text())["checks"]
    return checks[1:]


def _seconds(checks: list[dict[str, Any]], other: str) -> tuple[list[float], list[float]]:
    return [c["seconds"]["stand-in"] for c in checks], [c["seconds"][other] for c in checks]


def _errors(checks: list[dict[str, Any]], other: str) -> tuple[list[float], list[float]]:
    own, theirs = (
        [c["error"][n]["displacement_cells"] for c in checks] for n in ("stand-in", other)
    )
    return own, theirs


def _simulated(folder: Path) -> None:
    """Shards as others bring them: of parameters that nobody has chosen."""
    words = ("-o", "other.json", "--number", "8", "--seed", "5")
    _launched(folder, "choose.py", *words)
    _launched(folder, "simulate.py", "--parameters", "other.json", "-o", "other")
    (folder / "arrived").mkdir()
    shutil.move(folder / "other", folder / "arrived/1")


def measure_active() -> Result:
    """The error on held-out universes after each round, over seeds: what a committee of models chose, and random choice."""
    with tempfile.TemporaryDirectory(prefix="fairlead-bench-") as name:
        _launched(Path(name), "active.py", "-o", "active.json", "--seeds", str(_SEEDS))
        errors = json.loads(Path(name, "active.json").read_text())["errors"]
    rows = []
    for after in range(1, len(errors["random"][0])):
        for place, what in enumerate(("mean", "largest")):
            own, theirs = (
                [rounds[after][place] for rounds in errors[by]] for by in ("committee", "random")
            )
            title = f"{what} error with {4 * after + 4} universes, committee / random"
            rows.append(compare(title, own, theirs, None, kind="pairs", unit="cells"))
    what = f"universes that a committee of 2 models chooses from a pool of 48, {_SEEDS} seeds"
    return Result("universe-active", what, "random choice", tuple(rows))


BENCHMARKS = (
    Benchmark("universe", 155, measure),
    Benchmark("universe-active", 156, measure_active),
)
