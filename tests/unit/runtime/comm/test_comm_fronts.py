"""What the fronts of fairlead.comm share, on one rank; and that their examples keep the promise."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.findings import fail
from tests.unit.runtime.comm.test_comm import Recorded, same

from fairlead.base.errors import FairleadError
from fairlead.comm.core import Comm
from fairlead.comm.frameworks import common
from fairlead.comm.mpi import Alone

EXAMPLES = Path(__file__).resolve().parents[4] / "examples"


def _code(example: str) -> list[str]:
    """The lines below the docstring that hold anything."""
    _, _, code = (EXAMPLES / example).read_text().split('"""', 2)
    return [line for line in code.splitlines() if line.strip()]


@pytest.mark.parametrize("framework", ["keras", "torch"])
def test_twins_differ_in_at_most_five_lines(framework: str) -> None:
    serial, distributed = _code(f"{framework}_serial.py"), _code(f"{framework}_distributed.py")
    lines = list(difflib.ndiff(serial, distributed))
    changed = [line for line in lines if line.startswith("+ ")]
    gone = [line for line in lines if line.startswith("- ")]
    assert 0 < len(changed) <= 5, changed
    assert len(gone) <= len(changed)


def test_aggregate_that_meets_no_step_is_an_uneven_number_of_steps() -> None:
    ranks = Comm(Recorded([same, lambda value: ("barrier", (), "nid9")]))
    with pytest.raises(FairleadError, match="different numbers of steps") as caught:
        common.aggregate(ranks, [np.ones(2)], ["kernel"])
    (finding,) = caught.value.findings
    assert (finding.check, finding.where) == ("comm-steps", "rank 2")
    assert finding.why.startswith("rank 2 (nid9) called barrier while rank 0 (")


def test_meeting_while_others_aggregate_is_an_uneven_number_of_steps() -> None:
    ranks = Comm(Recorded([lambda value: ("aggregate", (("<f4", (2,)),), "nid9"), same]))
    with pytest.raises(FairleadError) as caught:
        common.meet(ranks)
    assert caught.value.findings[0].check == "comm-steps"


def test_error_of_an_array_reports_its_name() -> None:
    ranks = Comm(Recorded([lambda value: (value[0], value[1][:1], value[2]), same]))
    with pytest.raises(FairleadError) as caught:
        common.aggregate(ranks, [np.ones(2), np.ones(3)], ["kernel", "bias"])
    assert caught.value.findings[0].where == "rank 1, array 1 (bias)"
    with pytest.raises(FairleadError, match=r"array 1 \(bias\) cannot be reduced"):
        common.aggregate(Comm(Alone()), [np.ones(2), np.arange(3)], ["kernel", "bias"])


def test_array_without_a_name_keeps_its_number() -> None:
    exc = common.named(fail("array 7 is odd", where="array 0"), ["kernel"])
    assert (exc.findings[0].what, exc.findings[0].where) == ("array 7 is odd", "array 0 (kernel)")


def test_words_of_an_error_are_all_of_its_lines() -> None:
    text = common.words(fail("it stopped", where="here", why="so", remedy="try that"))
    assert text == "it stopped\nwhere: here\nwhy:   so\nnext:  try that"


def test_mean_of_state_keeps_bits_dtypes_and_order() -> None:
    rng = np.random.default_rng(0)
    arrays: list[Any] = [
        rng.normal(size=5).astype(np.float32),
        np.arange(3),
        np.array(True),
        rng.normal(size=(2, 2)).astype(np.float16),
    ]
    got = common.mean_state(Comm(Alone()), arrays, ["a", "b", "c", "d"])
    for given, mean in zip(arrays, got, strict=True):
        assert mean.dtype == given.dtype
        np.testing.assert_array_equal(mean, given)


def test_dtype_that_numpy_does_not_know_travels_as_integers() -> None:
    array = np.zeros(3, np.dtype([("bits", "u2")]))  # as bfloat16 of ml_dtypes, kind V
    assert common.plain(array).dtype == np.uint16
    (back,) = common.broadcast(Comm(Alone()), [array], ["a"], 0)
    assert back.dtype == array.dtype


def test_object_is_broadcast_whole() -> None:
    value = {"lr": 0.1, "betas": (0.9, 0.999)}
    assert common.broadcast_object(Comm(Alone()), value, 0) == value


def test_numbers_of_each_rank() -> None:
    assert common.of_each_rank(Comm(Alone()), 12_345_678) == [12_345_678]
