"""A rank's steps by the clock, and the parts of each: what the loop measures, in one place."""

from __future__ import annotations

from dataclasses import dataclass, field

from fairlead.ml.train.model import StepTimes

# The parts between a step's borders, where the framework shows the end of the forward pass and where it does not.
PARTS = ("input", "forward", "backward", "idle", "exposed communication", "update")
FUSED = ("input", "forward and backward", "idle", "exposed communication", "update")


@dataclass(frozen=True)
class Marks:
    """The borders of one step's parts, ns of ``time.perf_counter_ns``, in ascending order.

    Attributes:
        start, read: between them, waiting for the batch.
        forward: when the forward pass was over; None where one function computes both passes.
        computed: when the gradients were there.
        waited: ``computed`` and the time in the mean that was spent waiting for the slowest rank. That lies at the
            beginning of the call, or nearly so.
        averaged: when the means were there.
        end: when the optimizer had made its update.
    """

    start: int
    read: int
    forward: int | None
    computed: int
    waited: int
    averaged: int
    end: int

    @property
    def parts(self) -> tuple[str, ...]:
        """Names of what lies between the borders."""
        return FUSED if self.forward is None else PARTS

    @property
    def borders(self) -> tuple[int, ...]:
        """One more than there are parts."""
        known = (self.start, self.read, self.forward, self.computed, self.waited, self.averaged)
        return (*(at for at in known if at is not None), self.end)


@dataclass
class Times:
    """This rank's steps of one launch."""

    marks: list[Marks] = field(default_factory=list)

    @property
    def whole(self) -> list[float]:
        """Seconds of each step."""
        return [(mark.end - mark.start) / 1e9 for mark in self.marks]

    def of(self, rank: int, host: str, forward_s: float) -> StepTimes:
        """As it is reported to other ranks, to the microsecond.

        Args:
            forward_s: of a forward pass that was measured apart; used for steps that do not show their own.
        """
        apart = round(forward_s * 1e9)
        parts: list[list[float]] = [[] for _ in range(6)]
        for m in self.marks:
            between = min(m.read + apart, m.computed) if m.forward is None else m.forward
            spans = (
                m.read - m.start, between - m.read, m.computed - between, m.averaged - m.waited,
                m.end - m.averaged, m.waited - m.computed,
            )  # fmt: skip
            for seconds, ns in zip(parts, spans, strict=True):
                seconds.append(round(ns / 1e9, 6))
        return StepTimes(rank, host, *map(tuple, parts))
