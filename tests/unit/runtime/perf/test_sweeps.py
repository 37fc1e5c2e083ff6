"""What a sweep sends, what it takes for wrong, and what it measures in which order."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.base.serde import from_json, to_json
from fairlead.perf.measure import message_check as correctness
from fairlead.perf.measure.message_check import Buffers
from fairlead.perf.measure.ranks.messages import Settings, calls_of, points


def filled(operation: str, through: str, size: int, ranks: int, repeat: int, calls: int) -> list[Buffers]:  # fmt: skip
    """Of all ranks, with the right answers in."""
    every = [Buffers(operation, through, size, rank, ranks, f"host{rank}") for rank in range(ranks)]
    for one in every:
        one.fill(repeat, calls)
    for one in every:
        if operation == "allreduce":
            one.take[:] = sum(other.give for other in every)
            if through == "comm":
                one.take /= np.float32(ranks)
        elif operation == "pingpong":
            one.take[:] = every[1 - every.index(one)].give
        else:
            one.take[:] = every[0].take
    return every


cases = st.tuples(
    st.sampled_from(
        [("allreduce", "mpi"), ("allreduce", "comm"), ("broadcast", "mpi"), ("pingpong", "mpi")]
    ),
    st.integers(1, 3000).map(lambda count: 4 * count),
    st.integers(2, 7),
    st.integers(-2, 20),
    st.integers(1, 4),
)


@given(cases)
def test_right_answers_are_right(case: tuple[tuple[str, str], int, int, int, int]) -> None:
    (operation, through), size, ranks, repeat, calls = case
    every = filled(operation, through, size, 2 if operation == "pingpong" else ranks, repeat, calls)
    assert [one.check(repeat, calls) for one in every] == [[]] * len(every)


@given(cases, st.data())
def test_wrong_answers_are_named(
    case: tuple[tuple[str, str], int, int, int, int], data: st.DataObject
) -> None:
    (operation, through), size, ranks, repeat, calls = case
    every = filled(operation, through, size, 2 if operation == "pingpong" else ranks, repeat, calls)
    one = every[-1]
    row, at = data.draw(st.integers(0, calls - 1)), data.draw(st.integers(0, size // 4 - 1))
    fault = data.draw(st.sampled_from(["never came", "NaN", "old repeat", "other call", "short by one"]))  # fmt: skip
    if fault in ("never came", "NaN"):
        one.take[row, at] = -1 if fault == "never came" else np.nan
    elif fault in ("old repeat", "other call"):
        other = (repeat - 1, row) if fault == "old repeat" else (repeat, row + 1)
        stale = filled(operation, through, size, len(every), other[0], other[1] + 1)
        one.take[row] = stale[-1].take[other[1]]
        at = 0
    else:
        scale = len(every) if through == "comm" else 1
        one.take[row, at] -= np.float32(1 / scale)  # the least that a missing part can make
    (wrong,) = one.check(repeat, calls)
    assert (wrong.call, wrong.repeat, wrong.position) == (row, repeat, at)
    assert (wrong.rank, wrong.host) == (len(every) - 1, f"host{len(every) - 1}")
    assert wrong.got != wrong.expected


@pytest.mark.parametrize("ranks", [2, 101, 202, 1009, 16000, 16001, 100_000])
def test_sums_are_exact_in_float32_and_old_ones_differ(ranks: int) -> None:
    period = correctness.period(ranks)
    total = correctness.summed(ranks, 3, 2, period)
    assert total.max() < 2**24 and np.array_equal(total.astype(np.float32).astype(float), total)
    for old in ((2, 2), (3, 1), (3, 3)):
        assert (correctness.summed(ranks, *old, period) != total).mean() > 0.9
    assert (np.roll(total, 1) != total).mean() > 0.9
    if ranks <= 202:
        every = [correctness.values(rank, 3, 2, period) for rank in range(ranks)]
        assert np.array_equal(sum(every), total)


def test_points_are_every_operation_of_each_size_smallest_first() -> None:
    settings = Settings(Path("out"), sizes=(1 << 20, 4), through=("mpi", "comm"))
    found = points(settings, ["a", "a", "b", "b"])
    assert [p.bytes for p in found] == [4] * 6 + [1 << 20] * 6
    assert [(p.operation, p.through, p.ranks) for p in found[:6]] == [
        ("pingpong", "mpi", (0, 1)),
        ("pingpong", "mpi", (0, 2)),
        ("allreduce", "mpi", (0, 1, 2, 3)),
        ("allreduce", "comm", (0, 1, 2, 3)),
        ("broadcast", "mpi", (0, 1, 2, 3)),
        ("broadcast", "comm", (0, 1, 2, 3)),
    ]
    assert points(settings, ["a"]) == []


@given(st.floats(1e-9, 10), st.integers(4, 1 << 28))
def test_samples_have_a_call_and_fit_in_memory(one_s: float, size: int) -> None:
    calls = calls_of(0.02, one_s, size)
    assert calls == 1 or (calls <= 1000 and calls * size <= 8 << 20 and calls * one_s <= 0.0201)
    assert calls >= 1


def test_settings_come_back_from_their_json() -> None:
    settings = Settings(Path("out"), sizes=(4, 8), through=("mpi", "comm"), pairs=((0, 3), (1, 2)))
    assert from_json(Settings, json.loads(json.dumps(to_json(settings)))) == settings
    assert from_json(Settings, {"out": "out"}) == Settings(Path("out"))
