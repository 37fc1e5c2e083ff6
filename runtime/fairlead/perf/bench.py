"""``fairlead bench collectives``: one launch of :mod:`fairlead.perf.measure.ranks.messages`, and its result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fairlead.base.progress import Progress
from fairlead.ml.train.runner import Runner
from fairlead.perf import stats
from fairlead.perf.measure.program import run_program
from fairlead.perf.measure.ranks import messages as sweeps

SCHEMA, SCHEMA_VERSION = "fairlead/bench-collectives", 1


@dataclass(frozen=True)
class Machine:
    """What was measured on.

    Attributes:
        site: name of its profile.
        cores: of the node that launched.
        load_before: processes that wanted to run before the first launch, mean of a minute; null where unknown.
        facts: processor, kernel, MPI, engine, launcher.
    """

    site: str
    hosts: tuple[str, ...]
    cores: int
    load_before: float | None
    facts: Mapping[str, str]


@dataclass(frozen=True)
class CollectiveRow:
    """One operation with messages of one size.

    Attributes:
        operation: ``pingpong``, ``allreduce`` or ``broadcast``.
        through: ``mpi`` for plain MPI, ``comm`` for ``fairlead.comm``.
        ranks: that take part.
        seconds: of a call, one a sample, of the slowest rank; a ping-pong's is half of there and back.
        wrong: answers that were not what they had to be, of all that were given.
        times: how many times as long as plain MPI it takes, with its 95 % interval; null for plain MPI itself.
    """

    operation: str
    through: str
    bytes: int
    ranks: tuple[int, ...]
    seconds: tuple[float, ...]
    median: float
    low: float | None
    high: float | None
    wrong: int
    times: float | None = None
    times_low: float | None = None
    times_high: float | None = None


@dataclass(frozen=True)
class CollectivesBench:
    """``fairlead bench collectives``.

    Attributes:
        backend: what carried the bytes of ``fairlead.comm``.
        crowded: ranks shared cores.
        rows: in order of operation, size, way.
        skipped: points that there was no time for, in words.
    """

    begun: str
    seconds: float
    command: str
    machine: Machine
    image: str
    ranks: int
    backend: str
    crowded: bool
    rows: tuple[CollectiveRow, ...]
    skipped: tuple[str, ...]
    wrong: int


def measure(
    run: Runner, ranks: int, settings: sweeps.Settings, progress: Progress
) -> dict[str, Any]:
    """The document that the ranks have written to ``settings.out``, whose folder is made.

    Raises:
        FairleadError: the launch failed, or left nothing.
    """
    settings.out.parent.mkdir(parents=True, exist_ok=True)
    with progress.stage(f"messages of {ranks} ranks") as stage:
        document = run_program(sweeps.__name__, settings, run, ranks)
        wrong = document["wrong"]
        if wrong:
            stage.failed(f"{wrong} wrong answers")
        else:
            stage.result("every answer is right")
    return document


def rows(document: Mapping[str, Any]) -> tuple[CollectiveRow, ...]:
    """Each point with its statistics; ``fairlead.comm``'s next to plain MPI's."""
    order = {name: at for at, name in enumerate(sweeps.OPERATIONS)}
    ordered = sorted(
        document["rows"], key=lambda r: (order[r["operation"]], r["ranks"], r["bytes"], r["through"] != "mpi")
    )  # fmt: skip
    plain = {_point(row): row["seconds"] for row in ordered if row["through"] == "mpi"}
    return tuple(_row(row, plain.get(_point(row))) for row in ordered)


def _point(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return row["operation"], tuple(row["ranks"]), row["bytes"]


def _row(row: Mapping[str, Any], plain: Sequence[float] | None) -> CollectiveRow:
    times = stats.summarize(row["seconds"])
    result = CollectiveRow(
        row["operation"], row["through"], row["bytes"], tuple(row["ranks"]), tuple(row["seconds"]),
        times.median, times.low, times.high, row["wrong"],
    )  # fmt: skip
    if plain is None or row["through"] == "mpi":
        return result
    ratio = stats.ratio_of_medians(row["seconds"], plain)
    return replace(result, times=ratio.value, times_low=ratio.low, times_high=ratio.high)


def skipped(document: Mapping[str, Any]) -> tuple[str, ...]:
    """What there was no time for, in words."""
    return tuple(
        f"{point['operation']} of {point['bytes']} B through {point['through']}"
        for point in document["skipped"]
    )
