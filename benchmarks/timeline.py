"""What ``--timeline`` costs: steps that are recorded, and between them the same steps that are not."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.measure import Result, compare

_FAIRLEAD = (sys.executable, "-m", "fairlead")
_PROGRAM = Path(__file__).with_name("programs") / "timeline_steps.py"
_STEPS, _ROUNDS = 100, 6


def measure() -> Result:
    """Steps of some ms on 2 ranks, each with an aggregation of 1 MB, its parts and four spans: ratio and seconds."""
    found: dict[str, list[float]] = {"with": [], "without": [], "work": []}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(_ROUNDS):
            for side, seconds in _steps(Path(folder) / "run.json").items():
                found[side].append(seconds)
    label = "a step with --timeline, on 2 ranks"
    rows = (
        compare(label, found["with"], found["without"], None, kind="pairs"),
        compare(f"{label}: more seconds", found["with"], found["without"], None, kind="difference"),
        compare(
            "processor time of recording it",
            found["work"],
            [0.0] * _ROUNDS,
            None,
            kind="difference",
        ),
    )
    return Result("timeline", label, "the steps between, which Python does not record", rows)


def _steps(file: Path) -> dict[str, float]:
    """Median seconds of a step of each kind, and processor seconds of recording one, of one launch."""
    words = (
        *_FAIRLEAD,
        "run",
        "-q",
        "-n",
        "2",
        "-B",
        str(_PROGRAM.parent),
        "--timeline",
        str(file),
    )
    done = subprocess.run(
        [*words, "mpi-base", "--", "python3", str(_PROGRAM), str(_STEPS)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    seconds: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return seconds
