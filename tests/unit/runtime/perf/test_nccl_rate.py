"""NCCL's rate next to what profiles quote."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from fairlead.base.errors import Severity
from fairlead.perf.measure.steps.sums import against_profile
from fairlead.site.choose import load_site


def _results(seconds: float, hosts: tuple[str, ...]) -> list[dict[str, object]]:
    rows = [{"bytes": 8192, "seconds": 1.0}, {"bytes": 128 << 20, "seconds": seconds}]
    return [{"rank": rank, "host": host, "rows": rows} for rank, host in enumerate(hosts)]


@pytest.fixture(scope="module")
def quoted():
    return load_site("alps").performance


@pytest.mark.parametrize(
    ("seconds", "severity", "part"),
    # 8 ranks: bus bandwidth is 2 * 7/8 of the size over the time
    [(0.0020, Severity.INFO, "96%"), (0.0040, Severity.WARNING, "48%")],
)
def test_rate_between_nodes_is_compared_with_the_profile(quoted, seconds, severity, part) -> None:
    [found] = against_profile(_results(seconds, ("n1",) * 4 + ("n2",) * 4), quoted)
    assert found.severity is severity and part in found.what and "122.6" in found.what
    assert "8 GH200 on 2 nodes" in found.where


def test_rate_within_a_node_or_of_another_unit_is_compared_with_nothing(quoted) -> None:
    assert against_profile(_results(0.002, ("n1",) * 8), quoted) == []
    strange = [replace(r, unit="GiB/s") for r in quoted]
    assert against_profile(_results(0.002, ("n1", "n2")), strange) == []
    assert any(re.search("nccl-tests", r.what) for r in quoted)
