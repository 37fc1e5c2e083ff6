"""What broke in a validation, or is wrong outside its lines, in the order in which a verdict names it.

Broken comes before slow, and of what broke the most fundamental: where ranks ran another MPI than planned, nothing else
that was measured is of what was asked for; wrong answers are worth nothing, however they came about; a rank that was killed
explains a training that has no result; and so on in :data:`_ORDER`. :func:`fairlead.perf.judge.verdict.headline` begins
with the first.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace

from fairlead.base.errors import Finding, Severity, error

# By a finding's check. What is in none of them comes after all.
# The proof did not hold: ranks in the image ran another MPI than planned, or did not find each other.
PROOF = frozenset(
    {"planned-file", "one-mpi", "version", "world-size", "ring", "transport", "shared-memory", "comm-world-size"}
)  # fmt: skip
ANSWERS = frozenset({"validate-wrong", "weights-differ"})
_ORDER = (
    PROOF | {"validate-mpi"},
    ANSWERS,
    frozenset({"rank-died", "rank-failed", "comm-peer-lost", "aborted"}),
    frozenset({"loss-not-finite", "comm-nonfinite"}),
    frozenset({"data-damaged", "data-form", "data-missing", "data-too-small", "train-skipped"}),
    frozenset({"validate-checkpoint", "output-unwritable", "checkpoint-write", "run-folder"}),
    frozenset({"validate-clock"}),
)


def ranked(findings: Iterable[Finding], stopped: Collection[Finding] = ()) -> tuple[Finding, ...]:
    """Errors before warnings, and of each the most fundamental first; ``stopped``, by which the proof did not hold and
    the validation ended, before all.

    What several steps have met is one fault, reported where it was met first, with the number of others. Who is slow is no
    fault of its own: a culprit (:class:`fairlead.perf.records.validation.Culprit`) explains lines.
    """
    met: dict[tuple[str, str, str], list[Finding]] = {}
    for finding in findings:
        if (
            finding.severity in (Severity.ERROR, Severity.WARNING)
            and finding.check != "validate-slow"
        ):
            met.setdefault((finding.check, finding.what, finding.why), []).append(finding)
    ended = {f.check for f in stopped}
    return tuple(sorted(map(_once, met.values()), key=lambda f: (f.check not in ended, _place(f))))


def native_mpi(mpis: Mapping[str, str]) -> Iterator[Finding]:
    """That ranks without a container ran the MPI of those in it; else the two cannot be compared.

    Args:
        mpis: what ranks called their MPI, by way.
    """
    native, inside = mpis.get("native"), mpis.get("container")
    if native and inside and native != inside:
        yield error("validate-mpi", native=native, inside=inside)


def words(fault: Finding) -> str:
    """What and where, as a part of a sentence."""
    complete = not fault.where or fault.where in fault.what
    return fault.what if complete else f"{fault.what} ({fault.where})"


def sentence(fault: Finding) -> str:
    """The same as a sentence of its own, without the full stop."""
    text = words(fault)
    return text[:1].upper() + text[1:]


def _once(findings: list[Finding]) -> Finding:
    first, others = findings[0], len({f.where for f in findings}) - 1
    if not others:
        return first
    return replace(
        first, where=f"{first.where}; {others} other step{'s' if others > 1 else ''} too"
    )


def _place(fault: Finding) -> tuple[bool, int]:
    places = (i for i, checks in enumerate(_ORDER) if fault.check in checks)
    return fault.severity is not Severity.ERROR, next(places, len(_ORDER))
