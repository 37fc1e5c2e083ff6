"""What the bundled models are trained for: published numbers, gates, scores, and names.

The numbers are those of the sources that the models' modules name, written down a second time.
"""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import fairlead
from fairlead.base.errors import ExitCode, FairleadError
from fairlead.ml import registry, task
from fairlead.ml.models import cosmoflow, hepcnn, resnet50
from fairlead.ml.task import Course, Gate, Recipe

TASKS = [registry.find(name) for name in registry.names()]


def course(batch: int, per_epoch: int, epochs: int, ranks: int = 1) -> Course:
    return Course(batch, per_epoch * epochs, per_epoch, ranks)


# --- the published recipes --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "batch", "epochs", "dropout", "l2"),
    [
        ("hepcnn", 8, 200, 0.5, 0.0),
        ("hepcnn-224", 128, 32, 0.5, 0.0),
        ("resnet50", 32, 100, 0.0, 1e-4),
        ("resnet50-v1", 32, 100, 0.0, 1e-4),
        ("resnet50-224", 32, 100, 0.0, 1e-4),
        ("cosmoflow", 4, 128, 0.5, 0.0),
        ("cosmoflow-mlperf", 4, 128, 0.5, 0.0),
        ("cosmoflow-sc18", 1, 100, 0.5, 0.0),
    ],
)
def test_published_recipe_has_the_published_numbers(
    name: str, batch: int, epochs: int, dropout: float, l2: float
) -> None:
    found = registry.find(name).published
    assert (found.batch, found.epochs, found.dropout, found.l2) == (batch, epochs, dropout, l2)
    assert "github.com/" in found.source and found.augment is None


def test_published_batch_of_hepcnn_is_that_of_all_ranks() -> None:
    published = registry.find("hepcnn").published
    assert [published.each(ranks) for ranks in (1, 2, 4, 8, 9, 100)] == [8, 4, 2, 1, 1, 1]
    assert registry.find("hepcnn-224").published.each(100) == 128
    assert not any(one.quick.together for one in TASKS)


@pytest.mark.parametrize(("name", "rate"), [("hepcnn", 1e-5), ("hepcnn-224", 1e-3)])
def test_published_rate_of_hepcnn_is_constant(name: str, rate: float) -> None:
    published, long = registry.find(name).published, course(8, 100, 200)
    assert {published.rate(long, step) for step in (0, 1, 5000, 19_999)} == {rate}
    assert published.optimizer is task.adam


def test_published_rate_of_resnet_on_one_rank_falls_at_its_epochs() -> None:
    published, long = registry.find("resnet50").published, course(512, 10, 100)
    begins = {0: 1.0, 30: 0.1, 60: 0.01, 80: 1e-3, 90: 1e-4}
    for begin, factor in begins.items():
        for epoch in (begin, begin + 9):
            assert published.rate(long, 10 * epoch) == pytest.approx(0.2 * factor)
        if begin:
            assert published.rate(long, 10 * begin - 1) > 5 * published.rate(long, 10 * begin)


@pytest.mark.parametrize(
    ("batch", "peak"),
    [(32, 4), (256, 4), (511, 4), (512, 5), (1024, 9), (4096, 14), (32768, 40), (65536, 40)],
)
def test_published_rate_of_resnet_on_ranks_warms_up_and_decays(batch: int, peak: float) -> None:
    published, long = registry.find("resnet50").published, course(batch, 10, 100, ranks=2)
    assert published.rate(long, 0) == pytest.approx(0.1)
    assert published.rate(long, 60) == pytest.approx(0.1 + (peak - 0.1) / 2)
    # 12 epochs of warm-up, then (1 - t)^2 over the other 88, from the peak on.
    assert published.rate(long, 120) == pytest.approx(peak)
    assert published.rate(long, 120 + 440) == pytest.approx(peak / 4)
    assert 0 < published.rate(long, 999) < 1e-4 * peak
    rates = [published.rate(long, step) for step in range(1000)]
    assert rates[:121] == sorted(rates[:121]) and rates[120:] == sorted(rates[120:], reverse=True)


