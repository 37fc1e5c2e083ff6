"""The outcome of a search for something slow: what is slow, with evidence and a remedy, or why nothing can be named."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass


class Kind(enum.Enum):
    """What is slow."""

    COMPUTE = "node-compute"
    LINK = "node-link"
    PAIR = "pair"


class Answer(enum.Enum):
    """The outcome in short."""

    NONE = "none is slow"
    ONE = "one is slow"
    SEVERAL = "several are slow"
    UNKNOWN = "cannot tell"


@dataclass(frozen=True)
class Straggler:
    """One thing that is slow.

    Attributes:
        names: of the host, or of both hosts of a pair.
        times_slower: its time over the usual time.
        evidence: its numbers and those of the others.
        remedy: what to do next.
        ranks: whose processor is slow; for links the ranks that measured it.
    """

    kind: Kind
    names: tuple[str, ...]
    times_slower: float
    evidence: str
    remedy: str
    ranks: tuple[int, ...] = ()


@dataclass(frozen=True)
class Outcome:
    """The outcome of a search; has a JSON form (:mod:`fairlead.base.serde`).

    Attributes:
        reason: a sentence; for UNKNOWN, why there is no answer.
        rounds: number of rounds measured.
        usual_s: the usual time in seconds; None if there is none.
        unsure: what was slow at times, in words; not among the culprits.
    """

    answer: Answer
    culprits: tuple[Straggler, ...]
    reason: str
    rounds: int
    usual_s: float | None = None
    unsure: tuple[str, ...] = ()


def conclude(
    culprits: Sequence[Straggler],
    unsure: Sequence[str],
    clear: str,
    rounds: int,
    usual_s: float | None,
    late: str = "",
) -> Outcome:
    """The outcome of what was found.

    Args:
        clear: the reason given when nothing is slow.
        late: why the search did not finish; "" if it did.
    """
    if culprits:
        answer = Answer.ONE if len(culprits) == 1 else Answer.SEVERAL
        reason = "; ".join(f"{c.kind.value} {' - '.join(c.names)}" for c in culprits)
        reason += f"; {late}, there may be more" if late else ""
    elif late or unsure:
        answer, reason = Answer.UNKNOWN, "; ".join(filter(None, (late, *unsure)))
    else:
        answer, reason = Answer.NONE, clear
    return Outcome(answer, tuple(culprits), reason, rounds, usual_s, tuple(unsure))
