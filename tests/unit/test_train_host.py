"""The outside of a training: what is launched, what is told of it, what is made of the result."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fairlead.findings import FairleadError
from fairlead.progress import Silent
from fairlead.serial import from_json, to_json
from fairlead.train import host
from fairlead.train.events import EventLog, Tail
from fairlead.train.host import RunOutcome, TrainOptions
from fairlead.train.model import WorkerConfig

RUNTIME = Path(host.__file__).parents[2]


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
