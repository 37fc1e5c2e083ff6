"""Each measurement compared with what is expected of it: normal, slow, wrong, or why that is unknown.

What is expected comes from the first of these that there is:

1. the site's own reference, saved before (:mod:`fairlead.perf.judge.references`);
2. what the hardware allows (:mod:`fairlead.perf.judge.bounds`), and for a training on several ranks the speed of the
   fewest in the same run, as often as there are more;
3. for a line of a container, the same without it: at most 2 % slower, and what the native line itself wavers.

A container's line that is normal by 1 or 2 must be so by 3 too, which is the sharper one: it was measured in the
same hour on the same nodes.

A measurement is slow when the whole 95 % interval of its median is beyond what is normal, and normal when its
median is within. In between there is no verdict, and more repeats are the remedy. While other work is on the node,
there is none on any line: it may have slowed the line, or what the line is compared with.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

from fairlead.base.errors import ExitCode, Severity
from fairlead.perf import stats
from fairlead.perf.judge import bounds, diagnosis, faults
from fairlead.perf.judge.references import Kept
from fairlead.perf.records.validation import (
    Basis,
    Bounds,
    Culprit,
    Evidence,
    Expected,
    Measurement,
    State,
    Validation,
    Verdict,
    Way,
    What,
)

SCALING = 1.25  # a training on more ranks reaches 80 % of ideal, or something is in its way; judged
_ALSO = 3  # culprits that a headline names with the slowest
NATIVE_BAR = 1.02  # container over native, as in benchmarks/
_CLOCK = 0.98  # of a bound: to be faster by more than what a clock gets wrong is not possible
_ROUGH = 1.1  # how near a bound a sound machine comes is judged: a little beyond is not yet slow
_AGAIN = "the same command with more repeats"


def judge(
    measurements: Sequence[Measurement],
    references: Mapping[str, Kept],
    known: Bounds,
    evidence: Evidence,
) -> tuple[Verdict, ...]:
    """One verdict a measurement, in their order; pure.

    Args:
        references: the site's own, by a measurement's key.
        known: what the hardware allows.
    """
    twins = {without_way(m): m for m in measurements if m.way is Way.NATIVE}
    made = []
    for m in measurements:
        bases = [b for b in measurements if _scales(b, m)]
        base = min(bases, key=lambda b: b.ranks, default=None)
        made.append(_judged(m, twins, base, references, known, evidence))
    return tuple(made)


def worst(verdicts: Sequence[Verdict]) -> State:
    """Of all lines: wrong before slow before normal; unknown if there is no verdict on any."""
    states = {v.state for v in verdicts}
    order = (State.WRONG, State.SLOW, State.NORMAL, State.UNKNOWN)
    return next((s for s in order if s in states), State.UNKNOWN)


def _judged(
    m: Measurement,
    twins: Mapping[Measurement, Measurement],
    base: Measurement | None,
    references: Mapping[str, Kept],
    known: Bounds,
    evidence: Evidence,
) -> Verdict:
    if m.wrong:
        return _wrong(m, evidence)
    if m.samples and (busy := diagnosis.unjudgeable(evidence)):
        return _unknown(m, busy.text, busy.remedy)
    if not all(0 < value < math.inf for value in m.samples):
        return _unknown(m, "a repeat took no time, or forever: the clock is at fault")
    if not m.samples and (why := evidence.failed.get(m.key)):
        return _unknown(m, f"it could not be measured: {faults.words(why)}", why.remedy)
    if len(m.samples) < stats.FEWEST:
        repeats = f"{len(m.samples)} repeat{'s' if len(m.samples) != 1 else ''}"
        return _unknown(m, f"{repeats}; at least {stats.FEWEST} are needed", _AGAIN)
    # An engine takes its time to start whatever the machine: that is not slowness.
    comparable = m.way is Way.CONTAINER and m.what is not What.START
    twin = twins.get(without_way(m)) if comparable else None
    native = _by_native(twin) if twin else None
    expected = _by_reference(m, references) or _by_bound(m, base, known)
    if isinstance(expected, Expected):
        first = _compared(m, expected, evidence)
        if first.state is State.NORMAL and native:
            second = _compared(m, native, evidence)
            return second if second.state is State.SLOW else first
        return first
    if native:
        return _compared(m, native, evidence)
    return _unknown(m, f"no reference is kept for it, and {expected}", _save(m))


def _wrong(m: Measurement, evidence: Evidence) -> Verdict:
    words = (
        f"{m.wrong} answer{'s were' if m.wrong > 1 else ' was'} wrong in {len(m.samples)} repeats"
    )
    remedy = "fairlead doctor; do not trust results of this machine"
    if other_mpi := diagnosis.other_mpi(m, evidence):
        words, remedy = f"{words}; {other_mpi.text}", other_mpi.remedy
    return Verdict(m.key, State.WRONG, None, None, words, remedy)


def _save(m: Measurement) -> str:
    remedy = "fairlead validate --save-reference, once this machine is known to be well"
    return "" if m.crowded else remedy


def _unknown(
    m: Measurement, why: str, remedy: str = "", expected: Expected | None = None
) -> Verdict:
    return Verdict(m.key, State.UNKNOWN, expected, None, why, remedy)


def without_way(m: Measurement) -> Measurement:
    """What a container's line and its native twin have in common. The launcher is that of the ranks in both."""
    return dataclasses.replace(m, way=Way.NATIVE, samples=(), wrong=0, hosts=())


