"""fairlead.comm in Keras (on TensorFlow and on torch) and in torch, on two ranks in the real images.

Each program makes its promises one after the other in one launch, since importing a framework takes
longer than all of them; what it saw is held here against what it has to see.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.system import hosts

Seen = dict[str, list[Any]]

# Sums of two and of eight samples round in another order than those of sixteen.
ROUNDING = 3e-6


def _ran(
    recipe: str, program: str, folder: Path, *options: str | Path
) -> tuple[subprocess.CompletedProcess[str], Seen]:
    """What each case of a program saw: a value a rank."""
    image = hosts.image(recipe)
    shutil.copy(hosts.PROGRAMS / f"{program}.py", folder)
    done = hosts.fairlead(
        "run", "-n", "2", "-B", folder, *options, image, "--",
        "python3", folder / f"{program}.py", folder, limit_s=300,
    )  # fmt: skip
    seen: Seen = {}
    for line in done.stdout.splitlines():
        if line.startswith('{"case"'):
            found = json.loads(line)
            seen.setdefault(found["case"], [None, None])[found["rank"]] = found["seen"]
    return done, seen


@pytest.fixture(
    scope="module", params=["tensorflow", pytest.param("torch", marks=pytest.mark.full)]
)
def keras(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Seen:
    folder = tmp_path_factory.mktemp("keras")
    if request.param == "tensorflow":
        done, seen = _ran("tensorflow", "fronts_keras", folder)
    else:
        done, seen = _ran("pytorch", "fronts_keras", folder, *hosts.keras_on_torch())
    assert done.returncode == 0, done.stderr
    return {"backend": [request.param] * 2, **seen}


@pytest.fixture(scope="module")
def torch(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Seen]:
    done, seen = _ran("pytorch", "fronts_torch", tmp_path_factory.mktemp("torch"))
    return f"{done.returncode}\n{done.stdout}{done.stderr}", seen


def both(seen: Seen, case: str) -> Any:
    """What both ranks saw, if they saw the same."""
    assert case in seen, f"the program ended before {case}"
    mine, other = seen[case]
    assert mine == other
    return mine


def test_keras_optimizers_equal_one_process_with_the_whole_batch(keras: Seen) -> None:
    found = both(keras, "one_process_with_the_whole_batch")
    assert len(found) == 6
    for name, (alike, distance, moved) in found.items():
        assert alike, name
        assert distance < ROUNDING < 0.01 < moved, name


def test_keras_ranks_without_the_wrapper_drift_apart(keras: Seen) -> None:
    assert both(keras, "optimizer_unwrapped") is False


def test_keras_optimizer_that_does_not_average_is_refused(keras: Seen) -> None:
    check, _ = both(keras, "optimizer_unwrapped_with_broadcast")
    assert check == "comm-not-distributed"


def test_keras_step_before_any_broadcast_is_refused(keras: Seen) -> None:
    check, _ = both(keras, "no_broadcast")
    assert check == "comm-not-broadcast"


@pytest.mark.parametrize(
    "case",
    [
        "eager_steps",
        "model_without_an_input_layer",
        "several_steps_an_execution",
        "trained_twice_from_a_dataset",
    ],
)
def test_keras_ways_to_run_a_step_give_the_same(keras: Seen, case: str) -> None:
    alike, distance = both(keras, case)
    assert alike and distance < ROUNDING


def test_keras_gradient_that_is_none_or_of_an_embedding(keras: Seen) -> None:
    weights, alike, distance = both(keras, "unused_weight_and_embedding")
    assert weights == 5 and alike and distance < ROUNDING


def test_keras_batch_statistics_become_their_mean(keras: Seen) -> None:
    differed, alike, distance = both(keras, "batch_normalization")
    assert differed and alike and distance < ROUNDING


def test_keras_state_restored_behind_broadcast_reaches_all_ranks(keras: Seen) -> None:
    weights_match, iterations, alike = both(keras, "state_restored_on_one_rank")
    assert weights_match and alike and iterations == 8


def test_keras_callbacks_behind_average_metrics_act_alike(keras: Seen) -> None:
    epochs, losses_match, alike, ranks_differ = both(keras, "callbacks_behind_average_metrics")
    assert 1 < epochs < 12 and losses_match and alike and ranks_differ


def test_keras_learning_rate_of_one_rank_is_named(keras: Seen) -> None:
    check, where = both(keras, "plateau_before_average_metrics")
    assert check == "state-differs"
    assert where.endswith("learning_rate, rank 1")


def test_keras_weight_changed_on_one_rank_is_named(keras: Seen) -> None:
    (check, where), path = both(keras, "weights_changed_on_one_rank")
    assert (check, where) == ("state-differs", f"{path}, rank 1")


def test_keras_other_metrics_on_one_rank_are_named(keras: Seen) -> None:
    assert both(keras, "other_metrics_on_one_rank") == ["comm-metrics", "epoch 1, rank 1"]


def test_keras_warm_up_ends_at_the_rate_times_ranks(keras: Seen) -> None:
    rates, refused = both(keras, "warm_up")
    assert rates == [0.01, 0.0125, 0.015, 0.0175, *[0.02] * 4]
    assert refused[0] == "comm-warmup"


def test_keras_infinite_gradient_of_one_rank_is_skipped_by_all(keras: Seen) -> None:
    found = both(keras, "loss_scale")
    assert found["inside"] == found["outside"] == [True, True, 3, 0.5]
    alike, finite, steps, scale = found["by compile"]
    assert alike and finite and 0 < steps < 4 and scale < 1


def test_keras_half_precision_stays_equal(keras: Seen) -> None:
    for alike, moved in both(keras, "half_precision_throughout").values():
        assert alike and moved > 0.01


def test_keras_saved_model_has_its_plain_optimizer_back(keras: Seen) -> None:
    assert both(keras, "saved_and_loaded") == [True, True, "comm-not-distributed", True]


def test_keras_compiled_step_is_turned_off_or_refused(keras: Seen) -> None:
    (output, alike, refused), (_, other_alike, _) = keras["compiled_step"]
    assert output and alike and other_alike
    if keras["backend"][0] == "tensorflow":
        assert refused[0] == "comm-jit"


def test_keras_backend_or_strategy_that_cannot_be_served_is_refused(keras: Seen) -> None:
    assert both(keras, "another_backend") == ["comm-keras-backend", "keras.backend.backend()"]
    if keras["backend"][0] == "tensorflow":
        assert both(keras, "strategy_of_tensorflow") == ["comm-strategy", "tf.distribute"]


def test_keras_loop_of_ones_own_equals_fit(keras: Seen) -> None:
    assert both(keras, "loop_of_ones_own") < ROUNDING


def test_keras_two_networks_with_a_team_each_are_under_way_at_once(keras: Seen) -> None:
    same, far, moved, calls, beside = both(keras, "two_networks_with_a_team_each")
    assert same and far < ROUNDING and moved and calls == [6, 6] and beside


def test_keras_fewer_steps_on_one_rank_are_named_before_the_first(keras: Seen) -> None:
    assert both(keras, "fewer_steps_on_one_rank") == ["comm-steps", "rank 0: 4; rank 1: 3"]


def test_keras_fewer_steps_that_no_rank_announced_are_named(keras: Seen) -> None:
    mine, other = keras["fewer_steps_that_nobody_knew_of"]
    assert other == ["comm-steps", "rank 1"]
    assert mine[0] == "comm-steps" or "the ranks run different numbers of steps" in mine[1]


@pytest.mark.full
def test_torch_optimizers_equal_one_process_with_the_whole_batch(torch: tuple[str, Seen]) -> None:
    found = both(torch[1], "one_process_with_the_whole_batch")
    assert len(found) == 5
    for name, (distance, moved) in found.items():
        assert distance < ROUNDING < 0.01 < moved, name


@pytest.mark.parametrize("case", ["optimizer_unwrapped", "no_broadcast"])
@pytest.mark.full
def test_torch_ranks_that_are_not_alike_are_found(torch: tuple[str, Seen], case: str) -> None:
    assert both(torch[1], case) == ["state-differs", "0.weight, rank 1"]


@pytest.mark.full
def test_torch_schedules_and_closures(torch: tuple[str, Seen]) -> None:
    assert max(both(torch[1], "schedule_made_before_or_after")) < ROUNDING
    assert max(both(torch[1], "closures")) < 1e-4  # a search multiplies what rounding leaves


@pytest.mark.full
def test_torch_infinite_gradient_of_one_rank_is_skipped_by_all(torch: tuple[str, Seen]) -> None:
    assert both(torch[1], "loss_scale") == [[3, 4.0, True]] * 3


@pytest.mark.full
def test_torch_parameter_without_a_gradient_counts_as_zero(torch: tuple[str, Seen]) -> None:
    assert both(torch[1], "parameter_used_on_one_rank") == [[0.5, 0.5], True]
    assert both(torch[1], "half_precision") > 0.01


@pytest.mark.full
def test_torch_buffers_and_optimizer_state(torch: tuple[str, Seen]) -> None:
    before, distance = both(torch[1], "batch_norm_statistics")
    assert before == ["state-differs", "2.running_mean, rank 1"] and distance < ROUNDING
    assert both(torch[1], "optimizer_state_of_one_rank") == [0.5, 4]
    assert both(torch[1], "saved_and_loaded") == [True, 0.01]


@pytest.mark.full
def test_torch_ddp_sends_its_buckets_by_mpi(torch: tuple[str, Seen]) -> None:
    group, by_mpi, distance = both(torch[1], "distributed_data_parallel")
    assert group and by_mpi and distance < ROUNDING


@pytest.mark.full
def test_torch_buckets_of_ddp_are_summed_where_they_are(torch: tuple[str, Seen]) -> None:
    variants, given_back, decided = both(torch[1], "ddp_in_shared_memory")
    for shared, distance in variants:
        assert shared and distance < ROUNDING
    assert given_back and decided
    assert torch[0].count("means move in the") == 1, torch[0]


@pytest.mark.full
def test_torch_what_cannot_be_averaged_is_named(torch: tuple[str, Seen]) -> None:
    away, sparse = both(torch[1], "tensor_elsewhere_and_sparse")
    assert away == ["comm-device", "weight, device meta"]
    assert sparse == ["comm-sparse", "weight, torch.sparse_coo"]
    named = ["comm-signature", "rank 1, array 0 (weight)"]
    assert both(torch[1], "other_shape_on_one_rank") == named


@pytest.mark.full
def test_torch_rank_that_ends_early_is_named_and_ends_all(torch: tuple[str, Seen]) -> None:
    said, seen = torch
    assert seen["fewer_steps_on_one_rank"] == [["comm-steps", "rank 1"], None]
    assert not said.startswith("0\n")
    assert "the ranks run different numbers of steps" in said


def test_fronts_are_loaded_when_they_are_asked_for() -> None:
    code = "import sys, fairlead.comm; print({'keras', 'torch', 'tensorflow'} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=os.environ, check=True
    )
    assert done.stdout == "set()\n"
