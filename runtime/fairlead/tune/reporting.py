"""What a trial's script calls: its parameters, and the report of its value. The standard library only: ranks load it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

PARAMETERS = "FAIRLEAD_TUNE_PARAMETERS"  # JSON file of a trial's parameters
REPORTS = "FAIRLEAD_TUNE_REPORTS"  # file that reports are appended to
FOLDER = "FAIRLEAD_TUNE_FOLDER"  # a trial's own folder
SOURCE = "FAIRLEAD_TUNE_SOURCE"  # folder of the trial from whose checkpoint it goes on
SEED = "FAIRLEAD_TUNE_SEED"  # a trial's own seed


def parameters() -> dict[str, Any]:
    """The parameters of this trial by name; empty where no search runs."""
    file = os.environ.get(PARAMETERS)
    values: dict[str, Any] = json.loads(Path(file).read_text("utf-8")) if file else {}
    return values


def folder() -> Path | None:
    """This trial's folder, for its checkpoint; None where no search runs."""
    path = os.environ.get(FOLDER)
    return Path(path) if path else None


def source() -> Path | None:
    """The folder of the trial from whose checkpoint this one goes on; None for one that begins."""
    path = os.environ.get(SOURCE)
    return Path(path) if path else None


def _rank() -> str:
    """This process among those of its launcher, before any MPI is started."""
    from fairlead.prove import RANK_VARIABLES

    return next((os.environ[name] for name in RANK_VARIABLES if name in os.environ), "0")


def report(step: int, value: float | None = None, **values: float) -> None:
    """Reports the trial's value after ``step``; the last report is its result. Only rank 0's counts.

    Args:
        value: where the space has one objective.
        values: by objective, where it has several.
    """
    file = os.environ.get(REPORTS)
    if not file or _rank() != "0":
        return
    # As text: NaN is not JSON.
    given = {name: repr(float(number)) for name, number in values.items()}
    if value is not None:
        given[""] = repr(float(value))
    line = json.dumps({"step": int(step), "values": given}) + "\n"
    with Path(file).open("a", encoding="utf-8") as stream:  # one append is one write
        stream.write(line)
