"""A trial's values: what its script has reported, printed or written."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fairlead.base import bounded_json
from fairlead.tune.space import Objective

REPORTS, OUTPUT = "reports.jsonl", "output.log"
# What scripts for Cray's crayai print.
_USUAL = re.compile(r"^\s*FoM:\s*(\S+)", re.MULTILINE)
_MOST_BYTES = 64 << 20  # of an output that is searched


@dataclass
class Reports:
    """Reads what a trial has reported since the last look.

    Attributes:
        last: the newest values, by objective.
    """

    path: Path
    last: dict[str, float] = field(default_factory=dict)
    _at: int = 0

    def read(self) -> list[tuple[int, dict[str, float]]]:
        """New reports: step and values; damaged lines are left out."""
        try:
            with self.path.open("rb") as stream:
                stream.seek(self._at)
                text = stream.read(_MOST_BYTES)
        except OSError:
            return []
        whole = text[: text.rfind(b"\n") + 1]
        self._at += len(whole)
        reports = []
        for line in whole.splitlines():
            try:
                entry = bounded_json.loads(line)
                step, values = int(entry["step"]), {n: float(v) for n, v in entry["values"].items()}
            except (ValueError, LookupError, TypeError, AttributeError):
                continue
            self.last |= values
            reports.append((step, values))
        return reports


def values_of(
    folder: Path, objectives: Mapping[str, Objective], last: Mapping[str, float]
) -> dict[str, float | None]:
    """The value of each objective of a trial that has ended; None for one that never came.

    Args:
        folder: of the trial.
        last: what was reported last.
    """
    return {
        name: _value(folder, name, wanted, last, len(objectives) == 1)
        for name, wanted in objectives.items()
    }


def _value(
    folder: Path, name: str, wanted: Objective, last: Mapping[str, float], only: bool
) -> float | None:
    if wanted.written:
        return _written(folder / wanted.written, wanted.key)
    if wanted.printed:
        return _printed(folder / OUTPUT, re.compile(wanted.printed, re.MULTILINE))
    if name in last:
        return last[name]
    if only:
        return last[""] if "" in last else _printed(folder / OUTPUT, _USUAL)
    return None


def _printed(path: Path, pattern: re.Pattern[str]) -> float | None:
    try:
        with path.open("rb") as stream:
            size = path.stat().st_size
            stream.seek(max(size - _MOST_BYTES, 0))
            text = stream.read().decode(errors="replace")
    except OSError:
        return None
    last = None
    for match in pattern.finditer(text):
        last = match
    return None if last is None else _number(last[1])


def _written(path: Path, key: str | None) -> float | None:
    try:
        value: Any = bounded_json.loads(path.read_bytes().replace(b"NaN", b'"nan"'))
        for part in key.split(".") if key else ():
            value = value[part]
    except (OSError, ValueError, LookupError, TypeError):
        return None
    return _number(value)


def _number(value: object) -> float | None:
    try:
        return float(str(value))
    except ValueError:
        return None
