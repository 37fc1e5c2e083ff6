"""The search for a processor, disk or link that is slower than the others."""

from __future__ import annotations

from dataclasses import replace

from fairlead.base.errors import warning
from fairlead.base.serde import from_json
from fairlead.perf.measure import processors
from fairlead.perf.measure.disks import DiskTimes, unwritable
from fairlead.perf.measure.kernels import KernelTimes
from fairlead.perf.measure.program import run_program
from fairlead.perf.measure.ranks import stragglers
from fairlead.perf.measure.step import Context, Step
from fairlead.perf.measure.straggler_search import Kind, Straggler
from fairlead.perf.records.validation import Culprit

# On a crowded machine another rank's turn looks like a slow link.
_CROWDED_THRESHOLD = 4.0
_NAMES = {
    Kind.COMPUTE: "processor of",
    Kind.LINK: "link of",
    Kind.PAIR: "path",
    Kind.DISK: "disk of",
}


def _search(context: Context) -> None:
    options, observations = context.options, context.observations
    folders = tuple(dict.fromkeys((str(options.out), options.node_local)))
    settings = stragglers.Settings(options.out / "pairs.json", folders=folders)
    if observations.crowded or context.crowded(options.most):
        settings = replace(settings, link_threshold=_CROWDED_THRESHOLD)
    if options.quick:
        settings = replace(settings, repeats=3, limit_s=20)
    document = run_program(stragglers.__name__, settings, context.container, options.most)
    times = [from_json(KernelTimes, rank) for rank in document["samples"]]
    observations.clocks = processors.clocks(times, observations.hosts)
    stored = [from_json(DiskTimes, host) for host in document["disks"]]
    observations.findings += [
        warning("validate-disk", host=disk.host, folder=disk.folder, reason=disk.failed)
        for disk in unwritable(stored)
    ]
    for straggler in stragglers.outcomes(document)["all"].culprits:
        culprit = _culprit(straggler, observations.hosts)
        observations.culprits.append(culprit)
        observations.findings.append(
            warning(
                "validate-slow" if culprit.against == "the other way" else "validate-slow-peers",
                culprit_name=culprit.name,
                times_slower=straggler.times_slower,
                against=culprit.against,
                names=" - ".join(straggler.names),
                evidence=straggler.evidence,
                remedy=straggler.remedy,
            )
        )


def _culprit(straggler: Straggler, hosts: tuple[str, ...]) -> Culprit:
    """As evidence for verdicts."""
    compute = straggler.kind is Kind.COMPUTE
    # The nodes it takes part on: of a pair both, and for a link another node to talk to.
    nodes = max((hosts.index(name) + 1 for name in straggler.names if name in hosts), default=1)
    ranks = f", rank {straggler.ranks[0]}" if compute and len(straggler.ranks) == 1 else ""
    disk = straggler.kind is Kind.DISK
    other_way = straggler.kind is Kind.PAIR and len(hosts) == 2
    return Culprit(
        f"{_NAMES[straggler.kind]} {' - '.join(straggler.names)}{ranks}",
        straggler.evidence,
        straggler.times_slower,
        straggler.names,
        nodes if compute or disk else max(nodes, 2),
        "the other way" if other_way else Culprit.against,
        storage=disk,
    )


def _measure(context: Context) -> None:
    if context.options.most > 1:
        context.attempt("search for what is slow", lambda: _search(context))


STEP = Step(
    40,
    _measure,
    lambda options: ["search for a slow processor, disk or link"],
    lambda options: 0,
)
