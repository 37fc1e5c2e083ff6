"""Where trials run at once."""

from __future__ import annotations

import os

import pytest

from fairlead.base.errors import FairleadError
from fairlead.tune.tuner import slots, visible_gpus

CORES = sorted(os.sched_getaffinity(0))


def test_trials_have_cores_of_their_own_as_long_as_there_are_enough() -> None:
    groups = slots(1, None).cores
    assert [core for group in groups for core in group] == CORES
    assert slots(len(CORES), None).cores == (tuple(CORES),)
    assert slots(1, 1).cores == ((CORES[0],),)
    assert slots(10 * len(CORES), None).cores == (tuple(CORES),), "more ranks than cores"
    assert slots(1, len(CORES) + 1).cores == ((),) * (len(CORES) + 1), "they share"


def test_steps_of_a_job_are_placed_by_its_scheduler() -> None:
    assert slots(4, None, of_job=64).cores == ((),) * 16
    assert slots(128, None, of_job=64).cores == ((),)
    assert slots(4, 3, of_job=64).cores == ((),) * 3


def test_trials_have_gpus_of_their_own() -> None:
    found = slots(1, 8, gpus=2, there=["0", "1", "2", "5", "7"])
    assert found.gpus == (("0", "1"), ("2", "5"))
    assert found.env(1) == {"CUDA_VISIBLE_DEVICES": "2,5"}
    assert slots(1, 2).env(0) == {}
    with pytest.raises(FairleadError, match="a trial wants 2 GPUs, and there are 1"):
        slots(1, 1, gpus=2, there=["0"])
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": "GPU-1,3"}) == ["GPU-1", "3"]
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": ""}) == []
