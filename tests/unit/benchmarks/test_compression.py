"""Time to a score: what of several courses becomes a row."""

from __future__ import annotations

from benchmarks.bars.compression import Course, rows_of


def course(*scores: float) -> Course:
    return Course(tuple(10 * (i + 1) for i in range(len(scores))), scores)


WHOLE = [course(0.60, 0.70, 0.80), course(0.50, 0.78, 0.79)]


def test_score_is_reached_at_the_first_mark_that_has_it() -> None:
    assert WHOLE[0].until(0.7) == 20 and WHOLE[0].until(0.81) is None


def test_rows_are_a_step_the_time_to_the_score_and_what_is_lost() -> None:
    rows, notes = rows_of(
        {"none": [2.0, 2.0], "fp16": [1.0, 1.0]},
        {"none": WHOLE, "fp16": [course(0.6, 0.8, 0.8)] * 2},
    )
    step, until, lost = rows
    assert (step.value, step.bar) == (0.5, None)
    assert until.samples == (20.0, 20.0) and until.baseline == (60.0, 60.0) and until.value == 1 / 3
    assert abs(lost.value + 0.005) < 1e-9 and lost.met and notes == {}


def test_seed_that_never_comes_to_the_score_is_counted_and_has_no_time() -> None:
    rows, notes = rows_of(
        {"none": [2.0], "powersgd": [1.0]},
        {"none": WHOLE, "powersgd": [course(0.5, 0.5, 0.5), course(0.5, 0.8, 0.8)]},
    )
    assert [row.samples for row in rows if "until" in row.name] == [(20.0,)]
    assert notes == {
        "PowerSGD of rank 2": "1 of 2 seeds have not reached it, and count for no time"
    }
    lost = next(row for row in rows if "lost" in row.name)
    assert lost.bar is not None and lost.value > lost.bar
