"""What ``--timeline`` costs: steps that are recorded, and between them the same steps that are not."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

from benchmarks import watchdog
from benchmarks.result import FAIRLEAD, Benchmark, Result, absolute, compare

_PROGRAM = Path(__file__).parents[1] / "programs/timeline_steps.py"
_STEPS, _ROUNDS = 100, 6


def measure() -> Result:
    """Steps of some ms on 2 ranks, each with an aggregation of 1 MB, its parts and four spans: ratio and seconds."""
    seconds: dict[str, list[float]] = {"with": [], "without": [], "work": []}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(_ROUNDS):
            for side, took in _steps(Path(folder) / "run.json").items():
                seconds[side].append(took)
    label = "a step with --timeline, on 2 ranks"
    rows = (
        compare(label, seconds["with"], seconds["without"], None, kind="pairs"),
        compare(
            f"{label}: more seconds", seconds["with"], seconds["without"], None, kind="difference"
        ),
        absolute("processor time of recording it", seconds["work"], None),
    )
    return Result("timeline", label, "the steps between, which Python does not record", rows)


def _steps(file: Path) -> dict[str, float]:
    """Median seconds of a step of each kind, and processor seconds of recording one, of one launch."""
    bind = ("-B", str(_PROGRAM.parent), "--timeline", str(file))
    words = (*FAIRLEAD, "run", "-q", "-n", "2", *bind)
    argv = [*words, "mpi-base", "--", "python3", str(_PROGRAM), str(_STEPS)]
    output = watchdog.run(argv, os.environ, quiet_s=300)  # it prints at its end only
    seconds: dict[str, float] = json.loads(output.splitlines()[-1])
    return seconds


BENCHMARKS = (Benchmark("timeline", 140, measure),)