def _by_reference(m: Measurement, references: Mapping[str, Kept]) -> Expected | None:
    kept = references.get(m.key)
    if kept is None or kept.crowded is not m.crowded:
        return None  # ranks that share cores are no yardstick for others, nor these for them
    source = f"this site's reference of {kept.when[:10]}, {kept.repeats} repeats in {kept.run}"
    return Expected(kept.median, kept.low, kept.high, Basis.REFERENCE, source)


def _by_bound(m: Measurement, base: Measurement | None, known: Bounds) -> Expected | str:
    if m.crowded:
        return "ranks that share cores are compared with no bound"
    if base:
        return _scaled(m, base)
    bound = bounds.limit(m, known)
    if isinstance(bound, str):
        return bound
    times = bounds.REACH[m.what]
    near = bound.value * times if m.smaller_is_better else bound.value / times
    low, high = sorted((bound.value, near))
    return Expected(near, low, high, Basis.BOUND, f"{times:g} × the bound: {bound.source}")


def _scales(base: Measurement, m: Measurement) -> bool:
    """Whether ``m`` is the training of ``base`` on more ranks."""
    a, b = ((x.what, x.way, x.subject, x.launcher) for x in (base, m))
    sound = len(base.samples) >= stats.FEWEST and not (base.wrong or base.crowded)
    return m.what is What.TRAIN and a == b and sound and base.ranks < m.ranks


def _scaled(m: Measurement, base: Measurement) -> Expected:
    median, low, high = (m.ranks / base.ranks * value for value in stats.interval(base.samples))
    source = f"{100 / SCALING:.0f} % of the speed of {base.ranks} rank{'s' if base.ranks > 1 else ''}, as often as there are more"
    return Expected(median / SCALING, low / SCALING, high, Basis.BOUND, source)


def _by_native(twin: Measurement) -> Expected | None:
    if len(twin.samples) < stats.FEWEST or twin.wrong:
        return None
    median, low, high = stats.interval(twin.samples)
    source = f"the same without a container, {len(twin.samples)} repeats; 2 % more passes"
    return Expected(median, low / NATIVE_BAR, high * NATIVE_BAR, Basis.NATIVE, source)


def _compared(m: Measurement, expected: Expected, evidence: Evidence) -> Verdict:
    """With an expectation; there are enough samples."""
    time = m.smaller_is_better
    median, low, high = stats.interval(m.samples)
    best, worst = (low, high) if time else (high, low)
    fastest, slowest = (expected.low, expected.high) if time else (expected.high, expected.low)
    times = median / expected.value if time else expected.value / median

    def slower(a: float, b: float) -> bool:
        return a > b if time else a < b

    # A training may well gain from the caches of more cores.
    physical = expected.basis is Basis.BOUND and m.what is not What.TRAIN
    if physical and slower(fastest * _CLOCK if time else fastest / _CLOCK, median):
        why = f"faster than what should be possible ({expected.source}): that number does not belong to this machine"
        return _unknown(m, why, "fix the profile: fairlead site check", expected)
    if slower(best, slowest):
        if expected.basis is Basis.BOUND and times < _ROUGH:
            why = f"{times:.2f} × slower than {expected.source}: too close for so rough a bound"
            return _unknown(m, why, _save(m), expected)
        reason = diagnosis.reason(m, evidence)
        return Verdict(m.key, State.SLOW, expected, times, reason.text, reason.remedy)
    if slower(median, slowest):
        half_width = 100 * (high - low) / 2 / median
        why = (
            f"its median is {times:.2f} × slower than expected, and its interval reaches what is normal"
            f" ({half_width:.0f} % on either side)"
        )
        if busy := diagnosis.busy(m, evidence):
            return _unknown(m, f"{why}; {busy.text}", busy.remedy, expected)
        return _unknown(m, why, _AGAIN, expected)
    why = remedy = ""
    if slower(fastest, worst) and expected.basis is Basis.REFERENCE:
        why = f"{1 / times:.2f} × faster than the reference: something has changed for the better"
        remedy = "fairlead validate --save-reference"
    return Verdict(m.key, State.NORMAL, expected, times, why, remedy)


