"""How a rank's start is taken apart."""

from __future__ import annotations

import pytest
from benchmarks.bars import first_step


def test_parts_of_a_start_add_up_to_the_end_of_its_first_step() -> None:
    second = 1_000_000_000
    rank = {
        "begun": 2 * second,
        "parts": [
            ("start MPI", 3 * second, 4 * second),
            ("load the framework", 4 * second, 9 * second),
            ("read", 5 * second, 6 * second),  # another thread's
            ("step 1: update", 9 * second, 10 * second),
            ("train", 9 * second, 14 * second),
            *((f"step {n}: update", (8 + n) * second, (9 + n) * second) for n in (2, 3, 4)),
        ],
    }
    start = first_step._start(rank, second)
    assert (start.first, start.fourth) == (9, 12)
    assert sum(start.parts.values()) == pytest.approx(start.first)
    assert start.parts == {
        "launcher, engine, Python": 1,
        "other": 1,
        "start MPI": 1,
        "load the framework": 5,
        "step 1: update": 1,
    }
