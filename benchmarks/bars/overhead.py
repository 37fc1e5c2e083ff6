"""What ``fairlead run`` adds to the bare line that it launches, and how long ``--help`` takes."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from benchmarks.result import Benchmark, Result, absolute, alternate, compare
from benchmarks.watchdog import seconds_of
from fairlead import native
from fairlead.base.paths import cache_dir
from fairlead.launch.launch import command_line
from fairlead.session.model import Choices
from fairlead.session.prepare import prepare
from fairlead.swap import staging
from fairlead.swap.model import Request

_FAIRLEAD = str(Path(sys.executable).with_name("fairlead"))


def _alone(name: str, words: tuple[str, ...], rounds: int, bar: float, state: str) -> Result:
    """Wall time of a command, against nothing."""
    argv = (_FAIRLEAD, *words)
    seconds_of(argv, os.environ)  # warm
    title = f"fairlead {' '.join(words[:2])}"
    times = [seconds_of(argv, os.environ) for _ in range(rounds)]
    return Result(name, f"{title}, wall time{state}", "nothing", (absolute(title, times, bar),))


def _against_bare(
    name: str, image: str, command: tuple[str, ...], rounds: int, bar: float, kind: str
) -> Result:
    plan = prepare(image, Choices(), Request(ranks=2, command=command)).plan
    native.ensure(native.WITNESS, cache_dir())
    staging.ensure(plan, cache_dir())
    bare = command_line(plan, command, 2)
    ours = (_FAIRLEAD, "run", "-q", "-n", "2", image, "--", *command)
    sides: dict[str, Callable[[], float]] = {
        "ours": lambda: seconds_of(ours, os.environ),
        "bare": lambda: seconds_of(bare.argv, bare.environment(dict(os.environ))),
    }
    for side in sides.values():
        side()  # warm
    times = alternate(rounds, sides)
    label = f"fairlead run -n 2 {image} -- {' '.join(command)}"
    row = compare(label, times["ours"], times["bare"], bar, kind=kind)
    against = bare.shell().replace(str(Path.home()), "~")
    return Result(name, label, against, (row,), {"mpi": plan.planned_title})


_TENSORFLOW, _NOOP = "import tensorflow", "from mpi4py import MPI"
BENCHMARKS = (
    Benchmark("help", 10, partial(_alone, "help", ("--help",), 20, 0.12, "")),
    Benchmark(
        "preflight",
        20,
        partial(
            _alone, "preflight", ("preflight", "tensorflow", "--app", "python3"), 10, 1.0, ", warm"
        ),
    ),
    # A program that only starts MPI: the whole cost, in seconds.
    Benchmark(
        "run-noop",
        30,
        partial(
            _against_bare, "run-noop", "mpi-base", ("python3", "-c", _NOOP), 20, 0.5, "difference"
        ),
    ),
    Benchmark(
        "run-tensorflow",
        40,
        partial(
            _against_bare,
            "run-tensorflow",
            "tensorflow",
            ("python3", "-c", _TENSORFLOW),
            10,
            1.15,
            "ratio",
        ),
    ),
)
