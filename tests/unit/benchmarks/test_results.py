"""What is kept of the benchmarks is whole, agrees with its own samples, and is what the documents say."""

from __future__ import annotations

import json
import os
import re
import subprocess
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest
from benchmarks import bars, discover, result, tables
from benchmarks.bars import comm_scaling as scaling
from benchmarks.bars import step_efficiency as steps
from benchmarks.peers import nets

from fairlead.perf.projection.cost_model import Costs, Layout, allreduce_s

ALL = discover()
IN_DOCUMENT = {name for name, one in ALL.items() if one.table}
#: Outcomes of tests, which have forms of their own.
COUNTS = {"test-full", "corpus"}
KEPT = sorted(
    p
    for p in result.RESULTS.glob("*.json")
    if p.stem not in COUNTS and not p.stem.startswith("horovod-")
)
ROOT = Path(__file__).parents[3]


def read(path: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(path.read_text())
    return document


@pytest.mark.parametrize("path", KEPT, ids=[p.stem for p in KEPT])
def test_a_kept_result_agrees_with_its_samples(path: Path) -> None:
    kept = read(path)
    assert (kept["schema"], kept["version"]) == (result.SCHEMA, result.SCHEMA_VERSION)
    assert kept["name"] == path.stem and path.stem in ALL
    judged = kept["met"] is not None
    assert kept["rows"] and (not judged or kept["met"] == all(row["met"] for row in kept["rows"]))
    for row in kept["rows"]:
        again = result.compare(
            row["name"], row["samples"], row["baseline"], row["bar"], kind=row["kind"], unit=row["unit"]
        )  # fmt: skip
        assert (again.value, again.low, again.high) == pytest.approx(
            (row["value"], row["low"], row["high"])
        )
        assert row["met"] == (again.met if judged or row["bar"] is None else None)


@pytest.mark.parametrize("name", [p.stem for p in KEPT if p.stem in IN_DOCUMENT])
def test_a_result_of_the_document_has_its_picture(name: str) -> None:
    picture = result.RESULTS / f"{name}.svg"
    assert picture.is_file() and picture.stat().st_size < 200_000
    assert f"results/{name}.svg" in tables.DOC.read_text()


def test_the_documents_figures_are_those_that_are_kept() -> None:
    text = tables.DOC.read_text()
    assert set(re.findall(r"<!-- figures ([a-z-]+) -->", text)) == IN_DOCUMENT
    assert tables.render(text) == text, "python -m benchmarks.tables"


def test_make_runs_benchmarks_that_there_are() -> None:
    (names,) = re.findall(r"^BENCH_COMM := (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert set(names.split()) <= set(ALL)


def test_an_efficiency_of_99_is_the_bar_of_hep_and_cosmo() -> None:
    # A step without communication, and one with it next to it, on a machine that grows slower.
    samples = {(m, "sync"): [(slow, 1.02 * slow) for slow in range(1, 10)] for m in steps.TITLES}
    rows = {row.name: row for row in steps.rows_of(samples)}
    assert {name: row.met for name, row in rows.items()} == {
        "HEP-CNN: fairlead": False, "CosmoFlow: fairlead": False, "ResNet-50: fairlead": True,
    }  # fmt: skip
    assert rows["HEP-CNN: fairlead"].bar == pytest.approx(1 / 0.99)


def test_what_is_held_out_is_not_fitted() -> None:
    """Whole configurations: the ranks, the size and the rate that the model must foretell."""
    costs = Costs(1e-6, 1e-9, 1e-5, 1.0)
    runs = [
        scaling.Run(layout, size, (allreduce_s(costs, layout, size),) * 3)
        for layout in (Layout(1, 4, 2), Layout(1, 8, 2), Layout(2, 1, 1, scaling.HELD_RATE / 8))
        for size in (4096, scaling.HELD_SIZE)
    ]
    assert [run.held for run in runs] == [False, True, True, True, True, True]
    rows = {row.name: row for row in scaling.judged(costs, runs)}
    assert rows["held out: 8 ranks, 4096 B: measured over the model"].value == pytest.approx(1)
    assert rows["the model's error on 5 held-out runs, median"].value == pytest.approx(0, abs=1e-9)


def test_networks_have_the_published_numbers_of_weights() -> None:
    assert {key: task.weights for key, task in nets.TASKS.items()} == {
        "hep": 594_178, "cosmo": 3_283_060, "resnet": 25_551_401,
    }  # fmt: skip


@pytest.mark.parametrize("name", [name for name, one in ALL.items() if one.picture])
def test_a_kept_picture_is_drawn_from_the_kept_result_alone(name: str) -> None:
    benchmark, path = ALL[name], result.RESULTS / f"{name}.svg"
    assert benchmark.picture is not None
    assert benchmark.picture(result.kept(name)) == path.read_text(), "python -m benchmarks.pictures"
    ElementTree.fromstring(path.read_text())


def test_a_benchmark_is_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "made_up.py").write_text(
        "from benchmarks.result import Benchmark, Result\n"
        "BENCHMARKS = (Benchmark('made-up', 85, lambda: Result('made-up', '', '', ())),)\n"
    )
    monkeypatch.setattr(bars, "__path__", [*bars.__path__, str(tmp_path)])
    names = list(discover())
    assert names.index("made-up") == names.index("comm-node-intel") + 1


@pytest.mark.parametrize(
    ("before", "after", "timed", "met"),
    [
        (0.0, 0.1, True, True),
        (0.3, 0.0, True, None),
        (0.0, 0.2, True, None),
        (0.3, 0.2, False, True),
    ],
)
def test_no_bar_of_a_time_is_judged_on_a_loaded_machine(
    before: float,
    after: float,
    timed: bool,
    met: bool | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(result, "RESULTS", tmp_path)
    rows = (result.compare("fast", [1.0], [1.0], 1.05), result.compare("shown", [1.0], [1.0], None))
    path = result.keep(
        result.Result("made", "a", "b", rows, timed=timed),
        {"busy_before": before, "busy_after": after},
    )
    kept = json.loads(path.read_text())
    assert [row["met"] for row in kept["rows"]] == [met, True]
    assert kept["met"] is met


def test_use_of_the_processors_is_noticed() -> None:
    burning = [
        subprocess.Popen(["sh", "-c", "while :; do :; done"]) for _ in range(os.cpu_count() or 1)
    ]
    try:
        assert result.busy(0.5) > result.MOST_BUSY
    finally:
        for process in burning:
            process.kill()
            process.wait()
