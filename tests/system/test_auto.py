"""Serial scripts on two ranks, by `fairlead train --auto`: no line of theirs is changed."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.system import hosts


@pytest.mark.full
def test_keras_script_with_every_kind_of_data_is_shared_out_or_refused(tmp_path: Path) -> None:
    hosts.image("tensorflow")
    script = tmp_path / "train.py"
    shutil.copy(hosts.PROGRAMS / "auto_keras.py", script)
    done = hosts.fairlead(
        "train", "--auto", script, "-n", "2", "--image", "tensorflow", "--", tmp_path, "a word",
        limit_s=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    # printed by one rank, as a serial script does
    assert done.stdout.count("the script has come to its end with a word") == 1
    assert done.stderr.count("2 ranks train together: batches of 8 a rank, 16 in all") == 2
    assert done.stderr.count("the learning rate follows a schedule by steps") == 1
    one, two = (json.loads(path.read_text()) for path in sorted(tmp_path.glob("seen.*")))
    for kind in ("arrays", "datasets"):
        assert one[kind] == two[kind], kind  # weights, and the metrics that both report
    # 203 samples, a fifth held out: 162 in batches of 8 are 21 steps; each rank makes 11 of 81
    loss = one["arrays"][1]
    assert len(loss) == 3 and loss[-1] < loss[0]
    # 26 batches: 13 a rank; 20 steps an epoch become 10
    assert one["datasets"][2:] == [2 * 13, 2 * 10]
    assert one["batches"][0] == two["batches"][0]
    assert one["steps"] == [2 * 5, 2 * 2]  # 10 and 4 of an epoch in one process
    # Keras looks at a batch first, and ends that as an epoch
    assert one["batches"][2] == two["batches"][2] == ["end", *["begin", "end"] * 2]
    # as in one process: weights that the callback swaps in are those that every rank evaluates
    assert one["averaged"] == two["averaged"] and one["averaged"][0] == one["averaged"][1]
    read = [set(seen["batches"][1]) for seen in (one, two)]
    assert not read[0] & read[1] and read[0] | read[1] <= set(range(9)) and len(read[0]) == 4
    for seen in (one, two):
        assert "generator" in seen["generator"] or "cannot be split" in seen["generator"]
        assert "a dataset of unknown length cannot be split" in seen["unknown"]
        assert "keeps its state from one to the next" in seen["stateful"]
        assert "the seed of _ShuffleDataset" in seen["shuffled apart"]
    # written once, by rank 0, and whole
    assert sorted(path.name for path in tmp_path.glob("*.keras")) == [
        "kept-1.keras", "kept-2.keras", "kept-3.keras", "last.keras",
    ]  # fmt: skip


@pytest.mark.full
def test_tensorflow_before_keras_is_shared_out_and_updates_without_fit_are_refused_at_once(
    tmp_path: Path,
) -> None:
    hosts.image("tensorflow")
    script = tmp_path / "train.py"
    shutil.copy(hosts.PROGRAMS / "auto_loops.py", script)
    done = hosts.fairlead(
        "train", "--auto", script, "-n", "2", "--image", "tensorflow", "--", tmp_path, limit_s=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    one, two = (json.loads(path.read_text()) for path in sorted(tmp_path.glob("seen.*")))
    assert one == two
    loss = one.pop("fit")[1]
    assert loss[-1] < loss[0] and one.pop("of inputs") == 4
    ways = ("eager", "compiled", "by_hand", "updates", "on_batch", "graph")
    assert list(one) == list(ways)
    for way, said in one.items():
        assert "nothing would be trained together" in said, way


@pytest.mark.full
def test_torch_script_with_a_loader_is_shared_out_or_refused(tmp_path: Path) -> None:
    hosts.image("pytorch")
    script = tmp_path / "train.py"
    shutil.copy(hosts.PROGRAMS / "auto_torch.py", script)
    # the image is the one that has torch
    done = hosts.fairlead("train", "--auto", script, "-n", "2", "--", tmp_path, limit_s=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("the script has come to its end") == 1
    one, two = (json.loads(path.read_text()) for path in sorted(tmp_path.glob("seen.*")))
    assert one["weights"] == two["weights"]  # and BatchNorm's statistics
    assert one["evaluated"] == two["evaluated"] and len(set(one["evaluated"])) == 3
    for mine, others in zip(one["epochs"], two["epochs"], strict=True):
        assert len(mine) == len(others) == 32 and not set(mine) & set(others)
    assert one["epochs"][0] != one["epochs"][1]  # another order, and other parts, in each epoch
    for seen in (one, two):
        assert "this model's training data cannot be split" in seen["alone"]
        by_hand = {way: said for way, said in seen.items() if way.startswith("by hand")}
        assert len(by_hand) == 5
        assert all("nothing would be trained together" in said for said in by_hand.values()), seen
        assert seen["again"] == seen["in order"] == "trained"
        assert "this model's training data cannot be split" in seen["sampler"]
        assert "an IterableDataset cannot be split" in seen["stream"]
        assert seen["losses"][-1] < seen["losses"][0] and seen["whole"] == 8
    assert (tmp_path / "model.pt").stat().st_size > 0
    assert done.stderr.count("an optimizer steps on no new batch") == 1
    after = hosts.fairlead(
        "train",
        "--auto",
        script,
        "-n",
        "2",
        "--image",
        "pytorch",
        "--",
        tmp_path,
        "more",
        limit_s=300,
    )
    assert after.returncode == 1, after.stdout + after.stderr
    assert "the ranks hold different state when the script ended" in after.stderr
    assert "running_mean of BatchNorm1d" in after.stderr
    assert "differs between the ranks" not in done.stderr + after.stderr  # by no step


@pytest.mark.full
def test_loader_in_order_is_shared_out_from_the_step_that_shows_that_it_is_trained_on(
    tmp_path: Path,
) -> None:
    hosts.image("pytorch")
    script = tmp_path / "train.py"
    shutil.copy(hosts.PROGRAMS / "auto_in_order.py", script)
    done = hosts.fairlead("train", "--auto", script, "-n", "2", "--", tmp_path, limit_s=300)
    assert done.returncode == 0, done.stdout + done.stderr
    one, two = sorted(_seen(tmp_path), key=lambda seen: seen["train"][1])
    # the first batch is both ranks', then each takes every second sample
    assert one["train"] == [[0, 1, 2, 3], [4, 6, 8, 10], [12, 14], [0, 2, 4, 6], [8, 10, 12, 14]]
    assert two["train"] == [[0, 1, 2, 3], [5, 7, 9, 11], [13, 15], [1, 3, 5, 7], [9, 11, 13, 15]]
    for seen in (one, two):
        assert (
            seen["held out"] == seen["evaluated"] == [list(range(n, n + 4)) for n in (0, 4, 8, 12)]
        )
        assert seen["lengths"] == [4, 2] and seen["loaded"] == one["loaded"]
        assert "SequentialSampler" in seen["classes"]
    # as one process with those batches
    w = 0.0
    for batch in ([0, 1, 2, 3], range(4, 12), range(12, 16), range(8), range(8, 16)):
        w -= 1e-3 * sum(2 * (w * x - 3 * x) * x for x in batch) / len(batch)
    assert one["weight"] == two["weight"] == pytest.approx(w, rel=1e-6)
    assert done.stderr.count("a DataLoader in order is trained on") == 1
    assert done.stderr.count("batches of 4 a rank, 8 in all") == 1
    assert "weights are bit-identical on 2 ranks" in done.stderr


@pytest.mark.full
def test_what_torch_scripts_do_next_to_their_steps_is_as_in_one_process(tmp_path: Path) -> None:
    hosts.image("pytorch")
    script = tmp_path / "train.py"
    shutil.copy(hosts.PROGRAMS / "auto_serial.py", script)
    line = [sys.executable, "-m", "fairlead", "train", "--auto", script, "-n", "2", "--", tmp_path]
    done = subprocess.run(
        line, input="2\n", capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    one, two = _seen(tmp_path)
    assert one == two
    # as one process with batches of 8: the mean is clipped, not each rank's own gradient
    norm = math.hypot(700.0, 100.0)
    assert one["norms"] == pytest.approx([norm, 0.0], rel=1e-6)
    assert one["norm"] == pytest.approx([-70 / norm, -10 / norm], rel=1e-6)
    assert one["value"] == pytest.approx([-0.1, -0.1])
    assert one["evaluated"] == [[float(i) for i in range(8)]] * 2
    assert one["lengths"] == [2, 4] and one["read"] == 4
    assert "weights are bit-identical on 2 ranks" in done.stderr
    for said in (
        "batches of 4 a rank, 8 in all; the learning rate is not scaled. Of 8 samples a rank reads 4",
        "each rank read its own part",
        "a step took batches of a DataLoader in order next to those of one in a random order",
        "counted the batches of a part, and then all samples were evaluated",
    ):
        assert done.stderr.count(said) == 1, said


@pytest.mark.full
def test_what_torch_scripts_do_with_gradients_they_do_with_those_of_the_whole_batch(
    tmp_path: Path,
) -> None:
    hosts.image("pytorch")
    script = tmp_path / "train.py"
    shutil.copy(hosts.PROGRAMS / "auto_same.py", script)
    seen = {}
    for ranks in (1, 2):
        (folder := tmp_path / str(ranks)).mkdir()
        words = ("-n", ranks, "--image", "pytorch", "--", folder, ranks)
        done = hosts.fairlead("train", "--auto", script, *words, limit_s=300)
        assert done.returncode == 0, done.stdout + done.stderr
        seen[ranks] = _seen(folder)
    (alone,), (one, two) = seen[1], seen[2]
    assert one["same"] == two["same"] and one["drawn"] != two["drawn"]
    for way, weights in alone["same"].items():
        assert one["same"][way] == pytest.approx(weights, abs=1e-5), way
    assert "gave all its batches without a step" not in done.stderr
    assert done.stderr.count("hooks of a parameter get this rank's own gradient") == 1
    assert done.stderr.count("the loss is a sum over the batch") == 1
    assert (
        done.stderr.count("torch.autograd.grad gives each rank's own gradient of parameters") == 1
    )


@pytest.mark.full
def test_what_torch_scripts_write_is_written_once_and_read_back_by_every_rank(
    tmp_path: Path,
) -> None:
    hosts.image("pytorch")
    script = tmp_path / "train.py"
    shutil.copy(hosts.PROGRAMS / "auto_writes.py", script)
    out = tmp_path / "out"
    for _ in range(2):
        words = ("-n", "2", "--image", "pytorch", "--", out)
        done = hosts.fairlead("train", "--auto", script, *words, limit_s=300)
        assert done.returncode == 0, done.stdout + done.stderr
        names = sorted(path.name for path in out.iterdir())
        of_now = [path for path in out.iterdir() if path.name.startswith("20")]
        assert [sorted(each.name for each in run.iterdir()) for run in of_now] == [
            ["best.pt", "log.txt"]
        ]
        assert [name for name in names if not name.startswith(("of.", "20"))] == [
            "history.jsonl", "kept.bin", "last.pt", "log.txt", "model.2.pt", "model.pkl", "model.pt", "parts", "scripted.pt",
            "steps.csv", "there",
        ]  # fmt: skip
        assert sum(name.startswith("of.") for name in names) == 2
        # 64 samples in batches of 8 on 2 ranks: 4 steps an epoch
        assert len((out / "steps.csv").read_text().splitlines()) == 12
        assert (out / "log.txt").read_text() == "epoch 0\nepoch 1\nepoch 2\n"
        assert (out / "kept.bin").stat().st_size == 4000
        assert [path.name for path in (out / "parts").iterdir()] == ["a.npz"]


def _alike(folder: Path, way: str) -> subprocess.CompletedProcess[str]:
    """``programs/auto_alike.py`` on two ranks."""
    hosts.image("pytorch")
    script = folder / "train.py"
    shutil.copy(hosts.PROGRAMS / "auto_alike.py", script)
    words = ("-n", "2", "--image", "pytorch", "--", folder, way)
    return hosts.fairlead("train", "--auto", script, *words, limit_s=300)


def _seen(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted(folder.glob("seen.*"))]


def test_what_random_samplers_draw_is_shared_out_and_whole_in_an_evaluation(tmp_path: Path) -> None:
    image = hosts.image("pytorch")
    script = tmp_path / "train.py"
    shutil.copy(hosts.PROGRAMS / "auto_samplers.py", script)
    done = hosts.fairlead("train", "--auto", script, "-n", "2", "--image", image, "--", tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    one, two = _seen(tmp_path)
    assert one["half"] == two["half"]
    every = list(range(26))
    assert sorted(one["shuffle"]["first"] + two["shuffle"]["first"]) == every
    assert one["shuffle"]["first"] != one["shuffle"]["second"]
    both = sorted(one["subset"]["first"] + two["subset"]["first"])
    assert sorted({*both}) == one["half"] and len(both) == 14  # one of 13 is repeated
    assert len(one["random"]["first"]) == 20 and {
        *one["random"]["first"],
        *two["random"]["first"],
    } == {*every}
    assert all(n % 2 for n in one["weighted"]["first"] + two["weighted"]["first"])
    assert one["weighted"]["first"] != two["weighted"]["first"]
    assert len({*one["batches"]["first"], *two["batches"]["first"]}) == 24
    assert one["endless"]["first"] != two["endless"]["first"]
    lengths = {
        "shuffle": (5, 9),
        "random": (7, 14),
        "subset": (3, 5),
        "weighted": (4, 7),
        "batches": (4, 8),
    }
    for name, (part, whole) in lengths.items():
        for rank in (one, two):
            again = (rank[name]["length again"], rank[name]["whole length"])
            assert (rank[name]["length"], *again) == (part, part, whole)
        assert one[name]["whole"] == two[name]["whole"]
    assert sorted(one["subset"]["whole"]) == one["half"]


@pytest.mark.full
@pytest.mark.parametrize("way", ["numpy", "default_rng", "random", "set", "augmented", "best"])
def test_what_a_script_has_not_seeded_is_the_same_on_all_ranks(way: str, tmp_path: Path) -> None:
    done = _alike(tmp_path, way)
    assert done.returncode == 0, done.stdout + done.stderr
    one, two = _seen(tmp_path)
    assert one["held"] == two["held"] and len(one["held"]) == 64
    if way != "augmented":  # it trains on other rows, too
        assert not {*one["held"]} & {*one["seen"], *two["seen"]}
        assert len({*one["seen"], *two["seen"]}) == 256
    assert [path.name for path in tmp_path.glob("*.pt")] == ["best.pt"] * (way == "best")
    assert not [*tmp_path.glob(".*")]


@pytest.mark.full
@pytest.mark.parametrize(
    ("way", "words"),
    [
        ("urandom", ("the ranks hold different training data: `indices` of Subset", "seed what")),
        ("stops", ("the ranks no longer take the same steps", "early stopping")),
        ("leaves", ("the ranks no longer take the same steps", "compares", "another something else")),
        ("parts", ("the ranks hold different state at the end of the training", "parameter 0, rank 1")),
        ("shaken", ("the ranks hold different state before step 4", "in the same way")),
        ("noise", ("the ranks hold different state before the second step", "in the same way")),
        ("queue", ("queue of Sequential 3 differs between the ranks", "different state when the script ended")),
        ("plateau", ("the ranks have different learning rates", "group 0 of the optimizer: rank 0: ")),
    ],
)  # fmt: skip
def test_what_each_rank_does_in_its_own_way_is_named(
    way: str, words: tuple[str, ...], tmp_path: Path
) -> None:
    done = _alike(tmp_path, way)
    assert done.returncode == 1, done.stdout + done.stderr
    for word in words:
        assert word in done.stderr


@pytest.mark.full
def test_keras_script_goes_on_with_the_model_that_it_has_saved(tmp_path: Path) -> None:
    hosts.image("tensorflow")
    script = tmp_path / "train.py"
    shutil.copy(hosts.PROGRAMS / "auto_resume.py", script)
    done = hosts.fairlead(
        "train", "--auto", script, "-n", "2", "--image", "tensorflow", "--", tmp_path, limit_s=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "compile() was not called" not in done.stderr
    one, two = _seen(tmp_path)
    assert one == two and one["loss"][-1] < one["loss"][0]
    assert abs(one["drawn"] - 0.2219931710897395) < 1e-12  # of the script's own seed
    assert sorted(path.name for path in tmp_path.glob("*.[kw]e*")) == [
        "best.keras", "last.keras", "last.weights.h5",
    ]  # fmt: skip


@pytest.mark.full
@pytest.mark.parametrize(("image", "backend"), [("tensorflow", "tensorflow"), ("pytorch", "torch")])
def test_keras_model_of_parts_or_of_torchs_loaders_is_shared_out(
    image: str, backend: str, tmp_path: Path
) -> None:
    hosts.image(image)
    script = tmp_path / "train.py"
    shutil.copy(hosts.PROGRAMS / "auto_parts.py", script)
    words = ("-n", "2", "--image", image, "--env", f"KERAS_BACKEND={backend}", "--", tmp_path)
    done = hosts.fairlead("train", "--auto", script, *words, limit_s=300)
    assert done.returncode == 0, done.stdout + done.stderr
    one, two = _seen(tmp_path)
    assert one == two
    if backend == "tensorflow":
        assert one["loss"][-1] < one["loss"][0] and len(one["weights"]) == 4
        return
    # all samples, on each rank
    loss, batches = one["evaluated"]
    assert batches == 8 and one["history"]["val_loss"][-1] == pytest.approx(loss, rel=1e-5)
    assert "counted the batches of a part" not in done.stderr


@pytest.mark.full
@pytest.mark.parametrize(("image", "backend"), [("tensorflow", "tensorflow"), ("pytorch", "torch")])
def test_what_a_train_step_does_with_gradients_it_does_with_those_of_the_whole_batch(
    image: str, backend: str, tmp_path: Path
) -> None:
    hosts.image(image)
    script = tmp_path / "train.py"
    shutil.copy(hosts.PROGRAMS / "auto_keras_same.py", script)
    seen = {}
    for ranks in (1, 2):
        (folder := tmp_path / str(ranks)).mkdir()
        words = ("-n", ranks, "--image", image, "--env", f"KERAS_BACKEND={backend}", "--", folder)
        done = hosts.fairlead("train", "--auto", script, *words, ranks, limit_s=300)
        assert done.returncode == 0, done.stdout + done.stderr
        seen[ranks] = _seen(folder)
    (alone,), (one, two) = seen[1], seen[2]
    assert one["same"] == two["same"] and one["again"] == two["again"]
    for way, weights in alone["same"].items():
        assert one["same"][way] == pytest.approx(weights, abs=1e-5), way
    numbers = [number for rank in (one, two) for step in rank["own"] for number in step]
    assert len({*numbers}) == len(numbers) == 2 * 4 * 3
    assert done.stderr.count("the loss is a sum over the batch") == 1
    assert done.stderr.count("1 of 15 samples are left out of each epoch") == 1


@pytest.mark.full
@pytest.mark.parametrize(("image", "backend"), [("tensorflow", "tensorflow"), ("pytorch", "torch")])
@pytest.mark.parametrize("way", ["sum", "half", "loss", "part", "mean"])
def test_sum_over_the_batch_in_a_train_step_is_reported(
    way: str, image: str, backend: str, tmp_path: Path
) -> None:
    hosts.image(image)
    script = tmp_path / "train.py"
    shutil.copy(hosts.PROGRAMS / "auto_keras_sums.py", script)
    words = ("-n", "2", "--image", image, "--env", f"KERAS_BACKEND={backend}", "--", way)
    done = hosts.fairlead("train", "--auto", script, *words, limit_s=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr.count("the loss is a sum over the batch") == (way != "mean"), done.stderr


@pytest.mark.full
@pytest.mark.parametrize(
    "way", ["half", "negated", "scaled", "accumulated", "product", "axis", "means"]
)
def test_sum_over_the_batch_in_a_torch_script_is_reported(way: str, tmp_path: Path) -> None:
    hosts.image("pytorch")
    script = tmp_path / "train.py"
    shutil.copy(hosts.PROGRAMS / "auto_torch_sums.py", script)
    words = ("-n", "2", "--image", "pytorch", "--", way)
    done = hosts.fairlead("train", "--auto", script, *words, limit_s=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr.count("the loss is a sum over the batch") == (way != "means"), done.stderr


@pytest.mark.full
@pytest.mark.parametrize(
    ("way", "said"),
    [("after", 1), ("left", 1), ("kept", 0), ("ahead", 0), ("taken", 0), ("rest", 0)],
)
def test_steps_on_batches_of_the_scripts_own_after_a_loader_are_reported(
    way: str, said: int, tmp_path: Path
) -> None:
    hosts.image("pytorch")
    script = tmp_path / "train.py"
    shutil.copy(hosts.PROGRAMS / "auto_after.py", script)
    done = hosts.fairlead(
        "train", "--auto", script, "-n", "2", "--image", "pytorch", "--", way, limit_s=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr.count("an optimizer steps on no new batch") == said, done.stderr


@pytest.mark.full
@pytest.mark.parametrize("framework", ["lightning", "accelerate", "transformers"])
def test_framework_that_forms_worlds_trains_as_one_process(framework: str, tmp_path: Path) -> None:
    image = hosts.image(str(hosts.ROOT / "examples/trainers"))
    script = tmp_path / "train.py"
    shutil.copy(hosts.PROGRAMS / "auto_trainers.py", script)
    words = ("-n", "2", "--image", image, "--", tmp_path, framework)
    done = hosts.fairlead("train", "--auto", script, *words, limit_s=300)
    assert done.returncode == 0, done.stdout + done.stderr
    one, two = _seen(tmp_path)
    assert one["world"] == two["world"] == 1 and one["weights"] == two["weights"]
    assert len(one["seen"]) == len(two["seen"]) == 128
    assert not {*one["seen"]} & {*two["seen"]}
    assert len([*(tmp_path / "out").glob("*")]) == (3 if framework == "accelerate" else 1)
    assert len([*tmp_path.glob("of.*")]) == (framework == "transformers")


@pytest.mark.parametrize(
    ("code", "check", "what"),
    [
        ("print('no training')", "auto-nothing", "trained nothing that the ranks share"),
        ("import sys; sys.exit(3)", "", ""),
    ],
)
def test_script_that_trains_nothing_is_reported_and_its_exit_code_kept(
    tmp_path: Path, code: str, check: str, what: str
) -> None:
    script = tmp_path / "script.py"
    script.write_text(code)
    done = hosts.fairlead("train", "--auto", script, "--image", hosts.image())
    assert done.returncode == (1 if check else 3), done.stdout + done.stderr
    assert what in done.stderr
    alone = hosts.fairlead("train", "--auto", script, "-n", "1", "--image", hosts.image())
    assert alone.returncode == (0 if check else 3), alone.stdout + alone.stderr


def test_variables_of_env_reach_the_script(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import os, sys; print(os.environ['MINE']); sys.exit(4)")
    words = ("--auto", script, "-n", "2", "--env", "MINE=a b", "--image", hosts.image())
    done = hosts.fairlead("train", *words)
    assert (done.returncode, done.stdout) == (4, "a b\n"), done.stderr


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (("hepcn",), "unknown model `hepcn`"),
        ((), "nothing to train"),
        (("hepcnn", "--", "more"), "unknown model `hepcnn more`"),
        (("--auto", __file__, "--epochs", "3"), "--epochs works only with bundled models"),
    ],
)
def test_wrong_words_are_reported(words: tuple[str, ...], what: str) -> None:
    done = hosts.fairlead("train", *words)
    assert done.returncode == 2 and what in done.stderr, done.stderr
