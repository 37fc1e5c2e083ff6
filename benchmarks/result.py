"""What all benchmarks share: the machine they ran on, interleaved rounds, ratios with their confidence intervals, and
one JSON file each.

Machines are shared and noisy, so nothing is compared across runs: the two sides alternate within one, and the ratio of
their medians comes with a 95 % interval from resampling the rounds.
"""

from __future__ import annotations

import functools
import json
import os
import platform
import random
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fairlead import __version__
from fairlead.base.paths import atomic_write

PACKAGE = Path(__file__).parent
RESULTS = PACKAGE / "results"
# Goes in front of a command in a container into which PACKAGE is bound.
IMPORTABLE = ("env", f"PYTHONPATH={PACKAGE.parent}")
SCHEMA, SCHEMA_VERSION = "fairlead/benchmark", 1
FAIRLEAD = (sys.executable, "-m", "fairlead")
_RESAMPLES = 2000
MOST_BUSY = 0.15  # part of the processors' time that others may use for a bar to be judged


@dataclass(frozen=True)
class Compared:
    """Two sides of one comparison.

    Attributes:
        samples, baseline: one value a round, in ``unit``, taken alternately.
        value: by ``kind``: ``ratio`` of medians; their ``difference``; ``pairs``, the median ratio of a round.
        low, high: its 95 % confidence interval.
        bar: the most it may be; None for what is only reported.
    """

    name: str
    kind: str
    unit: str
    samples: tuple[float, ...]
    baseline: tuple[float, ...]
    value: float
    low: float
    high: float
    bar: float | None

    @property
    def met(self) -> bool:
        """Met when the interval reaches the bar."""
        return self.bar is None or self.low <= self.bar


@dataclass(frozen=True)
class Result:
    """One benchmark: what was measured against what, and every sample.

    Attributes:
        timed: its samples depend on how fast the machine is; else they are counted.
    """

    name: str
    what: str
    against: str
    rows: tuple[Compared, ...]
    versions: Mapping[str, str] = field(default_factory=dict)
    timed: bool = True

    @property
    def met(self) -> bool:
        return all(row.met for row in self.rows)


@dataclass(frozen=True)
class Benchmark:
    """One benchmark: its name, how it is measured, and how its kept result is shown.

    Attributes:
        order: benchmarks run in ascending order.
        table: of the kept JSON, the Markdown for docs/reference/measured.md; None if it has no section there.
        picture: of the kept JSON, an SVG file next to it; None for none.
        here: whether it is of this machine; a kept result of another stays when all are measured.
    """

    name: str
    order: int
    measure: Callable[[], Result]
    table: Callable[[Mapping[str, Any]], str] | None = None
    picture: Callable[[Mapping[str, Any]], str] | None = None
    here: Callable[[], bool] = lambda: True


def compare(
    name: str,
    samples: Sequence[float],
    baseline: Sequence[float],
    bar: float | None,
    *,
    kind: str = "ratio",
    unit: str = "s",
) -> Compared:
    """What ``kind`` says (:class:`Compared`); rounds are resampled in pairs, since noise comes by round."""

    ours, theirs = np.asarray(samples, float), np.asarray(baseline, float)

    def values(rows: Any) -> Any:
        """The value of each row of indices."""
        if kind == "pairs":
            return np.median(ours[rows] / theirs[rows], axis=-1)
        medians = np.median(ours[rows], axis=-1), np.median(theirs[rows], axis=-1)
        return medians[0] / medians[1] if kind == "ratio" else medians[0] - medians[1]

    if len(ours) != len(theirs):
        raise ValueError(f"{name}: {len(ours)} samples, {len(theirs)} of the baseline")
    drawn = np.sort(values(_resampled(len(ours))))
    low, high = drawn[int(0.025 * _RESAMPLES)], drawn[int(0.975 * _RESAMPLES) - 1]
    value, low, high = map(float, (values(np.arange(len(ours))), low, high))
    return Compared(name, kind, unit, tuple(samples), tuple(baseline), value, low, high, bar)


@functools.cache
def _resampled(count: int) -> Any:
    """Rows of ``count`` indices, the same at each call: those of ``random.Random(0).choices``, which kept results are of."""
    _, state, _ = random.Random(0).getstate()
    source = np.random.RandomState()
    twister = {"key": np.array(state[:-1], np.uint32), "pos": state[-1]}
    source.set_state({"bit_generator": "MT19937", "state": twister})
    return (source.random_sample((_RESAMPLES, count)) * count).astype(int)


def absolute(name: str, samples: Sequence[float], bar: float | None, unit: str = "s") -> Compared:
    """Values that are compared with nothing but a bar."""
    return compare(name, samples, [0.0] * len(samples), bar, kind="difference", unit=unit)


def seconds_of(argv: Sequence[Any], environ: Mapping[str, str] | None = None) -> float:
    """Wall time of a command that has to succeed; its output is dropped.

    Raises:
        subprocess.CalledProcessError: it failed.
    """
    begun = time.perf_counter()
    quiet = subprocess.DEVNULL
    subprocess.run(argv, env=environ, check=True, stdout=quiet, stderr=quiet)
    return time.perf_counter() - begun


def alternate(rounds: int, sides: Mapping[str, Callable[[], Any]]) -> dict[str, list[Any]]:
    """Calls every side once a round, in an order that turns, and collects what they return."""
    results: dict[str, list[Any]] = {name: [] for name in sides}
    names = list(sides)
    for number in range(rounds):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            results[name].append(sides[name]())
    return results


def machine_model() -> str:
    """The processor's name."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def machine() -> dict[str, Any]:
    """What the numbers were measured on."""
    return {
        "processor": machine_model(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load_before": os.getloadavg()[0],
        "busy_before": busy(),
    }


def busy(seconds: float = 2.0) -> float:
    """The part of the processors' time that is used now, or taken by other guests of the host: 0 to 1."""

    def read() -> tuple[int, int]:
        fields = [int(n) for n in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
        return sum(fields), fields[3] + fields[4]  # of these, idle and waiting for input

    total, idle = read()
    time.sleep(seconds)
    later, later_idle = read()
    return 1 - (later_idle - idle) / max(later - total, 1)


def judged(result: Result, on: Mapping[str, Any]) -> bool:
    """Whether the machine was quiet before and after a benchmark: on a loaded one, no bar of a time is judged."""
    return not result.timed or bool(max(on["busy_before"], on["busy_after"]) <= MOST_BUSY)


def keep(result: Result, on: Mapping[str, Any]) -> Path:
    """Writes ``results/NAME.json``; on a loaded machine ``met`` is null where there is a bar."""
    path = RESULTS / f"{result.name}.json"
    payload = {
        "schema": SCHEMA,
        "version": SCHEMA_VERSION,
        "fairlead": __version__,
        "measured": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": dict(on),
        "met": result.met if judged(result, on) else None,
        **asdict(result),
    }
    for row, source in zip(payload["rows"], result.rows, strict=True):
        row["met"] = source.met if source.bar is None or judged(result, on) else None
    with atomic_write(path, "w") as stream:
        json.dump(payload, stream, indent=1)
        stream.write("\n")
    return path


def kept(name: str) -> dict[str, Any]:
    """The JSON of a result.

    Raises:
        FileNotFoundError: none is kept.
    """
    result: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text())
    return result
