"""A machine validated for real: measured in the image, judged, kept, saved as references, compared."""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path
from typing import Any

import pytest
from tests.support.json_schema import mistakes
from tests.system import hosts

from fairlead.perf import stats


def run(*words: str | Path, limit_s: float = 400) -> Any:
    # The tests of a busy machine are of verdicts, not of its speed.
    done = hosts.fairlead("validate", "--despite-load", *words, limit_s=limit_s)
    assert done.returncode in (0, 125), done.stdout[-2000:] + done.stderr[-2000:]
    return done


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where validations and references of these tests are kept."""
    folder = tmp_path_factory.mktemp("state")
    (folder / "sites").mkdir()
    return folder


@pytest.fixture(scope="module")
def quick(state: Path) -> dict[str, Any]:
    """A quick validation without a model, whose references are saved."""
    image = hosts.image("tensorflow")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(state))
        patch.setenv("FAIRLEAD_SITES_EXTRA", str(state / "sites"))
        words = ("--quick", "--models", "none", "--ranks", "1,2", "--image", image)
        done = run(*words, "--save-reference", "--save-slow", "-o", state / "first", "--json")
    found: dict[str, Any] = json.loads(done.stdout)
    found["code"] = done.returncode
    return found


def test_every_kind_of_line_is_measured_and_judged(quick: dict[str, Any]) -> None:
    kinds = {m["what"] for m in quick["measurements"]}
    assert kinds == {"start", "checkpoint", "pingpong", "allreduce", "broadcast"}
    phases = {m["subject"] for m in quick["measurements"] if m["what"] == "start"}
    assert phases == {"launcher and engine", "interpreter", "MPI_Init"}
    assert [v["state"] for v in quick["verdicts"]].count("wrong") == 0
    assert len({v["key"] for v in quick["verdicts"]}) == len(quick["measurements"])
    assert all(m["wrong"] == 0 and m["samples"] for m in quick["measurements"])
    slow = [v for v in quick["verdicts"] if v["state"] == "slow"]
    firm = any(v["expected"]["basis"] != "bound" for v in slow)
    decided = sum(v["state"] != "cannot tell" for v in quick["verdicts"])
    below = firm or (slow and 2 * decided >= len(quick["verdicts"]))
    assert quick["code"] == (125 if below else 0)


def test_quick_validation_has_the_repeats_that_a_comparison_needs(quick: dict[str, Any]) -> None:
    fewest = min(len(m["samples"]) for m in quick["measurements"])
    assert stats.smallest_p(fewest, fewest) * len(quick["measurements"]) < stats.ALPHA
    assert quick["evidence"]["despite_load"] and quick["evidence"]["load"] is not None


def test_the_swap_is_proved_and_bounds_are_measured(quick: dict[str, Any]) -> None:
    assert [rank["as_planned"] for rank in quick["proof"]["ranks"]] == [True, True]
    assert quick["evidence"]["mpis"]["container"] == quick["evidence"]["planned_mpi"]
    assert quick["bounds"]["memory"]["value"] > 1e8 and quick["bounds"]["disk"]["value"] > 1e5


def test_the_report_is_whole_and_the_document_follows_its_schema(
    quick: dict[str, Any], state: Path
) -> None:
    document = json.loads((state / "first/validation.json").read_text())
    schema = json.loads((hosts.ROOT / "docs/reference/validation.schema.json").read_text())
    assert mistakes(schema, document) == []
    page = (state / "first/validation.html").read_text()
    assert len(page) < 1_000_000 and quick["id"].partition("-")[2] in page
    with (state / "first/validation.csv").open() as stream:
        assert len(list(csv.reader(stream))) == len(quick["measurements"]) + 1


@pytest.mark.full
def test_references_that_were_saved_judge_the_next_run(
    quick: dict[str, Any], state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(state))
    monkeypatch.setenv("FAIRLEAD_SITES_EXTRA", str(state / "sites"))
    (saved,) = (state / "sites").glob("*.references.json")
    known = {row["key"]: row for row in json.loads(saved.read_text())["values"]}
    # A machine that was ten times faster when the references were taken.
    for row in known.values():
        factor = 10.0 if row["unit"] != "s" else 0.1
        row["median"], row["low"], row["high"] = (
            factor * row[name] for name in ("median", "low", "high")
        )
    document = json.loads(saved.read_text())
    document["values"] = list(known.values())
    saved.write_text(json.dumps(document))
    again = hosts.fairlead("report", "last", "--json")
    assert again.returncode == 0, again.stderr
    words = ("--quick", "--models", "none", "--ranks", "2", "--image", hosts.image("tensorflow"))
    done = run(*words, "-o", state / "second", "--json")
    assert done.returncode == 125, done.stderr[-2000:]
    verdicts = json.loads(done.stdout)["verdicts"]
    held = [v for v in verdicts if v["expected"] and v["expected"]["basis"] == "reference"]
    assert sum(v["state"] == "slow" for v in held) > len(held) / 2
    output = hosts.fairlead("report", "--compare", "last~1", "last")
    assert output.returncode == 0 and "allreduce" in output.stdout
    assert "too few repeats" not in output.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--ranks", "1,x"), "not a list of counts"),
        (("--models", "hepcn"), "hepcnn"),
        (("--native", "/bin/true"), "cannot run the native measurements"),
    ],
)
def test_careless_words_are_refused_before_anything_is_launched(
    words: tuple[str, ...], said: str, tmp_path: Path
) -> None:
    image = hosts.image("mpi-base")
    done = hosts.fairlead("validate", *words, "--image", image, "-o", tmp_path / "out")
    assert done.returncode == 2 and said in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.full
def test_models_are_trained_natively_and_in_the_container(tmp_path: Path) -> None:
    """Ranks that share cores in the container alone: they cannot tell what it costs."""
    python, many = hosts.native_python(), len(os.sched_getaffinity(0)) + 1
    words = ("--quick", "--ranks", f"1,{many - 1},{many}", "--image", hosts.image("tensorflow"))
    done = run(*words, "--native", python, "-o", tmp_path / "out", "--json", limit_s=900)
    found = json.loads(done.stdout)
    trained = [m for m in found["measurements"] if m["what"] == "train"]
    both = {(way, n) for way in ("native", "container") for n in (1, many - 1)}
    assert {(m["way"], m["ranks"]) for m in trained} == both | {("container", many)}
    for m in trained:
        assert m["crowded"] is (m["ranks"] == many)
        assert len(m["samples"]) == 6 if m["crowded"] else 8 <= len(m["samples"]) <= 15, m
    assert len(found["steps"]) == many - 1 and found["steps_of"]
    assert all(min(rank["forward_s"]) > 0 for rank in found["steps"])
