"""The reverse question: what local batch, or what delay, keeps an efficiency, and up to how many nodes.

Each is asked of every draw of a projection, so an answer has the same band as the curve. Whatever no draw's
number reaches is infinite: "none does".
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from fairlead.perf.projection.fitting import Band, Draw, Projection, band
from fairlead.perf.projection.step_model import step

MOST_BATCH = 65536
MOST_NODES = 1 << 20


@dataclass(frozen=True)
class Answers:
    """What keeps ``keep`` of the efficiency.

    Attributes:
        nodes: for which the batch is asked.
        batch: the smallest local batch; infinite where none does; None where runs of one batch do not show it.
        delayed_batch: the same with delayed gradients.
        synchronous_to, delayed_to: the most nodes up to which it is kept; 0 where not even one node keeps it.
        holds: share of the draws in which it is kept at ``nodes`` as the runs are: synchronous and delayed.
    """

    keep: float
    nodes: int
    batch: Band | None
    delayed_batch: Band | None
    synchronous_to: Band
    delayed_to: Band
    holds: tuple[float, float]


def answer(projection: Projection, nodes: int, keep: float) -> Answers:
    """
    Args:
        keep: efficiency, above 0 and below 1.
    """
    draws = projection.draws

    def kept(draw: Draw, nodes: int, delayed: bool, batch: int | None = None) -> bool:
        work = draw.work if batch is None else draw.work.at(batch)
        return step(work, draw.fabric, draw.spread, nodes, delayed).efficiency >= keep

    def batch(delayed: bool) -> Band | None:
        """The smallest: more computing hides more, so efficiency grows with it."""
        if draws[0].work.sample_s is None:
            return None
        return band([_first(partial(kept, draw, nodes, delayed), MOST_BATCH) for draw in draws])

    def reach(delayed: bool) -> Band:
        """The most nodes: efficiency falls with their number. Beyond a million, infinite."""

        def lost(draw: Draw, nodes: int) -> bool:
            return not kept(draw, nodes, delayed)

        return band([_first(partial(lost, draw), MOST_NODES) - 1 for draw in draws])

    def holds(delayed: bool) -> float:
        return sum(kept(draw, nodes, delayed) for draw in draws) / len(draws)

    both = (holds(False), holds(True))
    return Answers(keep, nodes, batch(False), batch(True), reach(False), reach(True), both)


def _first(true: Callable[[int], bool], most: int) -> float:
    """The smallest number from 1 on of which it is true, it being true of all larger ones; infinite if none."""
    place = bisect.bisect_left(range(1, most + 1), True, key=true)
    return float(place + 1) if place < most else math.inf


def sentences(answers: Answers) -> list[str]:
    """The answers in words."""
    share = f"{answers.keep:.0%}"
    lines = [
        f"synchronous steps keep {share} up to {nodes_words(answers.synchronous_to)}",
        f"delayed by one step, up to {nodes_words(answers.delayed_to)}",
    ]
    reach, delayed_reach = answers.synchronous_to.value, answers.delayed_to.value
    nodes = f"{answers.nodes:,} nodes"
    if reach >= answers.nodes:
        lines.append(f"on {nodes} no delay is needed")
    elif delayed_reach <= reach:
        lines.append("delay does not keep it any longer")
    else:
        kept = f"{nodes} then keep it"
        outcome = kept if delayed_reach >= answers.nodes else f"on {nodes} not even that keeps it"
        lines.append(f"from {reach + 1:,.0f} nodes on it takes the delay; {outcome}")
    if answers.batch is None or answers.delayed_batch is None:
        lines.append(
            "which local batch would keep it is unknown: all runs have the same; add runs with another"
        )
    else:
        lines.append(
            f"on {nodes}, the smallest local batch that keeps {share}: {batch_words(answers.batch)}; "
            f"delayed: {batch_words(answers.delayed_batch)}"
        )
    return lines


def batch_words(band: Band) -> str:
    """``batch 4 (3 to 6)``."""
    return _words(band, lambda n: "none does" if math.isinf(n) else f"batch {n:,.0f}")


def nodes_words(band: Band) -> str:
    """``700 nodes (350 to 1,500)``."""

    def word(n: float) -> str:
        return "more than a million nodes" if math.isinf(n) else f"{n:,.0f} node{'s' * (n != 1)}"

    return _words(band, word)


def _words(band: Band, word: Callable[[float], str]) -> str:
    if band.low == band.value == band.high:
        return word(band.value)
    low, high = (word(n) if math.isinf(n) else f"{n:,.0f}" for n in (band.low, band.high))
    return f"{word(band.value)} ({low} to {high})"
