"""How plans, findings and proofs look, in words and as JSON. Several verbs show them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

import click

from fairlead.base.errors import ExitCode, Finding, Severity
from fairlead.base.serde import to_json
from fairlead.cli.screen import answer, finding_lines, table
from fairlead.image.signature import Verified
from fairlead.nccl.model import NcclPlan
from fairlead.proof.verdict import Proof, RankProof
from fairlead.rendezvous.worlds import World
from fairlead.session.gradients import CommChoice
from fairlead.session.model import Prepared
from fairlead.swap.model import Line, Plan

_MANY = 32  # ranks that a screen has room for
_TITLES = {
    "replace": "Replaces",
    "keep": "Keeps",
    "carry": "Brings below the image's MPI",
    "network": "NCCL's network",
    "stage": "Staged from the host",
    "alias": "Aliases",
    "isolate": "Kept apart",
    "bind": "Binds",
    "env": "Variables in the container",
    "rank": "Variables of each rank, for frameworks",
    "behind": "The image's own, kept behind them",
    "undone": "The image's own, undone",
    "unset": "Not passed on",
    "engine": "Engine options",
    "stage-data": "Data on the nodes",
    "start": "How a program starts",
    "launch": "Launcher",
    "left out": "Left out",
}


def plan_text(prepared: Prepared) -> str:
    """The plan in paragraphs: each line with its reason, and the fact behind it."""
    plan = prepared.plan
    parts = [
        f"Image  {plan.image}\n       {plan.facts.os or 'unknown system'}, glibc {plan.facts.glibc}, Python {plan.facts.python or '-'}",
        f"Site   {plan.site.name} ({prepared.site_reason}): {plan.site.summary}",
    ]
    for kind, title in _TITLES.items():
        lines = [line for line in plan.lines if line.kind == kind]
        if lines:
            parts.append(click.style(title, bold=True) + "\n" + "\n".join(map(line_text, lines)))
    return "\n\n".join(parts)


def line_text(line: Line) -> str:
    """What, why, and the fact behind it."""
    text = f"  {line.what}\n      {line.why}"
    return text + (f"\n      {line.fact}" if line.fact else "")


def findings_text(findings: Iterable[Finding]) -> str:
    """One line for what is well, four for what is not."""
    colours = {Severity.OK: "green", Severity.INFO: "cyan"}
    parts = []
    for finding in findings:
        if colour := colours.get(finding.severity):
            label = click.style(f"{finding.severity.value:<6}", fg=colour, bold=True)
            parts.append(f"{label}{finding.what}" + (f" ({finding.why})" if finding.why else ""))
        else:
            parts.append("\n" + finding_lines(finding) + "\n")
    return "\n".join(parts)


def proof_text(proof: Proof) -> str:
    """The proof, one row a rank; of many, a row for neighbours that saw the same."""
    rows = []
    many = len(proof.ranks) > _MANY

    def observed(p: RankProof) -> tuple[str, ...]:
        return (str(p.size), p.host, p.mpi_path, str(p.mpi_inode), p.version, p.transport)

    def same(p: RankProof) -> tuple[object, ...]:
        return observed(p) if many else (p.rank, p.host)

    for _, group in itertools.groupby(proof.ranks, same):
        first, *others = group
        label = f"{first.rank}-{others[-1].rank}" if others else str(first.rank)
        rows.append((label, *observed(first)))
    return table(rows, ("rank", "of", "host", "MPI mapped", "inode", "it says", "transport"))


def proof_line(proof: Proof) -> str:
    """The proof in one line."""
    first = proof.ranks[0]
    hosts = len({p.node for p in proof.ranks})
    inode = f", inode {first.mpi_inode} as staged" if proof.planned_inode else ""
    return (
        f"proved on {len(proof.ranks)} rank{'s' if len(proof.ranks) > 1 else ''}, {hosts} "
        f"node{'s' if hosts > 1 else ''}: {first.version or proof.planned_title} from {first.mpi_path}{inode}; {first.transport} "
        f"({proof.seconds:.2f} s)"
    )


def world_line(world: World) -> str:
    """A framework's world in one line."""
    count = len(world.hosts)
    by = f", {world.by}" if world.by else ""
    return f"one world of {world.size}, {count} node{'s' if count > 1 else ''}: {world.title}{by}"


