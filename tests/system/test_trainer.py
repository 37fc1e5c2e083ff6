"""The trainer in the images: ranks that agree, a kill and what goes on after it, damaged files, gates.

Ranks are started by ``fairlead run`` with a configuration each, as ``fairlead train`` does it, on small sets of their
own; ``fairlead train`` itself where its words are what is tested.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.system import hosts

from fairlead.base.serde import from_json, to_json
from fairlead.ml.data.files import write_shard
from fairlead.ml.data.generate import DataSet, generate
from fairlead.ml.data.samples import Samples
from fairlead.ml.data.shards import Rows, read
from fairlead.ml.train import checkpoint
from fairlead.ml.train.events import EventLog, Tail
from fairlead.ml.train.model import WorkerConfig, WorkerResult

SETS = {"hepcnn": "hep", "cosmoflow": "cosmo", "resnet50": "gratings"}
LIMIT_S = 300.0


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """By model: a few samples, in eight files for training."""
    made = {}
    for model, kind in SETS.items():
        made[model] = tmp_path_factory.mktemp(kind)
        few = DataSet(320, 24, per_shard=40, kind=kind, format="tfrecord")
        generate(few, made[model], 2, EventLog(None))
    return made


def settings(folder: Path, name: str, data: Path, **more: Any) -> WorkerConfig:
    """A short training of CosmoFlow: 40 steps on 2 ranks."""
    given = WorkerConfig(
        data, folder / f"{name}.result.json", model="cosmoflow", events=folder / f"{name}.jsonl",
        batch=4, epochs=1, max_seconds=LIMIT_S, checkpoints=folder / name, every_steps=5,
    )  # fmt: skip
    return replace(given, **more)


def started(config: WorkerConfig, ranks: int = 2, torch: bool = False) -> subprocess.Popen[str]:
    """The ranks of a training, in an image."""
    path = config.result.with_suffix(".config.json")
    path.write_text(json.dumps(to_json(config)))
    image = hosts.image("pytorch" if torch else "tensorflow")
    options = hosts.keras_on_torch() if torch else ()
    command = [
        sys.executable, "-m", "fairlead", "run", "-q", "-n", ranks, *options, "-B", config.data, "-B", path.parent,
        image, "--", "python3", "-m", "fairlead.ml.train.worker", "--config", path,
    ]  # fmt: skip
    return subprocess.Popen(
        list(map(str, command)), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL, text=True,
    )  # fmt: skip


def trained(config: WorkerConfig, ranks: int = 2, torch: bool = False) -> WorkerResult:
    process = started(config, ranks, torch)
    _, said = process.communicate(timeout=2 * LIMIT_S)
    assert process.returncode == 0, said[-3000:]
    return from_json(WorkerResult, json.loads(config.result.read_text()))


def killed(config: WorkerConfig, after: int, torch: bool = False) -> None:
    """Starts a training and kills its ranks, as a node that is lost, once ``after`` steps are over."""
    process, tail = started(config, torch=torch), Tail(config.events or Path())
    deadline, step = time.monotonic() + LIMIT_S, 0
    while step < after:
        assert process.poll() is None and time.monotonic() < deadline, "it ended by itself"
        step = max([step, *(e["step"] for e in tail.read() if e["event"] == "step")])
        time.sleep(0.01)
    ranks = list(processes_of(config))
    assert len(ranks) == 2
    for rank in ranks:
        os.kill(rank, signal.SIGKILL)
    process.communicate(timeout=60)
    assert process.returncode != 0 and not config.result.exists()


def processes_of(config: WorkerConfig) -> list[int]:
    """The processes that are ranks of this training."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = entry.read_bytes().decode(errors="replace").split("\0")
        except OSError:  # it has ended meanwhile
            continue
        if (
            words[1:3] == ["-m", "fairlead.ml.train.worker"]
            and str(config.result.parent) in words[4]
        ):
            found.append(int(entry.parent.name))
    return found


def digests(result: WorkerResult) -> set[str]:
    return {weights.final for weights in result.weights}


