"""Training from outside: what is launched, reported, and made of the result."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fairlead.base.errors import FairleadError, Severity
from fairlead.base.progress import Silent
from fairlead.base.serde import from_json, to_json
from fairlead.ml import registry
from fairlead.ml.data import baseline
from fairlead.ml.data.generate import DataSet, generate
from fairlead.ml.train import host
from fairlead.ml.train.events import EventLog, Tail
from fairlead.ml.train.model import (
    Evaluation,
    LossPoint,
    Marks,
    RankWeights,
    StepTimes,
    TrainOptions,
    WorkerConfig,
    WorkerResult,
    step_times,
)
from fairlead.ml.train.result import Baseline, TrainResult, judge
from fairlead.ml.train.runner import RunOutcome

RUNTIME = Path(host.__file__).parents[3]


def native(tmp_path, **environ):
    """A runner that executes commands right here, on 1 rank, by this Python."""

    def run(ranks, command, binds):
        assert all(path.is_dir() for path in binds)
        done = subprocess.run(
            [sys.executable, *command[1:]],
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": str(RUNTIME), **environ},
        )
        return RunOutcome(done.returncode, done.stdout + done.stderr)

    return run


@pytest.fixture
def options(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return TrainOptions(tmp_path / "run", ranks=2, train_samples=40, val_samples=20, processes=1)


def test_train_worker_fails_the_ranks_own_words_arrive(tmp_path, options):
    broken = tmp_path / "modules"
    broken.mkdir()
    (broken / "tensorflow.py").write_text("raise ImportError('no TensorFlow in this image')")
    runner = native(tmp_path, PYTHONPATH=f"{broken}:{RUNTIME}")
    with pytest.raises(FairleadError) as caught:
        host.train(runner, options, Silent())
    finding = caught.value.findings[0]
    assert finding.what == "rank 0 failed: ImportError"
    assert finding.why == "no TensorFlow in this image"
    assert finding.remedy
    # the data were made before, and stay for the next attempt
    assert len(list((tmp_path / "cache").rglob("hep_train_*.h5"))) == 1


def test_train_launch_fails_without_a_word_its_output_is_the_reason(options):
    def runner(ranks, command, binds):
        return RunOutcome(123, "line one\nno such engine\n")

    with pytest.raises(FairleadError) as caught:
        host.train(runner, options, Silent())
    assert "exit code 123" in caught.value.findings[0].what
    assert "no such engine" in caught.value.findings[0].why


def test_train_ranks_leave_no_result_is_an_error(options, tmp_path):
    with pytest.raises(FairleadError, match="left no result"):
        host.train(lambda ranks, command, binds: RunOutcome(0, ""), options, Silent())


@pytest.mark.parametrize(
    "change",
    [
        {"train_samples": 41},
        {"val_samples": 21},
        {"seed": 2},
        {"model": "cosmoflow"},
        {"data_format": "tfrecord"},
    ],
)
def test_data_key_differs_with_what_the_events_depend_on(options, change, tmp_path):
    base = {"run_dir": tmp_path, "train_samples": 40, "val_samples": 20}
    assert host.data_key(TrainOptions(**base)) == host.data_key(TrainOptions(**base, batch=8))
    assert host.data_key(TrainOptions(**base)) != host.data_key(TrainOptions(**{**base, **change}))


def test_worker_config_survives_json(tmp_path):
    config = WorkerConfig(tmp_path, tmp_path / "r.json", events=tmp_path / "e.jsonl", max_steps=3)
    assert from_json(WorkerConfig, json.loads(json.dumps(to_json(config)))) == config


def test_tail_reads_each_whole_line_once(tmp_path):
    path = tmp_path / "events.jsonl"
    tail = Tail(path)
    assert list(tail.read()) == []
    log = EventLog(path)
    log.write("step", loss=0.5)
    with path.open("a") as stream:
        stream.write('{"event": "st')
    assert list(tail.read()) == [{"event": "step", "loss": 0.5}]
    with path.open("a") as stream:
        stream.write('ep"}\n')
    assert list(tail.read()) == [{"event": "step"}]
    assert list(tail.read()) == []


def test_event_log_without_a_file_prints_plain_lines(capsys):
    EventLog(None).write("step", step=3, loss=0.123456)
    assert capsys.readouterr().out == "step step=3 loss=0.1235\n"


# --- what is made of a result -----------------------------------------------------------------


def result_of(model="cosmoflow", scores=(0.5, 0.9, 0.8), linear=(1.0, 0.6, 1.0), **more):
    names = ("turnover", "strength", "tilt")
    same = "f" * 64
    every = WorkerResult(
        model=model, backend="tensorflow", precision="float32", ranks=2, batch=8, threads=1, parameters=9,
        train_samples=90, seed=1, mpi="MPICH", versions={}, speed=None,
        loss=(LossPoint(0, 0, 1.0, 0.7),), weights=(RankWeights(0, "n", same, same, same),),
        train_seconds=1.0, epochs_done=1.0,
        evaluation=Evaluation(20, dict(zip(names, scores, strict=False)), 0.1, (), 1.0), **more,
    )  # fmt: skip
    baseline = Baseline(dict(zip(names, linear, strict=False)), 40, 20, 0.1)
    return TrainResult(None, every, baseline, Path("data"))


@pytest.mark.parametrize(
    ("scores", "checks"),
    [
        ((0.5, 9.0, 0.8), []),
        ((0.7, 0.1, 0.95), ["train-below-gate", "train-below-gate"]),
        ((1.0, 0.1, 0.8), ["train-not-learnt"]),
        ((math.nan, 0.1, math.nan), ["train-not-learnt", "train-not-learnt"]),
        ((0.5, 9.0), []),  # data of two parameters: the third has no gate
    ],
)
def test_judge_of_scores_names_each_gate(scores, checks):
    assert [finding.check for finding in judge(result_of(scores=scores))] == checks


def test_judge_reports_files_and_checkpoints_that_were_passed_over():
    result = result_of(
        damaged=("/d/a.h5", "/d/b.h5"), unreadable=("/c/step-9.npz is damaged",), resumed_from=5
    )
    files, checkpoints = judge(result)
    assert (files.check, checkpoints.check) == ("train-skipped", "checkpoint-damaged")
    assert files.what.startswith("2 unreadable files") and files.where == "/d/a.h5"
    assert "step-9.npz" in checkpoints.where and "after step 5" in checkpoints.why
    assert not any(f.severity is Severity.ERROR for f in (files, checkpoints))


@pytest.mark.parametrize(
    ("more", "each"),
    [
        ({}, 16),
        ({"published": True}, 2),
        ({"published": True, "ranks": 16}, 1),
        ({"published": True, "batch": 5}, 5),
        ({"model": "cosmoflow-sc18", "published": True}, 1),
    ],
)
def test_options_give_the_batch_of_a_rank(tmp_path, more, each):
    assert TrainOptions(tmp_path, **{"ranks": 4, **more}).each == each


def test_baseline_is_fitted_without_the_files_that_were_left_out(tmp_path):
    generate(DataSet(30, 20, per_shard=10, size=16, kind="cosmo"), tmp_path, 1, EventLog(None))
    whole, cut = sorted(tmp_path.glob("*train*"))[1:], sorted(tmp_path.glob("*train*"))[0]
    cut.write_bytes(cut.read_bytes()[:1000])
    task = registry.find("cosmoflow")
    with pytest.raises(FairleadError, match="not a whole"):
        baseline.measure(tmp_path, 30, 20, task)
    found = baseline.measure(tmp_path, 30, 20, task, [cut])
    assert (found["train"], found["val"]) == (20, 20)
    # What only a checksum tells is left out as well: the ranks have read it, and say so.
    content = bytearray(whole[0].read_bytes())
    content[-40] ^= 1
    whole[0].write_bytes(content)
    assert baseline.measure(tmp_path, 30, 20, task, [cut, whole[0]])["train"] == 10


# --- where a step's time goes -------------------------------------------------------------------

MS = 1_000_000


def marks(start, forward=None, wait=5 * MS):
    read, computed, averaged = start + 2 * MS, start + 40 * MS, start + 60 * MS
    return Marks(start, read, forward, computed, computed + wait, averaged, start + 70 * MS)


def test_parts_of_a_step_add_up_to_it_whether_the_forward_pass_is_seen_or_measured_apart():
    given = [marks(0), marks(80 * MS, forward=95 * MS), marks(160 * MS, wait=0)]
    steps = step_times(given, 1, "node", forward_s=0.012)
    assert steps.whole_s == pytest.approx([0.07] * 3)
    assert steps.forward_s == (0.012, 0.013, 0.012)
    assert steps.backward_s == pytest.approx((0.026, 0.025, 0.026))
    assert steps.exposed_s == (0.015, 0.015, 0.02) and steps.idle_s == (0.005, 0.005, 0.0)
    assert steps.busy_s == pytest.approx((0.05,) * 3)
    assert list(steps.parts) == sorted(steps.parts, key=ORDER.index)
    assert len(steps.after(2).input_s) == 1 and steps.after(2).whole_s == pytest.approx((0.07,))


ORDER = ["input", "forward", "backward", "exposed communication", "update", "idle"]


def test_forward_pass_that_was_measured_longer_than_both_leaves_no_negative_backward():
    (step,) = step_times([marks(0)], 0, "node", forward_s=9.0).backward_s
    assert step == 0.0


def test_borders_of_a_step_have_a_name_for_each_part():
    for mark in (marks(0), marks(0, forward=9 * MS)):
        assert len(mark.borders) == len(mark.parts) + 1
        assert list(mark.borders) == sorted(mark.borders)


def test_step_times_of_different_lengths_are_refused():
    with pytest.raises(ValueError, match="not of the same number"):
        StepTimes(0, "node", (1.0,), (1.0,), (1.0,), (1.0,), (1.0,), ())
