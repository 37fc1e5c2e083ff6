"""The report at the end of a run: how long the ranks waited in each team, and for which rank.

The rank that waits least arrives last: the others wait for it. Imported when a run ends.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fairlead.base import comm_waits
from fairlead.comm.core import Timings

if TYPE_CHECKING:
    from fairlead.comm.backend import Backend

Rows = Sequence[tuple[str, Timings]]  # name and timings of each team of a rank


def report(mine: Rows, backend: Backend, environ: Mapping[str, str] = os.environ) -> None:
    """Writes the report on rank 0, unless ``FAIRLEAD_COMM_REPORT=0``, and leaves the figures for the host that has
    launched it. Collective."""
    every = backend.gather((os.uname().nodename, list(mine)), 0)
    if every is None:
        return
    if folder := environ.get(comm_waits.RUN_FOLDER):
        comm_waits.write(Path(folder), waits(every))
    if environ.get("FAIRLEAD_COMM_REPORT") == "0":
        return
    text = "".join(f"fairlead.comm: {line}\n" for line in lines(every))
    sys.stderr.write(text)  # at once: other ranks write too
    sys.stderr.flush()


def waits(every: Sequence[tuple[str, Rows]]) -> tuple[comm_waits.TeamWaits, ...]:
    """The figures of each team that has averaged, from each rank's host name and rows."""
    teams = []
    for rows in zip(*(rows for _, rows in every), strict=True):
        team, first = rows[0]
        if first.calls:
            each = tuple(float(spent.wait_s) for _, spent in rows)
            teams.append(comm_waits.TeamWaits(team, first.calls, first.bytes, each))
    return tuple(teams)


def lines(every: Sequence[tuple[str, Rows]]) -> list[str]:
    """A line for each team, from each rank's host name and rows; none where nothing was averaged.

    >>> slow, quick = (Timings(9, 4 * 10**6, wait_s, aggregates=9) for wait_s in (0.1, 2.1))
    >>> lines([("nid1", [("team 1", quick)]), ("nid2", [("team 1", slow)]), ("nid1", [("team 1", quick)])])
    ['team 1: 9 calls, 4 MB; the 3 ranks waited 0.1 s (least), 2.1 s (median), 2.1 s (most), longest for rank 1 (nid2)']
    """
    if not any(spent.aggregates for _, rows in every for _, spent in rows):
        return []
    report = []
    for team in waits(every):
        each = team.wait_s
        last = each.index(min(each))
        report.append(
            f"{team.team}: {team.calls} calls, {team.bytes / 1e6:.3g} MB; the {len(each)} ranks waited"
            f" {min(each):.2g} s (least), {np.median(each):.2g} s (median), {max(each):.2g} s (most),"
            f" longest for rank {last} ({every[last][0]})"
        )
    return report
