"""``%ranks timeline``: what each rank did during a cell, as a figure in the notebook and in words."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fairlead.perf.draw.charts import Figure, LaneRow, lanes, linear
from fairlead.perf.draw.svg_file import picture
from fairlead.trace.events import Group, last_to_come
from fairlead.trace.parts import Span

MOST = 32  # ranks that are drawn
_WIDTH = 880
_LEGEND = (
    ("a", "computing"),
    ("c", "waiting for ranks"),
    ("b", "moving data"),
    ("e", "input"),
    ("d", "your spans"),
)
_PHASES = {"input": "e", "idle": "c", "exposed communication": "b"}
_START = {"init", "start Python and import"}
Piece = tuple[float, float, str]  # ns of the wall clock, and a class of the legend


@dataclass(frozen=True)
class Drawn:
    """A timeline in both forms."""

    svg: str
    text: str


def window(group: Group, seconds: float) -> tuple[int, int]:
    """The last ``seconds`` of what was recorded, in ns of the wall clock."""
    end = max((span.end for spans in group.spans.values() for span in spans), default=0)
    return end - round(seconds * 1e9), end


def draw(group: Group, begin: int, end: int) -> Drawn | None:
    """What ranks did between two times; None where nothing was recorded in between."""
    rows = {rank: _lanes(spans, begin, end) for rank, spans in group.spans.items()}
    rows = {rank: lanes for rank, lanes in rows.items() if any(lanes)}
    if not rows:
        return None
    shares = {rank: _shares(lanes, end - begin) for rank, lanes in rows.items()}
    shown = sorted(_drawn(shares))
    seconds = (end - begin) / 1e9
    unit, scale = ("ms", 1e6) if seconds < 2 else ("s", 1e9)
    axis = linear(0.0, (end - begin) / scale, f"time in {unit}")
    here = {style for rank in shown for lane in rows[rank] for _, _, style in lane}
    placed = [
        LaneRow(
            f"rank {rank}",
            tuple(
                tuple(((b - begin) / scale, (e - begin) / scale, style) for b, e, style in lane)
                for lane in rows[rank]
            ),
        )
        for rank in shown
    ]
    left_out = len(rows) - len(shown)
    words = f"{len(rows)} ranks, {seconds:.3g} s" + (
        f"; {left_out} ranks that neither wait most nor least are left out" if left_out else ""
    )
    legend = tuple(entry for entry in _LEGEND if entry[0] in here)
    svg = picture(
        [Figure("What the ranks did", words, lanes(placed, axis, words, _WIDTH), legend)], columns=1
    )
    text = [words, *(f"rank {rank}: {_listed(shares[rank])}" for rank in shown)]
    return Drawn(svg, "\n".join([*text, *_late(group, begin, end)]))


def _lanes(spans: Sequence[Span], begin: int, end: int) -> tuple[tuple[Piece, ...], ...]:
    """A rank's steps and own spans, and its collectives."""
    lanes: tuple[list[Piece], list[Piece]] = ([], [])
    for span in spans:
        for lane, low, high, style in _pieces(span):
            if (low := max(low, begin)) < (high := min(high, end)):
                lanes[lane].append((low, high, style))
    return tuple(tuple(lane) for lane in lanes if lane)


def _pieces(span: Span) -> Iterator[tuple[int, int, int, str]]:
    if span.kind == "phase":
        yield 0, span.begin, span.end, _PHASES.get(span.name, "a")
    elif span.kind == "python" and span.name not in _START:
        yield 0, span.begin, span.end, "d"
    elif span.kind == "call":
        moves = span.agreed or span.end
        yield 1, span.begin, moves, "c"
        yield 1, moves, span.end, "b"


def _shares(lanes: tuple[tuple[Piece, ...], ...], total: float) -> dict[str, float]:
    """Shares of the time, by class: of steps where there are some, or of collectives."""
    spent: defaultdict[str, float] = defaultdict(float)
    by_steps = any(style != "d" for _, _, style in lanes[0])
    for lane in lanes[:1] if by_steps else lanes:
        for begin, end, style in lane:
            spent[style] += (end - begin) / total
    return spent


def _listed(shares: dict[str, float]) -> str:
    return ", ".join(
        f"{percent(shares[style])} {name}" for style, name in _LEGEND if style in shares
    )


def percent(share: float) -> str:
    """
    >>> percent(0.004), percent(0.25)
    ('<1%', '25%')
    """
    return f"{share:.0%}" if share == 0 or share >= 0.01 else "<1%"


def _drawn(shares: dict[int, dict[str, float]]) -> list[int]:
    """The ranks that wait least, for whom the others wait, and those that wait most."""
    by_wait = sorted(shares, key=lambda rank: shares[rank].get("c", 0.0))
    half = MOST // 2
    return by_wait if len(by_wait) <= MOST else [*by_wait[:half], *by_wait[-half:]]


def _late(group: Group, begin: int, end: int) -> Iterator[str]:
    """Which rank the others waited for longest."""
    last = last_to_come(group)
    lost: Counter[int] = Counter()
    calls: Counter[int] = Counter()
    counted: set[tuple[str, int]] = set()
    for spans in group.spans.values():
        for span in spans:
            if span.kind != "call" or not begin <= span.end <= end:
                continue
            came, who = last[span.thread, span.call]
            lost[who] += max(came - span.begin, 0)
            if (span.thread, span.call) not in counted:
                counted.add((span.thread, span.call))
                calls[who] += 1
    if not lost or not (total := sum(lost.values())):
        return
    [(rank, its)] = lost.most_common(1)
    host = group.ranks[rank][0].host
    yield (
        f"waited for longest: rank {rank} ({host}), last in {calls[rank]} of {len(counted)} collectives, "
        f"{its / total:.0%} of all waiting"
    )
