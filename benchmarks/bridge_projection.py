"""What the bridge would take at the sizes that Alchemist's runs were published for: a projection, never measured.

Alchemist (arXiv:1805.11800 and its slides) had 22 nodes of Spark and 8 of MPI on a Cray XC for a rank-20 SVD of up to
400 GB, and 30 nodes for a rank-20 PCA of 2.2 TB that the ranks read themselves. Here each number that is not known is
drawn: a core's rates as measured in `make bench`, how much of them is left where all cores of a node work, the link.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fairlead.perf.projection.cost_model import Costs, Layout, allreduce_s
from fairlead.perf.projection.fabrics import Known, network

_DRAWS = 4000
_CORES = 32  # of a node of Cori's Haswell partition
_WIDTH = 30  # k = 20 and 10 more
_READS = 4  # of the matrix, by a randomised SVD with two power steps
_SHARED = Known(0.6, 1.6, "a core's part of its rate alone where 32 share memory: assumed")
_DISK = Known(1.0e9, 3.0, "bytes/s that a node reads of a parallel file system: assumed")


@dataclass(frozen=True)
class Case:
    """One published run.

    Attributes:
        ranks_on: nodes of the MPI side.
        sent: from Spark; otherwise the ranks read it.
    """

    title: str
    rows: int
    columns: int
    ranks_on: int
    sent: bool = True

    @property
    def bytes(self) -> int:
        return self.rows * self.columns * 8


CASES = (
    Case("SVD, 312.5 K x 10 K, 22 + 8 nodes", 312_500, 10_000, 8),
    Case("SVD, 5 M x 10 K, 22 + 8 nodes", 5_000_000, 10_000, 8),
    Case("PCA, 27.5 M x 10 K, read by 30 nodes", 27_500_000, 10_000, 30, sent=False),
)


def seconds(case: Case, send_rate: float, flops: float) -> tuple[float, float, float]:
    """Lower end, middle and upper end of what 95 % of the draws take.

    Args:
        send_rate: bytes/s that a receiving core takes.
        flops: of a core, in the products of an SVD.
    """
    aries, random = network("aries"), np.random.default_rng(0)
    assert aries.bandwidth is not None and aries.latency_s is not None
    taken = []
    for _ in range(_DRAWS):
        link, shared = aries.bandwidth.draw(random), min(_SHARED.draw(random), 1.0)
        rate = min(_CORES * send_rate * shared, link) if case.sent else _DISK.draw(random)
        costs = Costs(1e-6, 1 / 2e9, aries.latency_s.draw(random), 1.0)
        layout = Layout(case.ranks_on, _CORES, _CORES, link)
        sums = _READS * allreduce_s(costs, layout, case.columns * _WIDTH * 8)
        work = 4 * _READS * case.rows * case.columns * _WIDTH
        computing = work / (case.ranks_on * _CORES * flops * shared)
        taken.append(case.bytes / (case.ranks_on * rate) + computing + sums)
    low, middle, high = np.quantile(taken, (0.025, 0.5, 0.975))
    return float(low), float(middle), float(high)


def lines(result: Mapping[str, Any], rows: int, columns: int) -> list[str]:
    """A table, from the phases of the largest measured size."""
    notes = result["versions"]
    sending, computing = (float(notes[f"{rows} rows: {phase}, s"]) for phase in ("send", "compute"))
    send_rate = rows * columns * 8 / sending / 2
    flops = 4 * _READS * rows * columns * _WIDTH / computing / 2
    table = ["| projected | bytes | seconds, 95 % of the draws |", "| --- | ---: | --- |"]
    for case in CASES:
        low, middle, high = seconds(case, send_rate, flops)
        table.append(
            f"| {case.title} | {case.bytes / 1e9:,.0f} GB | {middle:,.0f} [{low:,.0f}, {high:,.0f}] |"
        )
    return table
