"""The benchmark of the bridge runs with little to do: both sides of every row agree, and its page can be made."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest
from benchmarks import result
from benchmarks.bars import bridge

pytestmark = pytest.mark.full


def test_every_side_computes_the_same_and_is_shown() -> None:
    effort = bridge.Effort(rows=4000, sizes={100: 1}, svd=1, flat=1, pca=1, passes=2, alone=2)
    measured = bridge.measure(effort)
    names = [row.name for row in measured.rows]
    assert len(names) == len(set(names)) == 10, names
    assert measured.versions["PCA of 100,000 columns, sparse: bridge"].endswith(" s")
    document = json.loads(
        json.dumps({**asdict(measured), "machine": result.machine(), "measured": "2000-01-01"})
    )
    for row, source in zip(document["rows"], measured.rows, strict=True):
        row["met"] = source.met
    benchmark = bridge.BENCHMARKS[0]
    assert benchmark.table and benchmark.picture
    table = benchmark.table(document)
    assert "| 4,000 |" in table and "**projection**" in table
    assert benchmark.picture(document).startswith("<svg")


def test_sending_is_held_against_a_pass_and_memory_against_the_share() -> None:
    passes, memory = bridge.measure_transfer(bridge.Effort(rows=4000, passes=2)).rows
    assert passes.bar == 1.3 and len(passes.samples) == 2 and min(passes.samples) > 0
    assert len(memory.samples) == 2 and min(memory.samples) > 0
