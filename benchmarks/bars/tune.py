"""What a trial of ``fairlead tune`` costs, and how busy a search of short trials keeps the cores."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks import watchdog
from benchmarks.result import (
    FAIRLEAD,
    Benchmark,
    Compared,
    Result,
    absolute,
    alternate,
    compare,
    seconds_of,
)

ROUNDS, BAR_S, BAR_30S, BAR_IDLE = 5, 0.5, 1.02, 0.05
_TRIALS, _LONG_S, _SHORT = 8, 30, 64
_SCRIPT = """
import argparse, time
parser = argparse.ArgumentParser()
parser.add_argument("--x")
parser.add_argument("--sleep", type=float, default=0)
parser.add_argument("--compute", type=float, default=0)
given = parser.parse_args()
time.sleep(given.sleep)
begun = time.thread_time()
while time.thread_time() - begun < given.compute:
    pass
print("FoM:", given.x)
"""


@contextmanager
def _folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="fairlead-bench-") as name:
        folder = Path(name)
        (folder / "trial.py").write_text(_SCRIPT)
        (folder / "space.toml").write_text("[parameters.x]\nlow = 0.0\nhigh = 1.0\n")
        yield folder


def _trial(folder: Path, *own: str, trials: int) -> float:
    """Seconds of one more trial of a search: its start is left out."""
    few, many = (_search(folder, n, 1, *own) for n in (1, trials + 1))
    return (many - few) / trials


def _bare(folder: Path, *own: str, times: int) -> float:
    """Seconds of the same launch, as its line in a shell."""
    script = ("--", "python3", str(folder / "trial.py"), *own)
    words = [
        *FAIRLEAD, "run", "-q", "--dry-run", "-n", "1", "-B", str(folder), "mpi-base", *script,
    ]  # fmt: skip
    line = watchdog.run(words, os.environ).strip()
    return sum(seconds_of(["sh", "-c", line]) for _ in range(times)) / times


def short_trials(rounds: int = ROUNDS) -> Compared:
    """What a trial costs more than its command."""
    with _folder() as folder:
        took = alternate(
            rounds,
            {
                "tune": lambda: _trial(folder, trials=_TRIALS),
                "bare": lambda: _bare(folder, times=_TRIALS),
            },
        )
    return compare("a trial: more seconds", took["tune"], took["bare"], BAR_S, kind="difference")


def long_trials(rounds: int = 2) -> Compared:
    """The time of a trial of 30 s, of that of its command."""
    own = ("--sleep", str(_LONG_S))
    with _folder() as folder:
        took = alternate(
            rounds,
            {
                "tune": lambda: _trial(folder, *own, trials=1),
                "bare": lambda: _bare(folder, *own, times=1),
            },
        )
    return compare("a trial of 30 s", took["tune"], took["bare"], BAR_30S, kind="ratio")


def idle_cores(rounds: int = 2) -> Compared:
    """What cores idle while short trials run."""
    with _folder() as folder:
        idle = [_idle(folder) for _ in range(rounds)]
    return absolute(f"{_SHORT} short trials: idle share of the cores", idle, BAR_IDLE, unit="")


def measure() -> Result:
    """Seconds of a search for each of its trials, less the seconds of the same command; and what cores idle meanwhile."""
    against = "the line of `fairlead run --dry-run`"
    rows = (short_trials(), long_trials(), idle_cores())
    return Result("tune", "a trial of fairlead tune, 1 rank", against, rows)


def _search(folder: Path, trials: int, at_once: int, *own: str) -> float:
    """Seconds of a search of so many trials."""
    with tempfile.TemporaryDirectory(dir=folder) as output:
        words = [
            *FAIRLEAD, "tune", str(folder / "trial.py"), "--space", str(folder / "space.toml"), "--image", "mpi-base",
            "--sampler", "random", "--trials", str(trials), "--at-once", str(at_once), "-o", output, "--", *own,
        ]  # fmt: skip
        begun = time.perf_counter()
        watchdog.run(words, os.environ, quiet_s=300)  # it prints at its end only
        return time.perf_counter() - begun


def _idle(folder: Path) -> float:
    """The share of all cores' time that nothing used, while as many short trials as there are cores run at once."""
    before = _ticks()
    _search(folder, _SHORT, os.cpu_count() or 1, "--compute", "1.0")
    idle, every = (b - a for a, b in zip(before, _ticks(), strict=True))
    return idle / every


def _ticks() -> tuple[int, int]:
    """Idle ticks and all ticks of all cores since the start of the machine."""
    fields = [int(word) for word in Path("/proc/stat").read_text().split("\n")[0].split()[1:9]]
    return fields[3] + fields[4], sum(fields)


BENCHMARKS = (Benchmark("tune", 150, measure),)