def swap_line(plan: Plan) -> str:
    """Which MPI runs, in one line, and which network plugin NCCL gets, if it gets one."""
    swaps = (line.what for line in plan.lines if line.kind in ("replace", "keep"))
    swap = next(swaps, plan.planned_title)
    if plan.carried_staging:
        swap += (
            f"; {', '.join(carried.library.title for carried in plan.carried)} of the host below it"
        )
    if plan.nccl is None:
        return swap
    return f"{swap}; {plan.nccl.host.plugin.title} of the host for {plan.nccl.library.title}"


def nccl_json(plan: NcclPlan) -> dict[str, Any]:
    """Which network plugin serves which NCCL."""
    library, plugin = plan.library, plan.host.plugin
    return {
        "library": library.title,
        "library_file": library.path,
        "runtime": library.runtime,
        "plugin": plugin.title,
        "plugin_file": plugin.path,
        "interface": plan.interface,
        "file": plan.file,
        "env": plan.env,
        "networks": plan.networks,
        "providers": plan.providers,
        "devices": plan.devices,
    }


def dry_run(kind: str, prepared: Prepared, steps: list[str], as_json: bool) -> int:
    """Shows what a verb would launch."""
    document = {**prepared_json(prepared), "steps": steps, "dry_run": True}
    answer(as_json, kind, document, "\n".join([swap_line(prepared.plan), *steps]))
    return ExitCode.DONE


def signature_line(verified: Verified) -> str:
    """Who signed, in one line."""
    return f"signed with key {verified.key} on {verified.statement.created}"


def prepared_json(prepared: Prepared) -> dict[str, Any]:
    """A plan and its findings, for JSON. Where only the ranks will know, a backend's ``possible`` is null."""
    plan, comm = prepared.plan, prepared.comm
    return {
        "image": {
            "path": plan.image,
            "digest": prepared.image.digest,
            "os": plan.facts.os,
            "glibc": plan.facts.glibc,
            "mpis": [m.title for m in plan.facts.mpis],
        },
        "site": {"name": plan.site.name, "reason": prepared.site_reason},
        "mpi": {
            "mode": plan.mode,
            "planned": plan.planned_title,
            "file": plan.planned_file,
            "names": plan.names,
        },
        "launcher": plan.launcher,
        "engine": plan.engine,
        "binds": plan.binds,
        "env": plan.env,
        "unset": (*plan.unset, *plan.withheld),
        "staging": plan.staging,
        "nccl": nccl_json(plan.nccl) if plan.nccl else None,
        "lines": plan.lines,
        "findings": prepared.findings,
        "refused": prepared.refused,
        "comm": {
            "backend": comm.backend,
            "why": comm.why,
            "forced": comm.forced,
            "env": comm.env,
            "others": comm.others,
        },
        "signature": signature_json(prepared.verified) if prepared.verified else None,
    }


def comm_text(choice: CommChoice) -> str:
    """What carries gradients, and what else might."""
    rows = [f"  {choice.backend}\n      {choice.why}"]
    word = {True: "possible", False: "not possible", None: "perhaps"}
    rows += [f"  ({o.backend}: {word[o.possible]}; {o.why})" for o in choice.others]
    return "\n".join(rows)


def signature_json(verified: Verified) -> dict[str, Any]:
    """A signature that holds."""
    return {
        "key": verified.key,
        "key_file": verified.key_file,
        **{k: v for k, v in to_json(verified.statement).items() if k != "key"},
    }
