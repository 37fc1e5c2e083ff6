"""A result as text, and as an SVG file that needs nothing else."""

from __future__ import annotations

from benchmarks.peers.results import Estimate, PeerResult, PeersBench
from fairlead.cli.bench import between
from fairlead.cli.screen import table
from fairlead.perf.draw.charts import BarRow, Figure, bars, linear
from fairlead.perf.draw.svg_file import picture as svg_file
from fairlead.perf.draw.wording import count, percent

_WIDTH = 828
_FARTHEST = 1.5  # where the axis ends at the latest; an interval that goes on has no cap there


def text(result: PeersBench) -> str:
    """A line for each peer, the fastest first; then what failed, with the command to run next."""
    lines = [
        (
            row.title,
            _estimate(row.samples_per_s, "{:.3g}"),
            _estimate(row.efficiency, "{:.0f} %", 100),
            _estimate(row.of_alone, "{:.0f} %", 100),
            _estimate(row.fairlead_times, "{:.2f} x"),
            row.outcome.value if row.outcome.value in ("right", "not run") else row.outcome.value.upper(),
        )
        for row in result.peers
    ]  # fmt: skip
    head = (
        "",
        "samples/s",
        "of no communication",
        f"of {result.ranks} x one process",
        "fairlead is",
        "answers",
    )
    size = "x".join(map(str, result.image))
    title = (
        f"{result.title} on {size}, {result.batch} samples a rank, {result.weights:,} weights,"
        f" {count(result.ranks, 'rank')}, {count(result.rounds, 'round')}"
    )
    notes = []
    if result.size == "tiny":
        notes.append("tiny inputs: this shows that everything works, not how fast it is")
    if any(run and run.crowded for row in result.peers for run in row.launches):
        notes.append("ranks shared cores: they take turns as well as communicate")
    notes.append("[] is the interval of the median over rounds, from five rounds on")
    for row in result.peers:
        if row.why:
            notes.append(f"{row.outcome.value}: {row.title}: {row.why}\n  next: {row.next}")
    return "\n".join([title, "", table(lines, head, width=0), "", *notes])


def _estimate(estimate: Estimate | None, form: str, scale: float = 1.0) -> str:
    if estimate is None:
        return ""
    unit = form.partition("}")[2]
    number = form.removesuffix(unit)
    low = None if estimate.low is None else estimate.low * scale
    high = None if estimate.high is None else estimate.high * scale
    return number.format(estimate.value * scale) + unit + between(low, high, number)


def picture(bench: PeersBench) -> str:
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
    return svg_file([Figure(title, words, svg)])


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
