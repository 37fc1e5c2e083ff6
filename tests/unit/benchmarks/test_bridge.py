"""What the benchmark of the bridge makes of its samples."""

from __future__ import annotations

from typing import Any

import pytest
from benchmarks import bridge_projection
from benchmarks.bars import bridge


def _measured(seconds: dict[int, tuple[float, float]]) -> dict[str, Any]:
    rows = [
        {"name": f"SVD of {count:,} rows over MLlib's", "samples": [ours], "baseline": [theirs]}
        for count, (ours, theirs) in seconds.items()
    ]
    return {
        "rows": rows,
        "versions": {"1000 rows: send, s": "0.1", "1000 rows: compute, s": "0.05"},
    }


@pytest.mark.parametrize(
    ("seconds", "rows"),
    [
        ({100: (0.5, 0.1), 1000: (0.6, 1.0)}, 550),  # 0.4 s lost, 0.4 s gained
        ({1000: (0.6, 1.0), 100: (0.5, 0.2)}, 100 + 900 * 3 / 7),
        ({100: (0.1, 0.2)}, 0),
        ({100: (0.3, 0.2)}, float("inf")),
    ],
)
def test_break_even_lies_between_the_sizes_around_it(seconds: Any, rows: float) -> None:
    assert bridge.break_even(_measured(seconds)) == pytest.approx(rows)


def test_projection_grows_with_the_data_and_has_a_band() -> None:
    small, large, read = bridge_projection.CASES
    assert [round(case.bytes / 1e9) for case in bridge_projection.CASES] == [25, 400, 2200]
    middles = []
    for case in (small, large, read):
        low, middle, high = bridge_projection.seconds(case, 0.3e9, 5e9)
        assert 0 < low < middle < high
        middles.append(middle)
    assert middles == sorted(middles)
    faster = bridge_projection.seconds(large, 0.3e9, 10e9)
    assert faster[1] < middles[1]
    lines = bridge_projection.lines(_measured({}), 1000, 1000)
    assert len(lines) == 5 and "2,200 GB" in lines[-1]
