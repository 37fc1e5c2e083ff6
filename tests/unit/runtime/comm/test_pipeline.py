"""fairlead.comm.pipeline: what holds of every schedule; real ranks: tests/system/test_parallel.py."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.base.errors import FairleadError
from fairlead.comm.pipeline import SCHEDULES, Move, bubble, most_kept, step_time

schedules = st.sampled_from(sorted(SCHEDULES))
stages = st.integers(1, 12)
microbatches = st.integers(1, 24)
seconds = st.integers(1, 9)


@given(schedules, stages, microbatches)
def test_every_stage_passes_each_microbatch_once_each_way_in_order(
    name: str, p: int, m: int
) -> None:
    for stage in range(p):
        moves = SCHEDULES[name](stage, p, m)
        for backward in (False, True):
            order = [move.microbatch for move in moves if move.backward is backward]
            assert order == list(range(m))
        for at in range(m):
            assert moves.index(Move(False, at)) < moves.index(Move(True, at))


@given(schedules, microbatches, st.lists(st.tuples(seconds, seconds), min_size=1, max_size=12))
def test_no_stage_waits_forever_and_none_is_busy_for_longer_than_the_step(
    name: str, m: int, times: list[tuple[int, int]]
) -> None:
    forward, backward = zip(*times, strict=True)
    step = step_time(
        SCHEDULES[name], len(times), m, lambda stage, move: times[stage][move.backward]
    )
    assert step >= m * max(f + b for f, b in times)
    assert step >= sum(forward) + sum(backward)


@given(schedules, stages, microbatches, seconds, seconds)
def test_equal_stages_are_idle_for_the_share_of_the_formula(
    name: str, p: int, m: int, f: int, b: int
) -> None:
    step = step_time(SCHEDULES[name], p, m, lambda _, move: b if move.backward else f)
    assert 1 - m * (f + b) / step == pytest.approx(bubble(p, m))


@given(stages, microbatches)
def test_gpipe_keeps_all_microbatches_and_1f1b_those_of_the_stages_behind(p: int, m: int) -> None:
    for stage in range(p):
        assert most_kept(SCHEDULES["gpipe"](stage, p, m)) == m
        assert most_kept(SCHEDULES["1f1b"](stage, p, m)) == min(p - stage, m)


def test_stages_that_wait_for_each_other_are_found() -> None:
    def crossed(stage: int, stages: int, microbatches: int) -> tuple[Move, ...]:
        order = [Move(False, 0), Move(True, 0), Move(False, 1), Move(True, 1)]
        return tuple(sorted(order) if stage else order)

    with pytest.raises(ValueError, match="wait for each other"):
        step_time(crossed, 2, 2, lambda stage, move: 1)


@pytest.mark.parametrize(("stage", "stages", "microbatches"), [(2, 2, 1), (-1, 2, 1), (0, 1, 0)])
@pytest.mark.parametrize("name", sorted(SCHEDULES))
def test_a_stage_that_is_not_there_or_no_microbatch_is_refused(
    name: str, stage: int, stages: int, microbatches: int
) -> None:
    with pytest.raises(FairleadError) as caught:
        SCHEDULES[name](stage, stages, microbatches)
    assert caught.value.findings[0].check == "comm-pipeline"
