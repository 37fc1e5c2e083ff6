"""What changed between two validations: facts of the machine, and each line with its significance.

Every line that both have is tested by ranks (:func:`stats.rank_sum`), and p corrected for all of them together
(:func:`stats.holm`): among forty lines two would else differ by chance alone. A line has changed when its
corrected p is below 0.05 and its median moved by more than :data:`MATTERS`; one is a matter of proof, the other of
interest.

What this cannot know: repeats within one run are more alike than two runs on a shared machine are, so a difference
may be of the hour and not of the upgrade. Two runs of the same set-up, compared, show how much.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass

from fairlead.perf import stats
from fairlead.perf.judge import diagnosis
from fairlead.perf.records.validation import Measurement, State, Validation

MATTERS = 0.02  # relative; less is a change that no reader would act on


class Change(enum.Enum):
    """What became of a line."""

    SLOWER = "slower"
    FASTER = "faster"
    SAME = "no significant change"
    UNKNOWN = "cannot tell"


@dataclass(frozen=True)
class FactChange:
    """A fact of the machine that differs; empty where one side does not know it."""

    name: str
    before: str
    after: str


@dataclass(frozen=True)
class LineChange:
    """One line that both have.

    Attributes:
        before, after: medians, in ``unit``.
        times: how many times slower it is now; below 1 it is faster.
        low, high: 95 % interval of ``times``; None where there are too few repeats.
        p: of the test, corrected for all lines that were compared; None where it could not be made.
        state_before, state_after: how it stood against what was expected of it.
        why: the reason, if the change is unknown.
    """

    key: str
    unit: str
    before: float
    after: float
    times: float
    low: float | None
    high: float | None
    p: float | None
    change: Change
    state_before: State
    state_after: State
    why: str = ""


@dataclass(frozen=True)
class Comparison:
    """Two validations, the older of interest as ``before``.

    Attributes:
        lines: that both have, in the order of ``after``.
        only_before, only_after: keys of the others.
    """

    before: str
    after: str
    facts: tuple[FactChange, ...]
    lines: tuple[LineChange, ...]
    only_before: tuple[str, ...]
    only_after: tuple[str, ...]

    def of(self, change: Change) -> tuple[LineChange, ...]:
        """The lines with that change, the largest first."""
        lines = [line for line in self.lines if line.change is change]
        return tuple(sorted(lines, key=lambda line: -abs(line.times - 1)))

    def slower_by(self, percent: float) -> tuple[LineChange, ...]:
        """Lines that became significantly slower by more than that."""
        return tuple(x for x in self.of(Change.SLOWER) if x.times > 1 + percent / 100)


def compare(before: Validation, after: Validation) -> Comparison:
    """What changed from one to the other; pure."""
    old, new = ({m.key: m for m in v.measurements} for v in (before, after))
    states = [{v.key: v.state for v in validation.verdicts} for validation in (before, after)]
    both = [key for key in new if key in old]
    loaded = _loaded(before, after)
    untestable = {key: why for key in both if (why := loaded or _untestable(old[key], new[key]))}
    tested = [key for key in both if key not in untestable]
    adjusted = stats.holm([stats.rank_sum(old[k].samples, new[k].samples) for k in tested])
    p = dict(zip(tested, adjusted, strict=True))
    lines = []
    for key in both:
        ratio = _ratio(old[key], new[key])
        change, why = Change.UNKNOWN, untestable.get(key, "")
        if key in p:
            change, why = _judged(old[key], new[key], ratio, p[key], len(tested))
        lines.append(
            LineChange(
                key, new[key].unit, _median(old[key]), _median(new[key]), ratio.value, ratio.low, ratio.high,
                p.get(key), change, states[0].get(key, State.UNKNOWN), states[1].get(key, State.UNKNOWN), why,
            )
        )  # fmt: skip
    return Comparison(
        before.id,
        after.id,
        tuple(_facts(before, after)),
        tuple(lines),
        tuple(key for key in old if key not in new),
        tuple(key for key in new if key not in old),
    )


def _loaded(before: Validation, after: Validation) -> str:
    """Why nothing can be compared: other work was on the node in one of them; empty if not."""
    for when, validation in (("before", before), ("after", after)):
        if busy := diagnosis.unjudgeable(validation.evidence):
            return f"{when}: {busy.text}"
    return ""


def _untestable(old: Measurement, new: Measurement) -> str:
    if old.crowded is not new.crowded:
        return f"ranks shared cores {'before' if old.crowded else 'after'} only"
    if old.wrong or new.wrong:
        return "answers were wrong: how fast they came says nothing"
    fewest = min(len(old.samples), len(new.samples))
    if fewest < stats.FEWEST:
        return f"{fewest} repeats on one side; at least {stats.FEWEST} are needed"
    return ""


def _ratio(old: Measurement, new: Measurement) -> stats.Ratio:
    """How many times slower it is now."""
    if not (old.samples and new.samples):
        return stats.Ratio(1.0, None, None)
    slow, fast = (new, old) if new.smaller_is_better else (old, new)
    return stats.ratio_of_medians(slow.samples, fast.samples)


def _judged(
    old: Measurement, new: Measurement, ratio: stats.Ratio, p: float, lines: int
) -> tuple[Change, str]:
    """The change, and the reason if it is unknown."""
    if p < stats.ALPHA:
        moved = Change.SLOWER if ratio.value > 1 else Change.FASTER
        return (moved if abs(ratio.value - 1) > MATTERS else Change.SAME), ""
    # What is far apart, and was not proved, has not been shown to be the same.
    counts = len(old.samples), len(new.samples)
    if stats.smallest_p(*counts) * lines > stats.ALPHA and _apart(ratio, 0.0):
        return Change.UNKNOWN, (
            f"too few repeats for {lines} lines: {counts[0]} and {counts[1]};"
            f" {stats.repeats_needed(lines)} on each side would do"
        )
    if _apart(ratio, MATTERS):
        why = f"medians are apart, and p {p:.2g} proves nothing of {lines} lines: more repeats would decide"
        return Change.UNKNOWN, why
    return Change.SAME, ""


def _apart(ratio: stats.Ratio, margin: float) -> bool:
    """Whether all of the interval is farther from 1 than that, on either side."""
    if ratio.low is None or ratio.high is None:
        return False
    return ratio.low > 1 + margin or ratio.high < 1 / (1 + margin)


def _median(m: Measurement) -> float:
    return stats.summarize(m.samples).median if m.samples else 0.0


def _facts(before: Validation, after: Validation) -> Iterator[FactChange]:
    old, new = (
        {"site": m.site, "hosts": ", ".join(m.hosts), "cores": str(m.cores)}
        for m in (before.machine, after.machine)
    )
    facts = before.machine.facts, after.machine.facts
    for name in (*old, *sorted({**facts[0], **facts[1]})):
        was, now = ((own | of).get(name, "") for own, of in zip((old, new), facts, strict=True))
        if was != now:
            yield FactChange(name, was, now)
