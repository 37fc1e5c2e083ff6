"""What a run's report holds, as plain frozen values, and how plan, proof and training become one.

``report.json`` is exactly a :class:`Report`.
"""

from __future__ import annotations

import datetime
import os
import platform
from collections.abc import Iterable
from dataclasses import dataclass

from fairlead import __version__
from fairlead.base.comm_waits import TeamWaits
from fairlead.base.errors import Finding, Severity
from fairlead.bridge.timings import Operation, Timings
from fairlead.ml.train.result import TrainResult
from fairlead.perf.measure.processors import machine_facts
from fairlead.proof.verdict import Proof
from fairlead.session.model import Prepared
from fairlead.site.model import Site
from fairlead.swap.model import Plan

# Lines of a plan that are shown, and what they are called.
_KINDS = {"replace": "library", "alias": "alias", "bind": "bind", "env": "variable"}

ENDED = "was ended with the others"


@dataclass(frozen=True)
class ProofRow:
    """What one rank saw of its MPI.

    Attributes:
        size: of the world this rank is in.
        mpi_path: the one MPI library mapped into it.
        mpi_version: first line of ``MPI_Get_library_version``.
        inode: of that file.
        planned_ok: the mapped file is the planned one.
        compared: by what: ``path and inode``, or ``path`` for the image's own MPI.
        mpi_count: MPI libraries mapped into it.
    """

    rank: int
    host: str
    size: int
    mpi_path: str
    mpi_version: str
    transport: str
    inode: int
    planned_ok: bool
    compared: str
    mpi_count: int


@dataclass(frozen=True)
class PlanRow:
    """One thing that the launch changes in the image.

    Attributes:
        kind: ``library``, ``alias``, ``bind`` or ``variable``.
        inside: what the image has or sees, e.g. ``/opt/mpich/lib/libmpi.so.12 (MPICH 3.4.3)``.
        outside: what it gets from the host.
        why: why that is needed, or allowed.
    """

    kind: str
    inside: str
    outside: str
    why: str


@dataclass(frozen=True)
class Fact:
    """A name and a value, for the tables of environment and digests."""

    name: str
    value: str


@dataclass(frozen=True)
class RankEnd:
    """How one rank ended.

    Attributes:
        host: "" where none is known.
        code: its exit code; None where it has left none.
        how: the same in words.
        seconds: from the launch to its end.
        log: the file of its output; "" where the terminal had it.
    """

    rank: str
    host: str
    code: int | None
    how: str
    seconds: float | None = None
    log: str = ""


@dataclass(frozen=True)
class CommandRun:
    """A command that was launched as it is.

    Attributes:
        command: in the container.
        line: what was launched; "" where nothing was.
        exit_code: of ``fairlead run``.
        seconds: from the launch to its end.
        ends: of every rank, in order; empty where nothing was launched.
        waits: of each team of ``fairlead.comm``, where the command used it and came to its end.
    """

    command: str
    line: str
    exit_code: int
    seconds: float | None
    ends: tuple[RankEnd, ...] = ()
    waits: tuple[TeamWaits, ...] = ()


@dataclass(frozen=True)
class BridgeUse:
    """What clients have done in a session of the bridge.

    Attributes:
        cores: of all ranks.
        paid: for each run that MLlib could do, whether sending its matrix paid.
        estimates: what MLlib's times are estimated from.
    """

    cores: int
    operations: tuple[Operation, ...]
    paid: tuple[str, ...] = ()
    estimates: tuple[str, ...] = ()


@dataclass(frozen=True)
class Report:
    """One run.

    Attributes:
        title: e.g. ``HEP-CNN in tensorflow on 2 ranks``.
        created: ISO 8601 with time zone.
        ranks: how many were asked for.
        repeat: commands that repeat the run.
        findings: of every stage; an error makes the verdict a failure.
        training: of a bundled model.
        run: of any other command.
        bridge: what clients have done, where it is a session of the bridge.
    """

    title: str
    created: str
    ranks: int
    repeat: tuple[str, ...]
    proof: tuple[ProofRow, ...]
    plan: tuple[PlanRow, ...]
    environment: tuple[Fact, ...]
    digests: tuple[Fact, ...]
    findings: tuple[Finding, ...] = ()
    training: TrainResult | None = None
    run: CommandRun | None = None
    bridge: BridgeUse | None = None


def compose(
    title: str,
    prepared: Prepared,
    proof: Proof | None,
    repeat: tuple[str, ...],
    *,
    training: TrainResult | None = None,
    run: CommandRun | None = None,
    findings: Iterable[Finding] = (),
) -> Report:
    """The report of a run.

    Args:
        proof: None where nothing was proved.
        repeat: commands that repeat it.
        training: of a bundled model.
        run: of any other command.
        findings: besides those of the plan, the proof and the training.
    """
    every = (
        *findings,
        *prepared.findings,
        *(proof.findings if proof else ()),
        *(training.findings if training else ()),
    )
    shown = [f for f in every if f.severity in (Severity.WARNING, Severity.ERROR)]
    return Report(
        title=title,
        created=datetime.datetime.now(datetime.UTC).astimezone().isoformat(timespec="seconds"),
        ranks=proof.asked if proof else prepared.plan.request.ranks,
        repeat=repeat,
        proof=_proof(proof) if proof else (),
        plan=_plan(prepared.plan),
        environment=_environment(prepared),
        digests=digests(prepared),
        findings=tuple(dict.fromkeys(shown)),
        training=training,
        run=run,
    )


def bridge_use(done: Timings) -> BridgeUse:
    """The same for a report."""
    paid = done.paid
    sources = sorted({f"{payment.called}: {payment.source}" for payment in paid if payment.source})
    return BridgeUse(done.cores, done.operations, tuple(map(str, paid)), tuple(sources))


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
        inside, _, outside = line.what.partition("=" if line.kind == "env" else " -> ")
        if line.kind == "bind":
            inside, outside = outside, inside
        rows.append(PlanRow(_KINDS[line.kind], inside, outside, line.why))
    return tuple(rows)


def _environment(prepared: Prepared) -> tuple[Fact, ...]:
    plan, image = prepared.plan, prepared.plan.facts
    values = {
        "machine": f"{platform.node()}, {platform.machine()}, {os.cpu_count()} cores",
        "kernel": platform.release(),
        "site": f"{plan.site.name} ({prepared.site_reason})",
        "engine": f"{plan.engine.kind} at {plan.engine.path}",
        "MPI": f"{plan.planned_title} as {plan.planned_file}",
        "fabric": _fabric(plan.site),
        "launcher": plan.launcher.title,
        "image": f"{image.os}, glibc {image.glibc}, Python {image.python or '-'}",
        "fairlead": __version__,
    }
    return tuple(Fact(name, value) for name, value in values.items())


def _fabric(site: Site) -> str:
    accepts = ", ".join(site.accepts)
    return f"{site.fabric.kind or 'unknown'}; the proof accepts {accepts or 'any transport'}"


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
    record, staging = prepared.image.record, prepared.plan.staging
    values = {
        "image digest": prepared.image.digest,
        "lock sha256": record.get("lock_sha256"),
        "fairlead wheel sha256": record.get("wheel_sha256"),
        "staged host MPI": staging.key if staging else None,
    }
    return tuple(Fact(name, str(value)) for name, value in values.items() if value)
