"""The result of ``fairlead bench peers`` as an SVG file that needs nothing else."""

from __future__ import annotations

from fairlead.perf.bench.results import Estimate, PeerResult, PeersBench
from fairlead.perf.draw.charts import BarRow, Figure, bars, linear, picture
from fairlead.perf.draw.wording import count, percent

_WIDTH = 828
_FARTHEST = 1.5  # where the axis ends at the latest; an interval that goes on has no cap there


def peers_picture(bench: PeersBench) -> str:
    """Step efficiency of every peer with its interval, and its samples/s; the best on top.

    Peers that failed or were not run are listed with the reason.
    """
    shown = sorted(
        (p for p in bench.peers if p.efficiency is not None),
        key=lambda p: -p.efficiency.value if p.efficiency else 0.0,
    )
    rows = [_row(peer, peer.efficiency) for peer in shown if peer.efficiency]
    ends = (row.interval[1] if row.interval else row.value for row in rows)
    top = max([1.0, *(min(end, _FARTHEST) for end in ends)]) * 1.04
    rows += [
        BarRow(peer.title, 0.0, f"{peer.outcome.value}: {peer.why[:70]}", "")
        for peer in bench.peers
        if peer.outcome.value in ("failed", "not run")
    ]
    tiny = ", tiny inputs" if bench.size == "tiny" else ""
    title = f"{bench.title}: step efficiency on {count(bench.ranks, 'rank')}{tiny}"
    words = (
        f"a step without communication over one with it; {count(bench.rounds, 'round')}, with the interval of the"
        " median; at the right samples/s"
    )
    svg = bars(rows, linear(0, top, "", percent), title, width=_WIDTH)
    return picture([Figure(title, words, svg)])


def _row(peer: PeerResult, efficiency: Estimate) -> BarRow:
    low, high = efficiency.low, efficiency.high
    return BarRow(
        peer.title + (" (wrong)" if peer.outcome.value == "wrong" else ""),
        efficiency.value,
        percent(efficiency.value),
        "a" if "fairlead" in peer.name else "other",
        None if low is None or high is None else (low, high),
        note=f"{peer.samples_per_s.value:.3g}" if peer.samples_per_s else "",
    )
