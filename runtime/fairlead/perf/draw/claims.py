"""What a report claims, each claim with the evidence it rests on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fairlead.base.errors import Severity
from fairlead.ml.train.result import TrainResult, score_name
from fairlead.perf.draw.run_report import Report


@dataclass(frozen=True)
class Claim:
    """One sentence, whether it holds, and why one may believe it.

    Attributes:
        needed: the run proves nothing when it does not hold; else that is worth a look only.
    """

    holds: bool
    what: str
    evidence: str
    needed: bool = True


@dataclass(frozen=True)
class Verdict:
    """All claims, and the line above them.

    Attributes:
        word: ``ok``, ``warning`` or ``error``.
    """

    word: Severity
    headline: str
    claims: tuple[Claim, ...]


def judge(report: Report) -> Verdict:
    """The verdict: an error when a claim about the launch or the weights fails, or a finding is
    one; a warning when only learning fell short."""
    claims = (*_launch(report), *(_training(report.training) if report.training else ()))
    failed = [claim for claim in claims if not claim.holds]
    severities = {finding.severity for finding in report.findings}
    if Severity.ERROR in severities or any(claim.needed for claim in failed):
        word = Severity.ERROR
    elif failed or Severity.WARNING in severities:
        word = Severity.WARNING
    else:
        word = Severity.OK
    return Verdict(word, _headline(report, word, failed), claims)


def _headline(report: Report, word: Severity, failed: list[Claim]) -> str:
    if any(claim.needed for claim in failed):
        return "Not proved: see what failed below."
    if word is Severity.ERROR:
        return next(f.what for f in report.findings if f.severity is word) + "."
    versions = sorted({row.mpi_version.replace(" Version:", "") for row in report.proof})
    library = versions[0] if versions else "one MPI"
    if word is Severity.WARNING:
        return f"It ran on {library}, with something to look at."
    ranks = f"{report.ranks} ranks" if report.ranks > 1 else "1 rank"
    return f"It ran on {library}, on {ranks}, and that is proved."


def _launch(report: Report) -> Iterator[Claim]:
    rows = report.proof
    if not rows:
        return
    sizes = {row.size for row in rows}
    yield Claim(
        sizes == {report.ranks} and len(rows) == report.ranks,
        "All ranks found each other",
        f"{len(rows)} ranks reported a world of {_listed(sizes)}; asked for {report.ranks}",
    )
    planned = sum(row.planned_ok and row.mpi_count == 1 for row in rows)
    yield Claim(
        planned == len(rows),
        "Every rank runs on the planned MPI library, and no other",
        f"{planned} of {len(rows)} ranks map the planned file and no other MPI, compared by"
        f" {_listed({row.compared for row in rows})}",
    )
    versions = {row.mpi_version for row in rows}
    yield Claim(
        len(versions) == 1,
        "All ranks run the same MPI version",
        f"MPI_Get_library_version: {_listed(versions)}",
    )


def _training(training: TrainResult) -> Iterator[Claim]:
    weights = training.all.weights
    final = {row.final for row in weights}
    started = {row.initial for row in weights}
    yield Claim(
        len(final) == 1,
        "All ranks hold bit-identical weights",
        f"one sha256 on {len(weights)} ranks after {len(training.all.loss)} steps;"
        f" {len(started)} different ones before the broadcast",
    )
    task, found, linear = training.task, training.scores, training.baseline.scores
    yield Claim(
        all(
            gate.passed(found[gate.metric]) and gate.better(found[gate.metric], linear[gate.metric])
            for gate in training.gates
        ),
        "It learnt what a linear model cannot see",
        "; ".join(
            f"{score_name(gate.metric)} {found[gate.metric]:.3f} on {training.baseline.val:,} held-out {task.sample}s,"
            f" linear model {linear[gate.metric]:.3f}, wanted {gate.words}"
            for gate in training.gates
        ),
        needed=False,
    )


def _listed(values: set[int] | set[str]) -> str:
    return ", ".join(sorted(map(str, values)))
