"""A trial's value: reported, printed or written."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from fairlead import tune
from fairlead.prove import RANK_VARIABLES
from fairlead.tune import reporting
from fairlead.tune.figures import OUTPUT, REPORTS, Reports, values_of
from fairlead.tune.space import Objective


def test_reports_come_as_they_are_made_and_damaged_lines_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in RANK_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    path = tmp_path / REPORTS
    monkeypatch.setenv(reporting.REPORTS, str(path))
    reports = Reports(path)
    assert reports.read() == []
    tune.report(1, 0.5)
    assert reports.read() == [(1, {"": 0.5})]
    tune.report(2, loss=float("nan"), seconds=3)
    with path.open("ab") as stream:
        stream.write(b'{"step": 3}\nnothing\n{"step": 4, "values": {"": "1"}}\n{"step": 5, "val')
    (step, values), last = reports.read()
    assert step == 2 and math.isnan(values["loss"]) and values["seconds"] == 3
    assert last == (4, {"": 1.0})
    assert reports.read() == []


def test_report_of_another_rank_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(reporting.REPORTS, str(tmp_path / REPORTS))
    monkeypatch.setenv("PMI_RANK", "1")
    tune.report(1, 0.5)
    assert not (tmp_path / REPORTS).exists()


def test_what_ranks_load_is_of_the_standard_library() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import sys; from fairlead import tune; print(*sys.modules)"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    loaded = set(done.stdout.split())
    assert "fairlead.tune.reporting" in loaded
    assert not {"numpy", "pydantic", "optuna", "click", "fairlead.base.errors"} & loaded


def _values(folder: Path, last: dict[str, float] | None = None, **wanted: str) -> float | None:
    return values_of(folder, {"loss": Objective.model_validate(wanted)}, last or {})["loss"]


def test_value_is_that_of_the_last_line_that_matches(tmp_path: Path) -> None:
    (tmp_path / OUTPUT).write_text("loss: 3\nFoM: 7\n  FoM: 0.25 \nloss: 1e-3,\nlost: 9\n")
    assert _values(tmp_path, printed=r"loss: ([\d.e-]+)") == 1e-3
    assert _values(tmp_path) == 0.25
    assert _values(tmp_path, {"": 4.0}) == 4.0
    assert _values(tmp_path, {"loss": 5.0, "": 4.0}) == 5.0
    assert _values(tmp_path, printed="absent (.)") is None
    assert _values(tmp_path, printed="(loss)") is None


def test_value_is_in_a_file_that_the_script_writes(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    assert _values(tmp_path, written="result.json") is None
    path.write_text(json.dumps({"scores": {"auc": 0.9}, "epochs": [3, 4]}))
    assert _values(tmp_path, written="result.json", key="scores.auc") == 0.9
    assert _values(tmp_path, written="result.json", key="scores.none") is None
    path.write_text("0.5")
    assert _values(tmp_path, written="result.json") == 0.5
    path.write_text('{"auc": NaN}')
    found = _values(tmp_path, written="result.json", key="auc")
    assert found is not None and math.isnan(found)
    path.write_text('{"auc": ')
    assert _values(tmp_path, written="result.json", key="auc") is None


def test_several_objectives_are_each_reported_by_name(tmp_path: Path) -> None:
    (tmp_path / OUTPUT).write_text("FoM: 1\n")
    wanted = {"loss": Objective(), "seconds": Objective()}
    assert values_of(tmp_path, wanted, {"loss": 1.0, "": 3.0}) == {"loss": 1.0, "seconds": None}
