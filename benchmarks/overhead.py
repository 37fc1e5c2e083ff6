"""What ``fairlead run`` adds to the bare line that it launches, and how long ``--help`` takes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.measure import Result, alternate, compare
from fairlead import native
from fairlead.base.paths import cache_dir
from fairlead.launch.launch import command_line
from fairlead.session.model import Choices
from fairlead.session.prepare import prepare
from fairlead.swap import staging
from fairlead.swap.model import Request

_FAIRLEAD = (str(Path(sys.executable).with_name("fairlead")),)


def measure_tensorflow() -> Result:
    """A program that imports TensorFlow, warm, against the bare ``mpiexec … apptainer exec``."""
    return _against_bare(
        "run-tensorflow", "tensorflow", ("python3", "-c", "import tensorflow"), 10, 1.15, "ratio"
    )


def measure_noop() -> Result:
    """A program that only starts MPI: the whole cost, in seconds."""
    command = ("python3", "-c", "from mpi4py import MPI")
    return _against_bare("run-noop", "mpi-base", command, 20, 0.5, "difference")


def measure_help() -> Result:
    """``fairlead --help``: seconds, against nothing."""
    words = (*_FAIRLEAD, "--help")
    shell = dict(os.environ)
    _time(words, shell)
    times = [_time(words, shell) for _ in range(20)]
    row = compare("fairlead --help", times, [0.0] * len(times), 0.12, kind="difference")
    return Result("help", "fairlead --help, wall time", "nothing", (row,))


def measure_preflight() -> Result:
    """``fairlead preflight`` of the largest image of the demo: seconds, against nothing."""
    words = (*_FAIRLEAD, "preflight", "tensorflow", "--app", "python3")
    shell = dict(os.environ)
    _time(words, shell)
    times = [_time(words, shell) for _ in range(10)]
    row = compare(
        "fairlead preflight tensorflow", times, [0.0] * len(times), 1.0, kind="difference"
    )
    return Result("preflight", "fairlead preflight tensorflow, wall time, warm", "nothing", (row,))


def _against_bare(
    name: str, image: str, command: tuple[str, ...], rounds: int, bar: float, kind: str
) -> Result:
    plan = prepare(image, Choices(), Request(ranks=2, command=command)).plan
    native.ensure_witness(cache_dir())
    staging.ensure(plan, cache_dir())
    bare = command_line(plan, command, 2)
    ours = (*_FAIRLEAD, "run", "-q", "-n", "2", image, "--", *command)
    shell = dict(os.environ)
    sides = {
        "ours": lambda: _time(ours, shell),
        "bare": lambda: _time(bare.argv, bare.environment(shell)),
    }
    for side in sides.values():
        side()  # warm
    found = alternate(rounds, sides)
    label = f"fairlead run -n 2 {image} -- {' '.join(command)}"
    row = compare(label, found["ours"], found["bare"], bar, kind=kind)
    return Result(
        name,
        label,
        bare.shell().replace(str(Path.home()), "~"),
        (row,),
        {"mpi": plan.planned_title},
    )


def _time(argv: tuple[str, ...], environ: dict[str, str]) -> float:
    begun = time.perf_counter()
    subprocess.run(
        argv,
        env=environ,
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    return time.perf_counter() - begun
