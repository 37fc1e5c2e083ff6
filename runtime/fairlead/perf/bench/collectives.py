"""``fairlead bench collectives`` from outside: one launch of :mod:`fairlead.perf.measure.ranks.messages`, and its rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fairlead.base.progress import Progress
from fairlead.ml.train.runner import Runner
from fairlead.perf import stats
from fairlead.perf.bench.results import CollectiveRow
from fairlead.perf.measure.program import run_program
from fairlead.perf.measure.ranks import messages as sweeps


def measure(
    run: Runner, ranks: int, out: Path, settings: sweeps.Settings, progress: Progress
) -> dict[str, Any]:
    """The document that the ranks have written into the folder ``out``.

    Raises:
        FairleadError: the launch failed, or left nothing.
    """
    out.mkdir(parents=True, exist_ok=True)
    settings = replace(settings, out=out / "messages.json")
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
    seen = stats.summarize(row["seconds"])
    result = CollectiveRow(
        row["operation"], row["through"], row["bytes"], tuple(row["ranks"]), tuple(row["seconds"]),
        seen.median, seen.low, seen.high, row["wrong"],
    )  # fmt: skip
    if plain is None or row["through"] == "mpi":
        return result
    ratio = stats.ratio_of_medians(row["seconds"], plain)
    return replace(result, times=ratio.value, times_low=ratio.low, times_high=ratio.high)


def skipped(document: Mapping[str, Any]) -> tuple[str, ...]:
    """What there was no time for, in words."""
    return tuple(
        f"{one['operation']} of {one['bytes']} B through {one['through']}"
        for one in document["skipped"]
    )
