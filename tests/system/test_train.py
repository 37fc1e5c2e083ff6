"""The main job in the real image: HEP-CNN trained on two ranks over the swapped MPI, and reported."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests import traces
from tests.system import hosts

from fairlead.base.serde import from_json
from fairlead.ml.train.model import WorkerResult
from fairlead_build.build import build

FAIRLEAD = str(Path(sys.executable).with_name("fairlead"))


def train(folder: Path, events: int) -> Path:
    """A training from the command line; the demo has 6,000 events."""
    build("tensorflow")
    words = [
        *(FAIRLEAD, "train", "hepcnn", "-n", "2", "--train-events", str(events), "--max-seconds", "60"),
        *("-o", str(folder), "--timeline", str(folder / "run.json.gz")),
    ]  # fmt: skip
    done = subprocess.run(words, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert str(folder / "report.html") in done.stdout
    return folder


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tmp_path_factory.mktemp("a report"), 400)


@pytest.fixture(scope="module")
def report(trained: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((trained / "report.json").read_text())
    return found


@pytest.mark.full
def test_training_in_the_image_learns_what_a_linear_model_cannot(tmp_path: Path) -> None:
    training = json.loads((train(tmp_path, 2000) / "report.json").read_text())["training"]
    assert training["all"]["parameters"] == 4_494_594
    assert training["all"]["evaluation"]["samples"] >= 2000
    assert training["scores"]["auc"] > 0.8 > 0.6 > training["baseline"]["scores"]["auc"]
    first, *_, last = training["all"]["loss"]
    assert last["loss"] < first["loss"]


def test_trace_of_the_training_has_its_steps_as_in_the_report(
    trained: Path, report: dict[str, Any]
) -> None:
    events = traces.read(trained / "run.json.gz")
    for which, title in (("all", "train HEP-CNN on 2 ranks"), ("one", "measure speed on 1 rank")):
        result = from_json(WorkerResult, report["training"][which])
        traces.agrees(events, result.steps, f", {title}")
        (launch,) = traces.of(events, row="launches", name=title)
        assert launch["args"] == {"ranks": result.ranks}
        of_rank = [e for e in events if e["rank"].endswith(f", {title}")]
        for name in ("read", "decode", "make a batch"):
            assert len(traces.of(of_rank, row="input pipeline", name=name)) >= result.ranks
    assert {"plan", "generate events", "write the report"} <= {
        e["name"] for e in traces.of(events, row="stages")
    }
    for name in (
        "launcher and engine",
        "until every rank is proved",
        "until the first step is over",
    ):
        assert len(traces.of(events, row="launches", name=name)) == 2
    page = (trained / "report.html").read_text()
    for part in result.steps[0].parts:
        assert f'title="{part}: ' in page or part == "idle"


def test_training_on_two_ranks_ends_with_the_same_bits(report: dict[str, Any]) -> None:
    weights = report["training"]["all"]["weights"]
    assert [w["rank"] for w in weights] == [0, 1]
    assert len({w["initial"] for w in weights}) == 2, "the broadcast would show nothing"
    assert len({w["broadcast"] for w in weights}) == 1
    assert len({w["final"] for w in weights}) == 1
    assert weights[0]["final"] != weights[0]["broadcast"]


def test_training_runs_on_the_hosts_mpi_and_measures_both_scales(report: dict[str, Any]) -> None:
    training = report["training"]
    assert "MPICH Version: 5.0.2" in re.sub(r"\s+", " ", training["all"]["mpi"])
    assert [row["planned_ok"] for row in report["proof"]] == [True, True]
    assert training["one"]["ranks"] == 1
    assert training["all"]["ranks"] == 2
    one, both = (training[k]["speed"]["samples_per_s"] for k in ("one", "all"))
    assert training["efficiency"] == pytest.approx(both / (2 * one))


def test_report_page_needs_nothing_else(trained: Path) -> None:
    page = (trained / "report.html").read_text()
    assert len(page) < 1_000_000
    assert not re.search(r"""(?:src|href)=["']https?:""", page)
    assert page.count("<svg") >= 3


def test_training_in_an_image_without_tensorflow_is_refused_at_once(tmp_path: Path) -> None:
    build("mpi-base")
    words = [
        FAIRLEAD,
        "train",
        "hepcnn",
        "--image",
        "mpi-base",
        "-o",
        str(tmp_path / "out"),
        "--json",
    ]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    (finding,) = json.loads(done.stdout)["findings"]
    assert finding["check"] == "train-image"
    assert "tensorflow" in finding["what"]
    assert not (tmp_path / "out").exists()


@pytest.mark.full
def test_demo_passes_its_gate_and_again_from_its_cache(tmp_path: Path) -> None:
    environ = {**os.environ, "NO_COLOR": "1", "PYTHONPATH": str(hosts.ROOT)}
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-m", "tools.demo"],
            cwd=tmp_path,
            env=environ,
            capture_output=True,
            text=True,
            timeout=900,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
    assert (
        json.loads((tmp_path / "fairlead-report/report.json").read_text())["training"]["scores"][
            "auc"
        ]
        >= 0.9
    )
    assert "unchanged: tensorflow" in done.stderr
