"""Gradients that leave during the backward pass, on three ranks in the real image of torch."""

from __future__ import annotations

import json
import shutil
from typing import Any

import pytest
from tests.system import hosts

ROUNDING = 1e-6


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    """What each case came to, a value a rank."""
    folder = tmp_path_factory.mktemp("early")
    shutil.copy(hosts.PROGRAMS / "early_means.py", folder)
    done = hosts.fairlead(
        "run", "-n", "3", "-B", folder, hosts.image("pytorch"), "--",
        "python3", "-m", "fairlead.comm.dropin", folder / "early_means.py", limit_s=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    cases: dict[str, list[Any]] = {"errors": done.stderr.splitlines()}
    for line in done.stdout.splitlines():
        if line.startswith('{"case"'):
            row = json.loads(line)
            cases.setdefault(row["case"], [None] * 3)[row["rank"]] = row["seen"]
    return cases


def of_all(seen: dict[str, list[Any]], case: str) -> Any:
    """What all ranks saw alike."""
    first, *others = seen[case]
    assert all(other == first for other in others), seen[case]
    return first


@pytest.mark.parametrize(
    ("case", "missed", "early"),
    [
        ("steps_alike", 0, True),
        ("several_passes", 0, True),
        ("two_dtypes", 0, True),
        ("another_pass_in_two_steps", 2, True),
        ("changed_behind_the_version_counter", 1, True),
        ("clipped_before_every_step", 0, True),
        ("changed_in_every_step", 3, False),
        ("further_pass_of_one_rank", 1, True),
        ("passes_of_one_rank_after_the_last_step", 0, True),
        ("layer_that_one_rank_skips", 1, True),
        ("frozen_layer", 3, False),
        ("by_horovods_names", 0, True),
        ("copied_and_saved", 0, True),
    ],
)
def test_means_are_those_of_one_process_whatever_the_script_does(
    seen: dict[str, list[Any]], case: str, missed: int, early: bool
) -> None:
    apart, steps, leave = of_all(seen, case)
    assert apart < ROUNDING
    assert (steps, leave) == (missed, early)


def test_optimizer_gives_way_to_another_of_its_parameters(seen: dict[str, list[Any]]) -> None:
    apart, missed, leave, first_is_over = of_all(seen, "second_optimizer_of_the_same_parameters")
    assert apart < 1e-4  # Adam divides by what rounding leaves
    assert (missed, leave, first_is_over) == (0, True, True)


def test_two_optimizers_that_alternate_are_right(seen: dict[str, list[Any]]) -> None:
    apart, missed, leave, *other = of_all(seen, "two_that_alternate")
    assert max(apart, other[0]) < 1e-4  # 60 steps, whose gradients multiply what rounding leaves
    assert (missed, leave) == (0, True) == tuple(other[1:])


def test_small_gradients_stay_together(seen: dict[str, list[Any]]) -> None:
    assert of_all(seen, "small_model") is True


def test_infinite_gradient_is_reported_by_its_name(seen: dict[str, list[Any]]) -> None:
    assert of_all(seen, "infinite_once") == [False, 0]
    (line,) = [line for line in seen["errors"] if "FAIRLEAD_COMM_NONFINITE" in line]
    assert "rank 1" in line and "(1.weight)" in line
