"""A run's plan, proof and training as one :class:`fairlead.perf.draw.run_report.Report`."""

from __future__ import annotations

import datetime
import os
import platform

from fairlead import __version__
from fairlead.base.errors import Finding, Severity
from fairlead.ml.train.result import TrainResult
from fairlead.perf.draw.run_report import Fact, PlanRow, ProofRow, Report
from fairlead.perf.measure.processors import machine_facts
from fairlead.proof.verdict import Proof
from fairlead.session.model import Prepared
from fairlead.swap.model import Plan

_KINDS = {"replace": "library", "alias": "alias", "bind": "bind", "env": "variable"}


def compose(
    title: str,
    prepared: Prepared,
    proof: Proof,
    training: TrainResult | None,
    repeat: tuple[str, ...],
) -> Report:
    """The report of a run that was proved.

    Args:
        training: None when nothing was trained.
        repeat: commands that repeat it.
    """
    shown = {Severity.WARNING, Severity.ERROR}
    findings: tuple[Finding, ...] = tuple(f for f in prepared.findings if f.severity in shown)
    return Report(
        title=title,
        created=datetime.datetime.now(datetime.UTC).astimezone().isoformat(timespec="seconds"),
        ranks=proof.asked,
        repeat=repeat,
        proof=_proof(proof),
        plan=_plan(prepared.plan),
        environment=_environment(prepared),
        digests=digests(prepared),
        findings=(*findings, *proof.findings, *(training.findings if training else ())),
        training=training,
    )


def _proof(proof: Proof) -> tuple[ProofRow, ...]:
    return tuple(
        ProofRow(
            rank=p.rank,
            host=p.host,
            size=p.size,
            mpi_path=p.mpi_path,
            mpi_version=p.version,
            transport=p.transport,
            inode=p.mpi_inode,
            planned_ok=proof.mapped_as_planned(p),
            compared="path and inode" if proof.planned_inode else "path",
            mpi_count=p.mpi_count,
        )
        for p in proof.ranks
    )


def _plan(plan: Plan) -> tuple[PlanRow, ...]:
    rows = []
    for line in plan.lines:
        if line.kind not in _KINDS:
            continue
        outside, _, inside = line.what.partition(" -> ")
        if line.kind == "replace" or line.kind == "alias":
            outside, inside = inside, outside
        elif line.kind == "env":
            inside, _, outside = line.what.partition("=")
        rows.append(PlanRow(_KINDS[line.kind], inside, outside, line.why))
    return tuple(rows)


def _environment(prepared: Prepared) -> tuple[Fact, ...]:
    plan = prepared.plan
    return (
        Fact("machine", f"{platform.node()}, {platform.machine()}, {os.cpu_count()} cores"),
        Fact("kernel", platform.release()),
        Fact("site", f"{plan.site.name} ({prepared.site_reason})"),
        Fact("engine", f"{plan.engine.kind} at {plan.engine.path}"),
        Fact("launcher", plan.launcher.title),
        Fact(
            "image", f"{plan.facts.os}, glibc {plan.facts.glibc}, Python {plan.facts.python or '-'}"
        ),
        Fact("fairlead", __version__),
    )


def facts(prepared: Prepared) -> dict[str, str]:
    """What explains a difference between two measurements: machine, MPI, engine, launcher, and what the image is."""
    plan = prepared.plan
    return {
        **machine_facts(),
        "MPI": plan.planned_title,
        "engine": f"{plan.engine.kind} {plan.engine.version}".strip(),
        "launcher": plan.launcher.path,
        **{fact.name: fact.value for fact in digests(prepared)},
    }


def digests(prepared: Prepared) -> tuple[Fact, ...]:
    """Identifies this image, its lock, fairlead in it and the staged MPI."""
    record = prepared.image.record
    rows = [Fact("image digest", prepared.image.digest)] if prepared.image.digest else []
    names = (("lock_sha256", "lock sha256"), ("wheel_sha256", "fairlead wheel sha256"))
    rows += [Fact(title, str(record[key])) for key, title in names if record.get(key)]
    if prepared.plan.staging:
        rows.append(Fact("staged host MPI", prepared.plan.staging.key))
    return tuple(rows)
