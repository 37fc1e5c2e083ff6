"""Searches in real images: trials that fail in every way, tuners that are killed, and the best trial repeated."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from benchmarks.bars.tune_kills import killed
from tests.system import hosts

from fairlead.base.paths import cache_dir
from fairlead_build.build import build

FAIRLEAD = str(Path(sys.executable).with_name("fairlead"))
TRIAL = hosts.PROGRAMS / "tune_trial.py"
EXAMPLE = hosts.ROOT / "examples/tune"
# 0.5 is best.
LINE = "[parameters.x]\nlow = 0.0\nhigh = 1.0\n"


@pytest.fixture(scope="module", autouse=True)
def image() -> None:
    build("mpi-base")


def _words(folder: Path, space: str, *words: str, script: Path = TRIAL) -> list[str]:
    path = folder / "space.toml"
    path.write_text(space)
    mine = ("--space", str(path), "-o", str(folder / "out"))
    image = () if "--image" in words else ("--image", "mpi-base")
    return [FAIRLEAD, "tune", str(script), *mine, *image, *words]


def _tuned(words: list[str], code: int = 0) -> dict[str, Any]:
    own = words.index("--") if "--" in words else len(words)
    line = [*words[:own], "--json", *words[own:]]
    done = subprocess.run(line, capture_output=True, text=True, timeout=560, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _ledger(path: Path) -> Counter[tuple[str, ...]]:
    lines = path.read_text().splitlines() if path.exists() else []
    return Counter(tuple(line.split()) for line in lines)


def test_trial_that_fails_is_kept_with_its_reason_and_the_search_goes_on(tmp_path: Path) -> None:
    modes = ["good", "crash", "hang", "killed", "memory", "nan", "silent", "last"]
    space = f"[parameters.mode]\nchoices = {json.dumps(modes)}\n"
    words = _words(tmp_path, space, "--sampler", "grid", "--max-seconds", "20")
    result = _tuned(words)["result"]
    trials = {trial["parameters"]["mode"]: trial for trial in result["trials"]}
    assert list(trials) == modes
    reasons = {
        "crash": "exit code 1; RuntimeError: asked to crash",
        "hang": "time limit of 20 s",
        "killed": "killed by SIGKILL",
        "memory": "MemoryError",
        "nan": "value is nan",
        "silent": "no value of value came: neither fairlead.tune.report() nor a line `FoM: VALUE`",
    }
    for mode, reason in reasons.items():
        assert trials[mode]["state"] == "failed" and reason in trials[mode]["why"], trials[mode]
    for mode in ("good", "last"):
        assert trials[mode]["state"] == "complete" and trials[mode]["values"] == {"value": 0.25}
    assert result["best"] == [0]
    logs = [(tmp_path / f"out/trials/{n:05}/output.log").read_text() for n in range(len(modes))]
    cores = [re.findall(r"mode \w+ on ([\d ]+)", log) for log in logs]
    assert {core for (core,) in cores} == {str(core) for core in os.sched_getaffinity(0)}
    # Another start finds nothing left to do.
    assert _tuned(words)["result"] == result


@pytest.mark.full
def test_best_trial_of_two_ranks_is_proved_and_repeated_with_the_same_bits(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "from mpi4py import MPI\n" + (EXAMPLE / "train.py").read_text().partition('"""\n\n')[2]
        + 'print(f"bits {loss.hex()} of {MPI.COMM_WORLD.size}")\n'
    )  # fmt: skip
    space = (EXAMPLE / "space.toml").read_text()
    answer = _tuned(_words(tmp_path, space, "--trials", "3", "-n", "2", script=script))
    result = answer["result"]
    (best,) = result["best"]
    trial = result["trials"][best]
    assert "2 ranks: MPICH Version: 5" in re.sub(r"\s+", " ", trial["proof"])
    assert len(trial["reports"]) == 10
    log = (tmp_path / f"out/trials/{best:05}/output.log").read_text()
    bits = set(re.findall(r"bits .*", log))
    assert len(bits) == 1 and bits.pop().endswith("of 2")
    repeat = [FAIRLEAD, "train", "--from", answer["best_file"]]
    done = subprocess.run(repeat, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert set(re.findall(r"bits .*", done.stdout)) == set(re.findall(r"bits .*", log))
    page = Path(answer["page"]).read_text()
    assert page.count("<svg") >= 3 and not re.search(r"""(?:src|href)=["']https?:""", page)
    script.write_text(script.read_text() + "\n")
    done = subprocess.run(repeat, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2 and "error[tune-repeat]: the script is not" in done.stderr


def _elsewhere(tmp_path: Path) -> dict[str, str]:
    """The environment of a machine that has the downloads of this one, and no image."""
    mine, other = cache_dir(), tmp_path / "cache/fairlead"
    for name in ("blobs", "debian", "native", "sources", "tools", "trees"):
        if (mine / name).is_dir():
            shutil.copytree(mine / name, other / name, copy_function=os.link, symlinks=True)
    return {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}


@pytest.mark.full
def test_best_trial_is_repeated_where_there_is_neither_image_nor_script_nor_search(
    tmp_path: Path,
) -> None:
    script = tmp_path / "script/train.py"
    script.parent.mkdir()
    script.write_text((EXAMPLE / "train.py").read_text() + 'print(f"bits {loss.hex()}")\n')
    space = (EXAMPLE / "space.toml").read_text()
    answer = _tuned(_words(tmp_path, space, "--trials", "2", script=script))
    (best,) = answer["result"]["best"]
    bits = re.findall(r"bits .*", (tmp_path / f"out/trials/{best:05}/output.log").read_text())
    kept = tmp_path / "kept.toml"
    kept.write_text(Path(answer["best_file"]).read_text().replace(str(cache_dir()), "/elsewhere"))
    shutil.rmtree(tmp_path / "out")
    shutil.rmtree(script.parent)
    repeat = [FAIRLEAD, "train", "--from", str(kept)]
    environ = _elsewhere(tmp_path)
    done = subprocess.run(repeat, capture_output=True, text=True, timeout=300, check=False, env=environ)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert re.findall(r"bits .*", done.stdout) == bits
    text = kept.read_text()
    kept.write_text(text.replace('sha256 = "', 'sha256 = "0'))
    done = subprocess.run(repeat, capture_output=True, text=True, timeout=60, check=False, env=environ)  # fmt: skip
    assert done.returncode == 2 and "error[tune-repeat]: the script is not" in done.stderr


@pytest.mark.full
def test_parameter_that_the_script_does_not_take_ends_a_search_that_has_just_begun(
    tmp_path: Path,
) -> None:
    words = _words(tmp_path, LINE.replace("x", "y"), "--trials", "50", "--at-once", "2")
    (finding,) = _tuned(words, 1)["findings"]
    assert finding["check"] == "tune-ended"
    assert "unrecognized arguments: --y" in finding["why"]


@pytest.mark.parametrize(
    ("space", "words", "what"),
    [
        ("[parameters.x]\nlow = 0.0\nhihg = 1.0\n", (), "hihg"),
        ("[parameter.x]\nlow = 0.0\nhigh = 1.0\n", (), "parameter"),
        ("", (), "the space has no parameter"),
        (LINE.replace("0.0", "2.0"), (), "the bounds of `x` are reversed"),
        (LINE, (), "the number of trials is missing"),
        (
            LINE,
            ("--trials", "3", "--as-jobs"),
            "trials cannot be jobs of this site's scheduler, none",
        ),
        (
            LINE,
            ("--trials", "3", "--hosts", "a", "-N", "2"),
            "a trial wants 2 nodes, and there are 1",
        ),
    ],
)
def test_mistake_ends_a_search_before_it_begins_with_one_message(
    tmp_path: Path, space: str, words: tuple[str, ...], what: str
) -> None:
    findings = _tuned(_words(tmp_path, space, *words), 2)["findings"]
    assert what in " ".join(f"{finding['what']} {finding['why']}" for finding in findings)
    assert all(f["where"] and f["remedy"] for f in findings)
    assert not (tmp_path / "out/trials").exists()


def test_figure_of_merit_that_never_comes_ends_a_search_that_has_just_begun(tmp_path: Path) -> None:
    space = '[parameters.mode]\nchoices = ["silent"]\n'
    (finding,) = _tuned(_words(tmp_path, space, "--trials", "20", "--sampler", "random"), 1)[
        "findings"
    ]
    assert finding["check"] == "tune-ended" and "5 trials that all failed" in finding["what"]
    assert "neither fairlead.tune.report() nor a line `FoM: VALUE`" in finding["why"]


@pytest.mark.full
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk")
def test_disk_that_is_full_ends_a_search_with_one_message_and_it_goes_on_with_room(
    tmp_path: Path,
) -> None:
    out, ledger = tmp_path / "out", tmp_path / "ledger"
    out.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=100k", "tmpfs", out], check=True)
    try:
        own = ("--", "--ledger", str(ledger), "--trial", "{trial}")
        words = _words(tmp_path, LINE, "--trials", "12", "--at-once", "1", *own)
        filler = out / "filler"
        with (tmp_path / "log").open("wb") as log:
            tuner = subprocess.Popen(words, stdout=log, stderr=log)
            while sum(key[0] == "ended" for key in _ledger(ledger)) < 2 and tuner.poll() is None:
                time.sleep(0.05)
            with suppress(OSError):
                filler.write_bytes(bytes(1 << 20))
            assert tuner.wait(60) == 1, (tmp_path / "log").read_text()
        text = (tmp_path / "log").read_text()
        assert text.count("error[") == 1 and "No space left on device" in text, text
        subprocess.run(["mount", "-o", "remount,size=50m", out], check=True)
        result = _tuned(words)["result"]
        assert [t["state"] for t in result["trials"]] == ["complete"] * 12
    finally:
        subprocess.run(["umount", "-l", out], check=True)


def _killed(words: list[str], seconds: float, folder: Path) -> None:
    """Starts a tuner and ends it by SIGKILL after some time."""
    with (folder / "log").open("ab") as log:
        tuner = subprocess.Popen(words, stdout=log, stderr=log)
        try:
            tuner.wait(seconds)
        except subprocess.TimeoutExpired:
            tuner.kill()
            tuner.wait()


def test_search_whose_tuner_is_killed_loses_no_trial_and_runs_none_twice(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger"
    script = ("--", "--ledger", str(ledger), "--trial", "{trial}", "--seconds", "0.5")
    words = _words(tmp_path, LINE, "--trials", "6", "--seed", "7", *script)
    _killed(words, 6, tmp_path)
    assert 0 < sum(key[0] == "begun" for key in _ledger(ledger)) < 7
    trials = _tuned(words)["result"]["trials"]
    assert [(t["number"], t["state"]) for t in trials] == [(n, "complete") for n in range(6)]
    ended = _ledger(ledger)
    for trial in trials:
        assert ended[("ended", str(trial["number"]), repr(trial["parameters"]["x"]))] == 1, ended
    assert {key[1:] for key in ended} == {
        (str(t["number"]), repr(t["parameters"]["x"])) for t in trials
    }


def test_two_tuners_of_one_folder_share_the_trials(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger"
    script = ("--", "--ledger", str(ledger), "--trial", "{trial}", "--seconds", "0.3")
    words = _words(tmp_path, LINE, "--trials", "6", "--at-once", "1", *script)
    with (tmp_path / "log").open("wb") as log:
        other = subprocess.Popen(words, stdout=log, stderr=log)
        result = _tuned(words)["result"]
        assert other.wait(60) == 0, (tmp_path / "log").read_text()
    workers = json.loads((tmp_path / "out/report.json").read_text())
    assert [t["state"] for t in workers["trials"]] == ["complete"] * 6
    ended = Counter(key[1] for key in _ledger(ledger).elements() if key[0] == "ended")
    assert ended == Counter(map(str, range(6)))
    assert len(result["trials"]) == 6


def test_population_goes_on_from_the_checkpoints_of_its_best(tmp_path: Path) -> None:
    space = "[parameters.rate]\nlow = 0.0001\nhigh = 0.4\nlog = true\n"
    script = hosts.PROGRAMS / "tune_population.py"
    own = ("--sampler", "pbt", "--population", "3", "--trials", "9", "--seed", "4")
    trials = _tuned(_words(tmp_path, space, *own, script=script))["result"]["trials"]
    assert [t["state"] for t in trials] == ["complete"] * 9
    assert [t["reports"][-1][0] for t in trials] == [10] * 3 + [20] * 3 + [30] * 3
    costs = [t["values"]["value"] for t in trials]
    first, last = costs[:3], costs[6:]
    assert max(last) < max(first), "the worst has gone on from the best"
    rates = [t["parameters"]["rate"] for t in trials]
    assert len({*rates[:3]}) == 3 and {*rates[6:]} != {*rates[:3]}


def test_script_for_crays_names_searches_with_trials_that_are_launches(tmp_path: Path) -> None:
    program = f"""
from fairlead.tune import hpo
evaluator = hpo.Evaluator("python3 {TRIAL.name} --mode good", src_path={str(TRIAL.parent)!r}, image="mpi-base",
                          run_path="found", nodes=1, num_parallel_evals=2, launcher="local", verbose=True)
params = hpo.Params([["--x", 0.9, (0.0, 1.0)], ["--seconds", 0.0, [0.0]]])
optimizer = hpo.genetic.Optimizer(evaluator, generations=2, pop_size=3, log_fn="genetic.log")
optimizer.optimize(params)
print(optimizer.best_fom, optimizer.best_params["--x"])
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    best, x = map(float, done.stdout.split())
    assert best == (x - 0.5) ** 2 and 0 <= x <= 1
    lines = (tmp_path / "genetic.log").read_text().splitlines()
    assert len(lines) == 6 and best == min(float(line.split("\t")[1]) for line in lines)


@pytest.mark.full
def test_fifty_kills_of_tuners_and_trials_lose_and_double_none(tmp_path: Path) -> None:
    found = killed(tmp_path, seed=7)
    assert found.lost == () and found.twice == (), found
    assert found.tuners + found.trials >= 50 and found.taken_over, found


@pytest.mark.full
def test_script_of_others_is_tuned_as_it_is(tmp_path: Path) -> None:
    """A language model of github.com/pytorch/examples, on made-up text; PYTORCH_EXAMPLES names a checkout of it."""
    script = Path(os.environ.get("PYTORCH_EXAMPLES", "."), "word_language_model/main.py")
    if not script.is_file():
        pytest.skip("PYTORCH_EXAMPLES names no checkout of github.com/pytorch/examples")
    build("pytorch")
    draw = random.Random(1)
    data = tmp_path / "data"
    data.mkdir()
    for part, lines in (("train", 300), ("valid", 60), ("test", 60)):
        text = (" ".join(draw.choice("abcdef") * 2 for _ in range(12)) for _ in range(lines))
        (data / f"{part}.txt").write_text("\n".join(text) + "\n")
    space = (
        "[parameters.lr]\nlow = 0.5\nhigh = 20.0\nlog = true\n"
        '[parameters.model]\nchoices = ["LSTM", "GRU", "Transformer"]\n'
        "[parameters.nhid]\nlow = 16\nhigh = 64\nstep = 16\n"
        "[objectives.loss]\nprinted = 'test loss +([0-9.]+)'\n"
    )
    own = ("--epochs", "1", "--emsize", "16", "--data", str(data), "--save", "{folder}/model.pt")
    result = _tuned(
        _words(
            tmp_path,
            space,
            "--trials",
            "4",
            "--image",
            "pytorch",
            "--bind",
            str(data),
            "--",
            *own,
            script=script,
        )
    )["result"]
    assert [t["state"] for t in result["trials"]] == ["complete"] * 4
    assert all(0 < t["values"]["loss"] < 10 for t in result["trials"])


def _repeated(tmp_path: Path, answer: dict[str, Any]) -> dict[str, Any]:
    """What comes of training the best trial again, which has the same weights, loss and scores."""
    (best,) = answer["result"]["best"]
    kept = json.loads((tmp_path / f"out/trials/{best:05}/train.result.json").read_text())
    repeat = [FAIRLEAD, "train", "--from", answer["best_file"], "-o", str(tmp_path / "again")]
    done = subprocess.run(repeat, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    again: dict[str, Any] = json.loads((tmp_path / "again/report.json").read_text())
    again = again["training"]["all"]
    assert again["weights"][0]["final"] == kept["weights"][0]["final"]
    assert again["evaluation"]["scores"] == kept["evaluation"]["scores"]
    assert again["loss"][-1]["loss"] == kept["loss"][-1]["loss"]
    return again


@pytest.mark.full
def test_models_trial_is_repeated_with_the_same_weights(tmp_path: Path) -> None:
    build("tensorflow")
    own = ("--train-events", "400", "-o", str(tmp_path / "out"))
    answer = _tuned([FAIRLEAD, "tune", "hepcnn", "--trials", "2", *own])
    assert _repeated(tmp_path, answer)["inherited"] == 0


_RECIPE = """
[parameters.rate]
low = 3e-4
high = 3e-3
log = true
[parameters.dropout]
low = 0.0
high = 0.2
[parameters.units]
low = 2
high = 2
[parameters.filters]
low = 8
high = 24
step = 8
length = "units"
"""


@pytest.mark.full
@pytest.mark.parametrize("ranks", [1, 2])
def test_population_of_a_model_goes_on_from_checkpoints_in_one_course(
    tmp_path: Path, ranks: int
) -> None:
    build("tensorflow")
    own = ("--sampler", "pbt", "--population", "3", "--trials", "9", "--train-events", "200")
    space = _RECIPE if ranks == 1 else _RECIPE + "[parameters.normalize]\nchoices = [true]\n"
    words = _words(
        tmp_path, space, *own, "-n", str(ranks), "--image", "tensorflow", script=Path("hepcnn")
    )
    answer = _tuned(words)
    trials = answer["result"]["trials"]
    assert [t["state"] for t in trials] == ["complete"] * 9, [t["why"] for t in trials]
    for trial in trials:
        number, part = trial["number"], trial["number"] // 3
        path = tmp_path / f"out/trials/{number:05}"
        result = json.loads((path / "train.result.json").read_text())
        assert (trial["source"] is None) == (part == 0)
        assert result["resumed_from"] == part * (result["loss"][-1]["step"] + 1) / (part + 1)
        assert result["loss"][0]["step"] == result["resumed_from"]
        assert bool(result["inherited"]) == (part > 0)
        assert (path / "checkpoints").is_dir() == (part == 2)
        if part:
            parent = trials[trial["source"]]
            assert trial["parameters"]["filters"] == parent["parameters"]["filters"]
    chain = Path(answer["best_file"]).read_text().count("[[before]]")
    (best,) = answer["result"]["best"]
    assert chain == best // 3
    again = _repeated(tmp_path, answer)
    assert bool(again["inherited"]) == (chain > 0)


@pytest.mark.full
def test_children_of_a_genetic_search_take_the_weights_that_have_their_shape(
    tmp_path: Path,
) -> None:
    build("tensorflow")
    own = (
        "--sampler",
        "genetic",
        "--inherit",
        "--population",
        "3",
        "--trials",
        "7",
        "--train-events",
        "200",
    )
    words = _words(tmp_path, _RECIPE, *own, "--image", "tensorflow", script=Path("hepcnn"))
    answer = _tuned(words)
    trials = answer["result"]["trials"]
    assert [t["state"] for t in trials] == ["complete"] * 7, [t["why"] for t in trials]
    for trial in trials[3:]:
        mine, parents = (t["parameters"]["filters"] for t in (trial, trials[trial["source"]]))
        path = tmp_path / f"out/trials/{trial['number']:05}/train.result.json"
        one, two = (a == b for a, b in zip(mine, parents, strict=True))
        # Kernel and bias of two convolutions, of the dense layer and of the logits.
        fitting = 2 * one + (one and two) + two + two + 1 + 2
        assert json.loads(path.read_text())["inherited"] == fitting, (mine, parents)
    _repeated(tmp_path, answer)


@pytest.mark.full
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start a Slurm here")
def test_trials_are_steps_of_one_job_of_slurm_two_at_a_time(tmp_path: Path) -> None:
    script = ("--", "--seconds", "1")
    words = _words(tmp_path, LINE, "--trials", "4", "--at-once", "2", *script)
    slurm = [sys.executable, "-m", "tests.system.slurm"]
    done = subprocess.run(
        [*slurm, *words], cwd=hosts.ROOT, capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "salloc --no-kill --ntasks=2" in done.stderr and "4 complete" in done.stdout
    trials = [tmp_path / f"out/trials/{n:05}" for n in range(4)]
    spans = sorted(
        ((t / "lock").stat().st_mtime, (t / "outcome.json").stat().st_mtime) for t in trials
    )
    assert spans[1][0] < spans[0][1], "the first two ran at once"
    assert spans[2][0] > min(spans[0][1], spans[1][1]), "and the third waited"