@pytest.mark.parametrize(
    ("epoch", "rate"),
    [
        (0, 0.001),
        (1, 0.00275),
        (3, 0.00625),
        (4, 0.008),
        (32, 0.008),
        (33, 0.002),
        (64, 0.002),
        (65, 0.001),
    ],
)
def test_published_rate_of_mlperf_is_the_same_throughout_an_epoch(epoch: int, rate: float) -> None:
    published, long = registry.find("cosmoflow-mlperf").published, course(512, 10, 128)
    assert published.rate(long, 10 * epoch) == pytest.approx(rate)
    assert published.rate(long, 10 * epoch + 9) == pytest.approx(rate)
    assert published.optimizer is task.momentum


def test_published_rate_of_sc18_falls_on_a_line() -> None:
    published, long = registry.find("cosmoflow-sc18").published, course(1, 10, 100)
    assert published.rate(long, 0) == pytest.approx(1e-3)
    assert published.rate(long, 500) == pytest.approx((1e-3 + 1e-4) / 2)
    assert published.rate(long, 1000) == pytest.approx(1e-4)


@pytest.mark.parametrize("name", registry.names())
@pytest.mark.parametrize("steps", [1, 2, 7, 1000])
@pytest.mark.parametrize("ranks", [1, 3])
def test_rate_is_a_finite_number_in_each_step(name: str, steps: int, ranks: int) -> None:
    found = registry.find(name)
    short = Course(16, steps, max(steps // 3, 1), ranks)
    for recipe in (found.quick, found.published):
        rates = [recipe.rate(short, step) for step in range(steps)]
        assert all(math.isfinite(rate) and 0 <= rate <= 40 for rate in rates)
        assert rates[0] > 0


def test_each_rank_has_a_sample_whatever_the_batch() -> None:
    recipe = Recipe(task.adam, task.constant(1.0), 8, 1, 0.0, "", together=True)
    assert [recipe.each(ranks) for ranks in (1, 3, 8, 1000)] == [8, 2, 1, 1]


# --- networks ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "trainable", "shape"),
    [
        ("hepcnn", 4_494_594, (8, 8, 128)),
        ("hepcnn-224", 594_178, (14, 14, 128)),
        ("resnet50", 23_520_842, (2, 2, 2048)),
        ("resnet50-224", 25_551_401, (7, 7, 2048)),
        ("cosmoflow-sc18", 7_041_443, (2, 2, 2, 256)),
    ],
)
def test_network_of_a_task_has_the_published_size(
    name: str, trainable: int, shape: tuple[int, ...]
) -> None:
    found = registry.find(name).network
    assert (found.trainable, found.features) == (trainable, shape)


def test_published_sizes_of_variants_are_known() -> None:
    assert cosmoflow.mlperf_network().trainable == 8_907_556
    assert cosmoflow.mlperf_network(kernel=2).trainable == 5_597_604
    assert cosmoflow.mlperf_network(32, 1, 3).trainable == 4_776_131
    assert cosmoflow.sc18_network(2).trainable == 7_041_186
    assert [resnet50.network(1, classes=n).trainable for n in (1000, 1001)] == [25_557_032, 25_559_081]  # fmt: skip
    assert [resnet50.network(2, classes=n).trainable for n in (1000, 1001)] == [25_549_352, 25_551_401]  # fmt: skip
    assert hepcnn.network_224(64).features == (4, 4, 128)


# --- gates and scores -------------------------------------------------------------------------


def test_gates_are_those_that_a_linear_model_misses() -> None:
    asked = {name: registry.find(name).gates for name in registry.validated()}
    assert asked == {
        "hepcnn": (Gate("auc", 0.90),),
        "resnet50": (Gate("accuracy", 0.95),),
        "cosmoflow": (Gate("turnover", 0.60, False), Gate("tilt", 0.90, False)),
    }
    assert [gate.words for gates in asked.values() for gate in gates] == [
        "at least 0.9", "at least 0.95", "at most 0.6", "at most 0.9",
    ]  # fmt: skip


@pytest.mark.parametrize("at_least", [True, False])
def test_gate_is_not_passed_by_what_is_no_number(at_least: bool) -> None:
    gate = Gate("x", 0.5, at_least)
    assert gate.passed(0.5) is True and gate.passed(np.float32(0.5)) is True  # type: ignore[arg-type]
    assert gate.passed(0.51) is at_least and gate.passed(0.49) is not at_least
    assert not gate.passed(math.nan)
    for pair in ((math.nan, 0.5), (0.5, math.nan), (math.nan, math.nan), (0.5, 0.5)):
        assert not gate.better(*pair)


def test_scores_of_classes_count_the_largest_logit() -> None:
    logits = np.array([[1, 2, 0], [3, 2, 0], [0, 0, 1], [5, 4, 6]], np.float32)
    assert resnet50.scores(np.array([1, 0, 2, 0]), logits) == {"accuracy": 0.75}


def test_scores_of_events_order_them_by_their_margin() -> None:
    logits = np.array([[0, -3], [0, 1], [100, 101.5], [0, 5]], np.float32)
    found = hepcnn.scores(np.array([0, 1, 0, 1], np.int32), logits)
    assert found == {"auc": 0.75, "accuracy": 0.75}


def test_scores_of_parameters_are_errors_over_those_of_the_mean() -> None:
    wanted = np.array([[0, 0, 1], [1, 2, -1]], np.float32)
    mean = np.broadcast_to(wanted.mean(0), wanted.shape)
    assert cosmoflow.scores(wanted, mean) == pytest.approx(
        {"turnover": 1.0, "strength": 1.0, "tilt": 1.0, "error": (0.5 + 1 + 1) / 3}
    )
    assert cosmoflow.scores(wanted, wanted)["error"] == 0
    assert set(cosmoflow.scores(wanted[:, :2], mean[:, :2])) == {"turnover", "strength", "error"}
    four = np.column_stack([wanted, wanted[:, 0]])
    assert list(cosmoflow.scores(four, four)) == ["turnover", "strength", "tilt", "growth", "error"]
    task = registry.find("cosmoflow-mlperf")
    assert (task.data.name, task.network.trainable, task.network.outputs) == (
        "cosmo-mlperf",
        8_907_556,
        4,
    )


def test_scores_of_outputs_that_are_no_numbers_pass_no_gate() -> None:
    wanted = np.eye(3, dtype=np.float32)
    found = cosmoflow.scores(wanted, np.full((3, 3), np.nan))
    assert not any(gate.passed(found[gate.metric]) for gate in registry.find("cosmoflow").gates)
    with pytest.raises(FairleadError, match="AUC"):
        hepcnn.scores(np.array([0, 1], np.int32), np.full((2, 2), np.nan))


def test_turned_volumes_hold_the_same_counts_each_its_own_way() -> None:
    given = np.random.default_rng(1).poisson(4, (3, 8, 8, 8, 2)).astype(np.int16)
    kept = given.copy()
    found = cosmoflow.turned(np.random.default_rng(2), given)
    assert (given == kept).all() and found.dtype == given.dtype and found.shape == given.shape
    for a, b in zip(given, found, strict=True):
        assert (np.sort(a, axis=None) == np.sort(b, axis=None)).all() and (a != b).any()
        power = [np.sort((np.abs(np.fft.fftn(x[..., 0])) ** 2).round(3), axis=None) for x in (a, b)]
        assert np.allclose(*power)
    again = cosmoflow.turned(np.random.default_rng(2), given)
    assert (again == found).all()


# --- names ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["", "hepcn", "HEPCNN", "../hepcnn", "task"])
def test_model_that_there_is_not_is_refused_with_those_that_are(name: str) -> None:
    with pytest.raises(FairleadError) as caught:
        registry.find(name)
    (finding,) = caught.value.findings
    assert caught.value.code is ExitCode.USAGE and finding.check == "train-model"
    assert all(known in finding.why for known in registry.names())


def test_tasks_have_the_names_they_are_found_by() -> None:
    assert [found.name for found in TASKS] == list(registry.names())
    assert set(registry.validated()) <= set(registry.names())
    for found in TASKS:
        assert found.gates and found.val >= 2000  # a standard error of .007 at .9


_WITHOUT = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("numpy", "keras", "tensorflow", "torch", "h5py", "mpi4py"):
            raise ImportError("a login node has no " + name)
sys.meta_path.insert(0, Absent())
sys.path.insert(0, sys.argv[1])
from fairlead.ml import registry
for name in registry.names():
    task = registry.find(name)
    print(name, task.title, *(gate.words for gate in task.gates), task.published.batch)
import fairlead.ml.train.host, fairlead.cli.train
"""


def test_tasks_are_known_without_numpy_and_frameworks() -> None:
    runtime = Path(fairlead.__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-c", _WITHOUT, runtime], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()] == list(registry.names())
