"""From observations to a :class:`Validation`: evidence, verdicts, and what broke."""

from __future__ import annotations

import datetime
import shlex
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from fairlead.base.errors import Finding
from fairlead.perf import stats
from fairlead.perf.judge import bounds, diagnosis, faults, references, verdict
from fairlead.perf.measure.step import Observations, Options
from fairlead.perf.records import history
from fairlead.perf.records.validation import (
    Culprit,
    Evidence,
    Machine,
    Measurement,
    Proved,
    RankSaw,
    State,
    Validation,
    Verdict,
    What,
)
from fairlead.proof.verdict import Proof
from fairlead.swap.model import Plan

# Bytes, from which a link's bandwidth decides, and not its latency or another process's turn.
_LARGE = 1 << 20


@dataclass(frozen=True)
class Circumstances:
    """What is known of a run besides the observations.

    Attributes:
        proofs: of all launches in the container.
        doctor: warnings and errors of ``fairlead doctor``.
        despite_load: judge whatever the load.
        facts: of machine and image.
    """

    plan: Plan
    proofs: Sequence[Proof]
    doctor: Sequence[Finding]
    despite_load: bool
    facts: Mapping[str, str]
    begun: datetime.datetime
    seconds: float


def assess(options: Options, observations: Observations, around: Circumstances) -> Validation:
    """All that was measured, with a verdict for each line.

    Raises:
        FairleadError: exit code 2; the site's references cannot be read.
    """
    plan, site = around.plan, around.plan.site
    known = replace(bounds.of_site(site), memory=observations.memory, disk=observations.disk)
    broken = next((proof for proof in around.proofs if not proof.holds), None)
    shown = broken or max(around.proofs, key=lambda proof: len(proof.ranks), default=None)
    inside = "image" if plan.host is None else "container"
    evidence = Evidence(
        cores=options.cores,
        transports={inside: shown.ranks[0].transport} if shown and shown.ranks else {},
        accepted=site.accepts,
        mpis={
            **observations.mpis,
            **({inside: plan.planned_title} if shown and not broken else {}),
        },
        planned_mpi=plan.planned_title if plan.host is not None else "",
        shares=observations.shares,
        culprits=tuple(sorted(observations.culprits, key=lambda c: -c.times)),
        clocks=observations.clocks,
        findings=(*around.doctor, *observations.findings),
        failed=observations.failed,
        load=load_of(observations.busy),
        despite_load=around.despite_load,
    )
    measurements = tuple(observations.measurements)
    kept = references.load(site.name).by_key
    verdicts = verdict.judge(measurements, kept, known, evidence)
    if link := link_between_two(measurements, verdicts, evidence, observations.hosts):
        evidence = replace(evidence, culprits=(link,))
        verdicts = verdict.judge(measurements, kept, known, evidence)
    return Validation(
        history.new_id(site.name, around.begun),
        around.begun.isoformat(timespec="seconds"),
        around.seconds,
        shlex.join(["fairlead", *sys.argv[1:]]),
        Machine(site.name, observations.hosts, options.cores, dict(around.facts)),
        measurements,
        verdicts,
        evidence,
        known,
        observations.steps,
        observations.steps_of,
        proof_record(shown) if shown else None,
        faults.ranked(
            (*observations.findings, *faults.native_mpi(observations.mpis)), observations.stopped
        ),
    )


def load_of(looks: Sequence[float]) -> float | None:
    """The mean of the busier half of the looks: work that comes and goes counts, a moment does not."""
    busier = sorted(looks)[len(looks) // 2 :]
    return statistics.fmean(busier) if busier else None


def proof_record(proof: Proof) -> Proved:
    """What each rank saw, compared with the plan."""
    return Proved(
        proof.planned_title,
        proof.planned_file,
        tuple(
            RankSaw(
                rank=p.rank,
                host=p.host,
                size=p.size,
                mpi_path=p.mpi_path,
                version=p.version,
                transport=p.transport,
                as_planned=p.size == proof.asked
                and p.mpi_count == 1
                and proof.mapped_as_planned(p),
            )
            for p in proof.ranks
        ),
    )


def link_between_two(
    measurements: Sequence[Measurement],
    verdicts: Sequence[Verdict],
    evidence: Evidence,
    hosts: Sequence[str],
) -> Culprit | None:
    """The link between the only two hosts, if large ping-pongs over it are slow and none is normal; pure.

    Two nodes have one link, which can only be compared with a reference or a bound
    (:mod:`fairlead.perf.measure.straggler_search` compares links where there are three nodes or more). It is named if
    nothing else that was looked at explains its messages: another transport, another MPI, a slow processor.

    Args:
        verdicts: of the measurements, in their order.
        hosts: of the largest launch.
    """
    if len(hosts) != 2 or evidence.culprits:
        return None
    over = [
        (m, v, v.expected)
        for m, v in zip(measurements, verdicts, strict=True)
        if m.what is What.PINGPONG and m.nodes == 2 and (m.bytes or 0) >= _LARGE and v.expected
    ]
    slow = [line for line in over if line[1].state is State.SLOW]
    if not slow or any(v.state is State.NORMAL for _, v, _ in over):
        return None
    if any(diagnosis.transport(m, evidence) or diagnosis.other_mpi(m, evidence) for m, _, _ in over):  # fmt: skip
        return None
    m, v, expected = max(slow, key=lambda line: line[0].bytes or 0)
    name = f"link between {hosts[0]} and {hosts[1]}"
    took, size = stats.summarize(m.samples).median, m.bytes or 0
    numbers = (
        f"{size >> 10} KiB one way took {took * 1e3:.3g} ms, {size / took / 1e6:.3g} MB/s;"
        f" {expected.value * 1e3:.3g} ms by {expected.source}"
    )
    return Culprit(name, numbers, v.times or 1.0, tuple(hosts), 2, "expected")
