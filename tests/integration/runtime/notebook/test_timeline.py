"""The figure of ``%ranks timeline``."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

from fairlead.notebook import timeline
from fairlead.trace.events import Group
from fairlead.trace.parts import Launch, Part, Span

MS = 10**6


def group(ranks: int, late: int, *more: Span) -> Group:
    """Ten collectives of 1 ms each, every 10 ms, for which ``late`` comes 4 ms after the others."""
    spans = {
        rank: [
            Span("all", "average", "call", (n * 10 + (4 if rank == late else 0)) * MS, (n * 10 + 5) * MS,
                 agreed=(n * 10 + 4) * MS, call=n)
            for n in range(1, 11)
        ] + list(more)
        for rank in range(ranks)
    }  # fmt: skip
    parts = {
        rank: [Part(rank, ranks, 1, f"node{rank}", "clock", 0, tuple(its))]
        for rank, its in spans.items()
    }
    return Group(Launch(0), parts, spans)


def test_shares_and_the_late_rank_are_in_the_text() -> None:
    drawn = timeline.draw(group(3, late=2), 0, 100 * MS)
    assert drawn is not None
    head, *ranks, late = drawn.text.splitlines()
    assert head == "3 ranks, 0.1 s"
    assert ranks[0] == "rank 0: 36% waiting for ranks, 9% moving data"
    assert ranks[2] == "rank 2: 9% moving data"
    assert late == (
        "waited for longest: rank 2 (node2), last in 9 of 9 collectives, 100% of all waiting"
    )


def test_parts_of_steps_count_instead_of_their_collectives() -> None:
    step = (
        Span("steps", "forward and backward", "phase", 0, 60 * MS),
        Span("steps", "input", "phase", 60 * MS, 70 * MS),
        Span("steps", "idle", "phase", 70 * MS, 100 * MS),
        Span("main", "init", "python", 0, 100 * MS),
    )
    drawn = timeline.draw(group(2, 1, *step), 0, 100 * MS)
    assert drawn is not None
    assert "rank 0: 60% computing, 30% waiting for ranks, 10% input" in drawn.text.splitlines()
    assert "your spans" not in drawn.svg


def test_figure_is_a_document_of_its_own_with_a_row_a_rank() -> None:
    drawn = timeline.draw(group(4, late=1), 0, 100 * MS)
    assert drawn is not None
    root = ET.fromstring(drawn.svg)
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    texts = [text.text for text in root.iter("{http://www.w3.org/2000/svg}text")]
    assert [t for t in texts if t and t.startswith("rank ")] == [f"rank {n}" for n in range(4)]
    assert "time in ms" in texts and "waiting for ranks" in texts


def test_of_many_ranks_those_that_wait_least_and_most_are_drawn() -> None:
    drawn = timeline.draw(group(300, late=123), 0, 100 * MS)
    assert drawn is not None
    shown = [int(n) for n in re.findall(r">rank (\d+)<", drawn.svg)]
    assert len(shown) == timeline.MOST and 123 in shown and shown == sorted(shown)
    assert "268 ranks that neither wait most nor least are left out" in drawn.text
    assert len(drawn.svg) < 60_000


def test_many_short_spans_make_a_small_figure() -> None:
    short = [
        Span("all", "average", "call", n * 1000, n * 1000 + 500, agreed=n * 1000 + 100, call=n)
        for n in range(100_000)
    ]
    part = Part(0, 1, 1, "node", "clock", 0, tuple(short))
    drawn = timeline.draw(Group(Launch(0), {0: [part]}, {0: short}), 0, 100 * MS)
    assert drawn is not None and len(drawn.svg) < 20_000


def test_time_without_a_record_is_not_drawn() -> None:
    assert timeline.draw(group(2, 0), 200 * MS, 300 * MS) is None
    assert timeline.window(group(2, 0), 0.02) == (85 * MS, 105 * MS)
