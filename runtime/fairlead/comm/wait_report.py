"""The report at the end of a run: how long the ranks waited in each team, and for which rank.

The rank that waits least arrives last: the others wait for it. Imported when a run ends.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from fairlead.comm.backend import Backend


class Waited(NamedTuple):
    """What a rank did in a team.

    Attributes:
        aggregates: of ``calls``, those that made means of arrays.
        bytes: of arrays that it handed over.
        wait_s: seconds until every rank had arrived, over all calls.
    """

    team: str
    calls: int
    aggregates: int
    bytes: int
    wait_s: float


def report(
    mine: Sequence[Waited], backend: Backend, environ: Mapping[str, str] = os.environ
) -> None:
    """Writes the report on rank 0, unless ``FAIRLEAD_COMM_REPORT=0``. Collective."""
    every = backend.gather((os.uname().nodename, list(mine)), 0)
    if every is None or environ.get("FAIRLEAD_COMM_REPORT") == "0":
        return
    text = "".join(f"fairlead.comm: {line}\n" for line in lines(every))
    sys.stderr.write(text)  # at once: other ranks write too
    sys.stderr.flush()


def lines(every: Sequence[tuple[str, Sequence[Waited]]]) -> list[str]:
    """A line a team, of what each rank has handed in with its host's name; none where nothing was averaged.

    >>> slow, quick = Waited("team 1", 9, 9, 4 * 10**6, 0.1), Waited("team 1", 9, 9, 4 * 10**6, 2.1)
    >>> lines([("nid1", [quick]), ("nid2", [slow]), ("nid1", [quick])])
    ['team 1: 9 calls, 4 MB; the 3 ranks waited 0.1 s (least), 2.1 s (median), 2.1 s (most), longest for rank 1 (nid2)']
    """
    if not any(row.aggregates for _, rows in every for row in rows):
        return []
    report = []
    for rows in zip(*(rows for _, rows in every), strict=True):
        waits = [row.wait_s for row in rows]
        last = waits.index(min(waits))
        if rows[0].calls:
            report.append(
                f"{rows[0].team}: {rows[0].calls} calls, {rows[0].bytes / 1e6:.3g} MB; the {len(rows)} ranks waited"
                f" {min(waits):.2g} s (least), {np.median(waits):.2g} s (median), {max(waits):.2g} s (most),"
                f" longest for rank {last} ({every[last][0]})"
            )
    return report
