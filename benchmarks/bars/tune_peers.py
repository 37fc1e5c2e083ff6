"""The same random search by ``fairlead tune``, Ray Tune, and Optuna with joblib: seconds, and lines that a user writes.

TUNE_PEERS_PYTHON names a Python that has ``ray[tune]``, ``optuna``, ``joblib`` and NumPy; by fairlead, each trial is a proved
launch in an image, by the others a call of a function in a process that stays.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from benchmarks.result import (
    FAIRLEAD,
    PACKAGE,
    Benchmark,
    Result,
    absolute,
    alternate,
    compare,
    seconds_of,
)

ROUNDS, TRIALS = 3, 32
_SPACE = "[parameters.rate]\nlow = 0.001\nhigh = 1.0\nlog = true\n[parameters.width]\nlow = 16\nhigh = 64\n"
_QUIET = {"RAY_USAGE_STATS_ENABLED": "0"}  # it would wait for a network
_OBJECTIVE = PACKAGE / "programs/tune_objective.py"


def _lines(path: Path) -> int:
    """Lines of what a user writes for the search itself."""
    text = path.read_text().partition("# begin\n")[2].partition("# end")[0]
    return sum(bool(line.strip()) for line in text.splitlines())


def measure() -> Result:
    """Seconds of a search of 32 trials, two at a time, with the start of each tool."""
    python = os.environ.get("TUNE_PEERS_PYTHON", "")
    if not python:
        raise RuntimeError("TUNE_PEERS_PYTHON names no Python with ray[tune], optuna and joblib")
    programs = PACKAGE / "programs"
    environ = {**os.environ, "PYTHONPATH": str(programs), "OPENBLAS_NUM_THREADS": "1"} | _QUIET
    with tempfile.TemporaryDirectory(prefix="fairlead-bench-") as name:
        folder = Path(name)
        (folder / "space.toml").write_text(_SPACE)
        count = 0

        def fresh() -> str:
            nonlocal count
            count += 1
            return str(folder / f"out{count}")

        def fairlead() -> float:
            words = (
                "--sampler",
                "random",
                "--trials",
                TRIALS,
                "--at-once",
                2,
                "--image",
                "mpi-base",
                "-q",
            )
            line = (
                *FAIRLEAD,
                "tune",
                _OBJECTIVE,
                "--space",
                folder / "space.toml",
                *words,
                "-o",
                fresh(),
            )
            return seconds_of([str(word) for word in line])

        def ray() -> float:
            return seconds_of([python, str(programs / "tune_ray.py"), str(TRIALS)], environ)

        def optuna() -> float:
            return seconds_of(
                [python, str(programs / "tune_optuna.py"), str(TRIALS), fresh()], environ
            )

        took = alternate(ROUNDS, {"fairlead": fairlead, "ray": ray, "optuna": optuna})
    rows = (
        compare("seconds, of those of Ray Tune", took["fairlead"], took["ray"], None),
        compare("seconds, of those of Optuna with joblib", took["fairlead"], took["optuna"], None),
        absolute("lines, fairlead tune", [float(len(_SPACE.splitlines()) + 1)], None, unit=""),
        absolute("lines, Ray Tune", [float(_lines(programs / "tune_ray.py"))], None, unit=""),
        absolute(
            "lines, Optuna with joblib", [float(_lines(programs / "tune_optuna.py"))], None, unit=""
        ),
    )
    return Result(
        "tune-peers", f"a random search of {TRIALS} trials, 2 at a time", "Ray Tune, Optuna", rows
    )


BENCHMARKS = (Benchmark("tune-peers", 153, measure),)
