"""What a search for something slow comes to: who it is, with evidence and remedy, or that nobody or nothing can be named."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any


class Kind(enum.Enum):
    """What of a node is slow."""

    COMPUTE = "node-compute"
    LINK = "node-link"
    PAIR = "pair"


class Answer(enum.Enum):
    NONE = "none is slow"
    ONE = "one is slow"
    SEVERAL = "several are slow"
    UNKNOWN = "cannot tell"


@dataclass(frozen=True)
class Culprit:
    """One thing that is slow.

    Attributes:
        names: of the host, or of both hosts of a pair.
        times_slower: its time over what is usual.
        evidence: its numbers against the others'.
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
    """What a search came to.

    Attributes:
        reason: in words; for UNKNOWN why nothing can be told.
        rounds: that were measured.
        usual_s: seconds that are usual; None where nothing is.
        unsure: what was slow at times, in words; it is not among the culprits.
    """

    answer: Answer
    culprits: tuple[Culprit, ...]
    reason: str
    rounds: int
    usual_s: float | None = None
    unsure: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        value = asdict(self)
        value["answer"] = self.answer.value
        for row in value["culprits"]:
            row["kind"] = row["kind"].value
        return value

    @staticmethod
    def of_json(value: Mapping[str, Any]) -> Outcome:
        """The outcome that :meth:`to_json` gave."""
        culprits = (
            Culprit(
                Kind(row["kind"]),
                tuple(row["names"]),
                row["times_slower"],
                row["evidence"],
                row["remedy"],
                tuple(row["ranks"]),
            )
            for row in value["culprits"]
        )
        return Outcome(
            Answer(value["answer"]),
            tuple(culprits),
            value["reason"],
            value["rounds"],
            value["usual_s"],
            tuple(value["unsure"]),
        )


def conclude(
    culprits: Sequence[Culprit],
    unsure: Sequence[str],
    clear: str,
    rounds: int,
    usual_s: float | None,
    late: str = "",
) -> Outcome:
    """An outcome from what was found.

    Args:
        clear: the reason of "none is slow".
        late: why the search did not end; "" when it did.
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