# --- a kill, and what goes on after it --------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "torch"),
    [
        ("hepcnn", False),
        pytest.param("cosmoflow", False, marks=pytest.mark.full),
        pytest.param("resnet50", False, marks=pytest.mark.full),
        pytest.param("cosmoflow", True, marks=pytest.mark.full),
        pytest.param("resnet50", True, marks=pytest.mark.full),
    ],
)
def test_training_that_was_killed_ends_with_the_bits_of_one_that_was_not(
    model: str, torch: bool, data: dict[str, Path], tmp_path: Path
) -> None:
    # Dropout, BatchNorm and augmentation, whose state must come back as well; in the second of two epochs.
    more: dict[str, Any] = {"model": model, "backend": "torch" if torch else "tensorflow"}
    steps = 8 if model == "resnet50" else 24
    more |= {"dropout": 0.25, "batch": 40 if model == "resnet50" else 10, "epochs": 2}
    more |= {"max_steps": steps, "every_steps": steps // 4}
    whole = trained(settings(tmp_path, "whole", data[model], **more), torch=torch)
    config = settings(tmp_path, "cut", data[model], **more)
    killed(config, after=steps * 3 // 4, torch=torch)
    assert checkpoint.kept(tmp_path / "cut")
    again = trained(replace(config, resume=True), torch=torch)
    assert steps // 4 <= again.resumed_from < steps and not again.unreadable
    assert len(digests(whole)) == 1 and digests(whole) == digests(again)
    assert whole.evaluation is not None and again.evaluation is not None
    assert again.evaluation.scores == whole.evaluation.scores
    assert [p.loss for p in again.loss] == [p.loss for p in whole.loss]
    assert len({w.initial for w in whole.weights}) == 2, "the broadcast would show nothing"


@pytest.mark.full
def test_training_goes_on_from_the_checkpoint_before_a_damaged_one(
    data: dict[str, Path], tmp_path: Path
) -> None:
    config = settings(tmp_path, "cut", data["cosmoflow"], max_steps=12)
    whole = trained(config)
    before, last = checkpoint.kept(tmp_path / "cut")
    last.write_bytes(last.read_bytes()[:-1000])
    again = trained(replace(config, resume=True))
    assert len(again.unreadable) == 1 and str(last) in again.unreadable[0]
    assert again.resumed_from == checkpoint.read(before).step == 10
    assert digests(again) == digests(whole)
    assert checkpoint.read(last).step == 12  # written again


@pytest.mark.full
def test_checkpoint_of_another_training_ends_all_ranks(
    data: dict[str, Path], tmp_path: Path
) -> None:
    config = settings(tmp_path, "first", data["cosmoflow"], max_steps=5)
    trained(config)
    for change, check in (
        ({"seed": 2, "resume": True}, "checkpoint-other"),
        ({}, "checkpoint-there"),
    ):
        process = started(replace(config, **change))
        process.communicate(timeout=120)
        assert process.returncode == 1
        assert config.events is not None
        errors = [e for e in Tail(config.events).read() if e["event"] == "error"]
        assert errors[-1]["check"] == check


@pytest.mark.full
@pytest.mark.parametrize("backend", ["tensorflow", "torch"])
def test_overflow_of_one_rank_is_left_out_by_all(backend: str) -> None:
    torch = backend == "torch"
    options = hosts.keras_on_torch() if torch else ()
    done = hosts.fairlead(
        "run", "-q", "-n", "2", *options, "-B", hosts.PROGRAMS, hosts.image("pytorch" if torch else "tensorflow"),
        "--", "python3", hosts.PROGRAMS / "loss_scale.py", backend, limit_s=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    line = next(line for line in done.stdout.splitlines() if line.startswith("FOUND "))
    for rank, steps in enumerate(json.loads(line.removeprefix("FOUND "))):
        assert [step["made"] for step in steps] == [True, False, True, True]
        assert [step["moved"] for step in steps] == [True, False, True, True]
        assert [step["scale"] for step in steps] == [2.0**15, 2.0**14, 2.0**14, 2.0**14]
        assert all(step["same"] and step["rate"] == 0.125 for step in steps)
        # Rank 1 alone has overflowed; its loss is a number, and so is nobody's mean of the gradients.
        assert steps[1]["finite"] == [rank == 0, False, True]
        assert all(0 < steps[n]["norm"] < 10 for n in (0, 2, 3)), (
            "norms are those without the scale"
        )


# --- shares and files -------------------------------------------------------------------------


@pytest.mark.full
def test_held_out_samples_that_are_fewer_than_ranks_are_scored(tmp_path: Path) -> None:
    generate(DataSet(64, 1, kind="cosmo", format="tfrecord"), tmp_path / "data", 1, EventLog(None))
    found = trained(settings(tmp_path, "few", tmp_path / "data", max_steps=4))
    assert found.evaluation is not None and found.evaluation.samples == 1


def damaged(folder: Path, data: Path) -> Path:
    """A copy of the files, one of which is altered where only its checksum tells."""
    subprocess.run(["cp", "-r", data, folder], check=True)
    path = sorted(folder.glob("*train*"))[3]
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    return path


@pytest.mark.full
def test_damaged_file_is_left_out_and_counted_where_that_was_asked(
    data: dict[str, Path], tmp_path: Path
) -> None:
    path = damaged(tmp_path / "data", data["cosmoflow"])
    config = settings(tmp_path, "skip", path.parent, max_steps=4, skip_damaged=True)
    found = trained(replace(config, checkpoints=None))
    assert found.damaged == (str(path),)
    assert (found.train_samples, found.stopped_by) == (280, "max_steps")
    assert len(digests(found)) == 1 and not found.checkpoints


def test_damaged_file_is_named_and_ends_the_training(data: dict[str, Path], tmp_path: Path) -> None:
    path = damaged(tmp_path / "data", data["cosmoflow"])
    path.write_bytes(path.read_bytes()[:-100])  # as lengths tell, before the first step
    words = ("train", "cosmoflow", "--image", hosts.image("tensorflow"), "--data", path.parent)
    done = hosts.fairlead(*words, "-o", tmp_path / "out", "--json")
    assert done.returncode == 1
    (finding,) = json.loads(done.stdout)["findings"]
    assert finding["check"] == "data-damaged" and finding["where"] == str(path)
    assert finding["what"] == f"{path.name} is not a whole TFRecord file"
    assert str(path) in finding["remedy"]


@pytest.mark.full
def test_training_without_a_damaged_file_is_reported_with_it(
    data: dict[str, Path], tmp_path: Path
) -> None:
    path = damaged(tmp_path / "data", data["cosmoflow"])
    words = ("train", "cosmoflow", "--image", hosts.image("tensorflow"), "--data", path.parent)
    more = ("--skip-damaged", "--epochs", "1", "-o", tmp_path / "out", "--json")
    done = hosts.fairlead(*words, *more, limit_s=LIMIT_S)
    result = json.loads(done.stdout)["result"]
    assert result["all"]["damaged"] == [str(path)] and result["baseline"]["train"] == 280
    assert "train-skipped" in [finding["check"] for finding in result["findings"]]


@pytest.mark.full
def test_mlperf_network_trains_on_four_redshifts_and_four_parameters(tmp_path: Path) -> None:
    few = DataSet(24, 8, 6, size=32, kind="cosmo-mlperf", format="tfrecord-gzip")
    generate(few, tmp_path / "data", 2, EventLog(None))
    config = settings(
        tmp_path, "mlperf", tmp_path / "data", model="cosmoflow-mlperf", batch=2, epochs=2
    )
    found = trained(config)
    assert found.evaluation is not None and found.evaluation.samples == 8
    assert list(found.evaluation.scores) == ["turnover", "strength", "tilt", "growth", "error"]
    assert len(found.loss) == 12 and all(np.isfinite(point.loss) for point in found.loss)
    assert len({row.final for row in found.weights}) == 1


# --- gates ------------------------------------------------------------------------------------


def report(folder: Path, *words: str | Path) -> dict[str, Any]:
    """What `fairlead train` says, as JSON; it may end with 1, for a linear model that was not beaten."""
    done = hosts.fairlead(
        "train", *words, "--max-seconds", "600", "-o", folder, "--json", limit_s=1500
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout)["result"]
    return found


@pytest.mark.full
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("model", list(SETS))
def test_model_passes_its_gates(model: str, ranks: int, tmp_path: Path) -> None:
    found = report(tmp_path, model, "-n", str(ranks))
    assert found["findings"] == [], found["all"]["evaluation"]["scores"]
    assert found["all"]["stopped_by"] == "epochs" and found["all"]["train_seconds"] < 600
    assert len({weights["final"] for weights in found["all"]["weights"]}) == 1


@pytest.mark.full
@pytest.mark.parametrize("kind", ["all zero", "without labels"])
@pytest.mark.parametrize("model", list(SETS))
def test_data_that_teach_nothing_pass_no_gate(model: str, kind: str, tmp_path: Path) -> None:
    """Labels of other samples: held-out scores above chance would be of the trainer's making."""
    made, spoilt = tmp_path / "data", tmp_path / "spoilt"
    generate(DataSet(2000, 1000, kind=SETS[model], format="tfrecord"), made, 2, EventLog(None))
    rng = np.random.default_rng(1)
    for split in ("train", "val"):
        rows = Rows(made, split, 0, 1)
        parts = [read(span) for span in rows.spans]
        order = rng.permutation(rows.total)
        targets = np.concatenate([part.targets for part in parts])
        begin = 0
        for number, part in enumerate(parts):
            here = np.arange(begin, begin + len(part))
            mine, inputs = here, np.zeros_like(part.inputs)
            if kind == "without labels":
                mine, inputs = order[here], part.inputs
            begin += len(part)
            path = spoilt / f"{SETS[model]}_{split}_{number:05d}.tfrecord"
            write_shard(path, Samples(inputs, targets[mine]), "spoilt", SETS[model])
    found = report(tmp_path / "out", model, "--data", spoilt, "--epochs", "1")
    gates = {"hepcnn": 1, "resnet50": 1, "cosmoflow": 2}[model]
    checks = [finding["check"] for finding in found["findings"]]
    assert len(checks) == gates and set(checks) <= {"train-not-learnt", "train-below-gate"}