def exit_code(validation: Validation) -> ExitCode:
    """What ``fairlead validate`` ends with: what is most fundamental decides.

    122 where ranks ran another MPI than planned, or did not find each other; 125 where answers were wrong; 1 where
    something broke; 125 where a line is slow and :func:`conclusive`; else 0.
    """
    state = worst(validation.verdicts)
    errors = [f for f in validation.faults if f.severity is Severity.ERROR]
    if any(f.check in faults.PROOF for f in errors):
        return ExitCode.PROOF_FAILED
    if errors and state is not State.WRONG:
        return ExitCode.FAILED
    below = state is State.WRONG or (state is State.SLOW and conclusive(validation.verdicts))
    return ExitCode.BELOW_REFERENCE if below else ExitCode.DONE


def conclusive(verdicts: Sequence[Verdict]) -> bool:
    """Whether slow lines say that the machine is slow.

    A bound is rough. Where only bounds say so, and most lines could not be judged, the machine is not known to be slow.
    """
    slow = [v for v in verdicts if v.state is State.SLOW]
    firm = any(v.expected and v.expected.basis is not Basis.BOUND for v in slow)
    decided = sum(v.state is not State.UNKNOWN for v in verdicts)
    return firm or (bool(slow) and 2 * decided >= len(verdicts))


def headline(validation: Validation) -> str:
    """One sentence on all of it, by what is most fundamental: what broke, wrong answers, what is slow; a second one
    on the first warning."""
    errors = [f for f in validation.faults if f.severity is Severity.ERROR]
    warnings = [f for f in validation.faults if f.severity is not Severity.ERROR]
    state, sentences = worst(validation.verdicts), [_of_lines(validation)]
    if errors and not (state is State.WRONG and errors[0].check in faults.ANSWERS):
        more = f", and {len(errors) - 1} more broke" if len(errors) > 1 else ""
        broke = f"{faults.sentence(errors[0])}{more}."
        sentences = [broke, *(sentences if state in (State.WRONG, State.SLOW) else ())]
    sentences += [f"{faults.sentence(fault)}." for fault in warnings[:1]]
    return " ".join(sentences)


def _of_lines(validation: Validation) -> str:
    """What there is to say of lines and of who is slow."""
    verdicts = validation.verdicts
    count = {s: sum(v.state is s for v in verdicts) for s in State}
    state = worst(verdicts)
    of = f"of {len(verdicts)} line{'s' if len(verdicts) != 1 else ''}"
    slowest = max(validation.evidence.culprits, key=lambda c: c.times, default=None)
    if state is State.WRONG:
        return f"Wrong answers in {count[state]} {of}: do not trust this machine's results."
    if state is State.SLOW:
        most = max((v for v in verdicts if v.state is state), key=lambda v: v.times or 0)
        are = "is slow," if count[state] == 1 else "are slow, the worst"
        times = most.times or 1
        factor = f"{times:.1f}" if times >= 1.15 else f"{times:.2f}"
        slow = f"{count[state]} {of} {are} {factor} × slower than it should be"
        if not conclusive(verdicts):
            decided = len(verdicts) - count[State.UNKNOWN]
            bound = "by a rough bound; --save-reference gives the others something to compare with"
            slow = f"{decided} {of} could be judged: {slow.replace(f' {of}', '')} {bound}"
        if slowest:  # and where it explains nothing that is slow, that is two things
            explains = any(
                v.state is state and v.because.startswith(slowest.name) for v in verdicts
            )
            also = _also(validation.evidence.culprits, slowest)
            return f"{_named(slowest)}{':' if explains else '; besides,'} {slow}.{also}"
        reason = "" if most.because == diagnosis.UNEXPLAINED else most.because.partition(":")[0]
        return f"{slow}{', most likely because ' if reason else ''}{reason}."
    if state is State.UNKNOWN and (busy := diagnosis.unjudgeable(validation.evidence)):
        return f"No verdict: {busy.text}."
    if slowest:
        also = _also(validation.evidence.culprits, slowest)
        return f"{_named(slowest)}, though no line is slow.{also}"
    if state is State.NORMAL:
        rest = count[State.UNKNOWN]
        rest_words = f"; {rest} cannot be judged" if rest else ""
        verb = "is" if count[state] == 1 else "are"
        return f"As fast as it should be: {count[state]} {of} {verb} normal{rest_words}."
    return "No verdict yet: there is nothing to compare these measurements with."


def _also(culprits: Sequence[Culprit], named: Culprit) -> str:
    """A sentence on the others, the slowest first; empty where there are none."""
    others = sorted((c for c in culprits if c is not named), key=lambda c: -c.times)
    shown = [f"{c.name} ({c.times:.2g} ×)" for c in others[:_ALSO]]
    if len(others) > _ALSO:
        shown.append(f"{len(others) - _ALSO} more")
    return f" Also slow: {', '.join(shown)}." if shown else ""


def _named(culprit: Culprit) -> str:
    name = culprit.name[:1].upper() + culprit.name[1:]
    return f"{name} is {culprit.times:.2g} × as slow as {culprit.against}"
