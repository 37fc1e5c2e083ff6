"""Why a measurement is slow, most likely: one rule a reason, in an order, and no reason without evidence.

The order is from what explains most and is surest: messages on a wrong transport before a processor that is hot. A
rule gives a reason only where its evidence is there *and* can touch the measurement: a slow link explains no
measurement of a single node.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fairlead.base.errors import Finding, Severity
from fairlead.perf.records.validation import Clock, Culprit, Evidence, Measurement, Way, What

_MESSAGES = frozenset({What.PINGPONG, What.ALLREDUCE, What.BROADCAST})
_STORED = frozenset({What.CHECKPOINT, What.INPUT})
_INPUT_BOUND = 0.15  # of a step; less does not explain a slowness that was noticed
_MESSAGES_BOUND = 0.25
UNEXPLAINED = "no known cause explains it"
_SLOWER, _BELOW = 1.1, 0.9  # of its like: times that arithmetic takes, and the clock
_COPIED = 8192  # bytes, from which the way through the kernel or shared memory decides

# What doctor's findings explain, by check: of these measurements, on one node, between nodes, or both.
_CHECKS: dict[str, tuple[frozenset[What], bool, bool]] = {
    "cma": (_MESSAGES | {What.TRAIN}, True, False),
    "sharing": (_MESSAGES | {What.TRAIN}, True, False),
    "shared-memory": (_MESSAGES | {What.TRAIN}, True, False),
    "fabric": (_MESSAGES | {What.TRAIN}, False, True),
    "locked-memory": (_MESSAGES | {What.TRAIN}, False, True),
    "pmi": (_MESSAGES | {What.TRAIN, What.START}, False, True),
    "mpi-variables": (_MESSAGES | {What.TRAIN}, True, True),
    "hugepages": (_MESSAGES | {What.TRAIN}, True, True),
    "cgroups": (frozenset({What.TRAIN, What.INPUT}), True, True),
    "space": (frozenset({What.START, What.CHECKPOINT}), True, True),
    "quotas": (frozenset({What.CHECKPOINT}), True, True),
    "squashfs": (frozenset({What.START}), True, True),
    "engine": (frozenset({What.START}), True, True),
    "engine-settings": (frozenset({What.START}), True, True),
}


@dataclass(frozen=True)
class Reason:
    """Attributes:
    text: the reason and its evidence, without a full stop.
    remedy: the next command or step.
    """

    text: str
    remedy: str


_LOADED = 0.5  # cores: one that a rank has to share now and then slows all that wait for it
Rule = Callable[[Measurement, Evidence], Reason | None]


def reason(m: Measurement, evidence: Evidence) -> Reason:
    """The likeliest reason why ``m`` is slow; where nothing speaks for any, that."""
    for rule in RULES:
        if reason_found := rule(m, evidence):
            return reason_found
    return Reason(UNEXPLAINED, "fairlead doctor; then the same command again")


def transport(m: Measurement, evidence: Evidence) -> Reason | None:
    """Messages between nodes went another way than the site's."""
    transports = evidence.transports.get(m.way.value, "")
    if m.nodes < 2 or not _has_messages(m) or not transports or not evidence.accepted:
        return None
    words = transports.lower().replace(":", " ").replace(",", " ").split()
    if any(name.lower() in words for name in evidence.accepted):
        return None
    return Reason(
        f"messages went over {transports}; this site's fabric is {' or '.join(evidence.accepted)}",
        "fairlead doctor fabric; fairlead explain IMAGE",
    )


def other_mpi(m: Measurement, evidence: Evidence) -> Reason | None:
    """A container ran another MPI than the one that was planned for it."""
    mapped = evidence.mpis.get(m.way.value, "")
    if m.way is Way.NATIVE or not _has_messages(m) or not mapped:
        return None
    wanted = evidence.planned_mpi or evidence.mpis.get(Way.NATIVE.value, "")
    if not wanted or wanted == mapped:
        return None
    own = "the image's own MPI" if m.way is Way.IMAGE else "another MPI"
    return Reason(
        f"{own} ran, {mapped}, and not {wanted}",
        "measure with `--mpi host`" if m.way is Way.IMAGE else "fairlead explain IMAGE",
    )


def culprit(m: Measurement, evidence: Evidence) -> Reason | None:
    """A node, link or rank that takes part was found slower than its like; all wait for it."""

    def takes_part(suspect: Culprit) -> bool:
        if suspect.storage or m.what in _STORED:
            return suspect.storage and m.what in _STORED and m.nodes >= suspect.from_nodes
        if m.what is What.PINGPONG and m.nodes > 1:
            return bool(suspect.hosts) and set(suspect.hosts) <= set(m.hosts)
        return m.ranks > 1 and m.nodes >= suspect.from_nodes

    concerned = [suspect for suspect in evidence.culprits if takes_part(suspect)]
    if not concerned:
        return None
    worst = max(concerned, key=lambda c: c.times)
    return Reason(
        f"{worst.name} is {worst.times:.2g} × as slow as {worst.against}: {worst.seen}",
        "leave it out, and report it to the site",
    )


def crowded(m: Measurement, evidence: Evidence) -> Reason | None:
    """More ranks than cores take turns."""
    a_node = -(-m.ranks // m.nodes)
    if not m.crowded and not (0 < evidence.cores < a_node):
        return None
    cores = f"{evidence.cores} core{'s' if evidence.cores > 1 else ''}"
    shared = f"share {cores}" if evidence.cores else "share fewer cores"
    return Reason(
        f"{a_node} ranks of a node {shared}: a rank that waits for a message keeps another from computing",
        "at most as many ranks a node as it has cores: --ranks-per-node",
    )


def doctor(m: Measurement, evidence: Evidence) -> Reason | None:
    """Doctor has found something that such a measurement depends on."""
    for severity in (Severity.ERROR, Severity.WARNING):
        for finding in evidence.findings:
            if finding.severity is severity and _touches(finding, m):
                why = f" ({finding.why})" if finding.why else ""
                return Reason(
                    f"doctor says: {finding.what}{why}",
                    finding.remedy or f"fairlead doctor {finding.check}",
                )
    return None


def _touches(finding: Finding, m: Measurement) -> bool:
    whats, one_node, between = _CHECKS.get(finding.check, (frozenset(), False, False))
    if m.what not in whats or not (one_node if m.nodes < 2 else between):
        return False
    # A short message is copied once more anyhow.
    return finding.check != "cma" or m.bytes is None or m.bytes >= _COPIED


def waits(m: Measurement, evidence: Evidence) -> Reason | None:
    """Ranks of a training wait for samples, or for gradients that take longer than computing can hide."""
    shares = evidence.shares.get(m.key)
    if shares and shares.input >= max(_INPUT_BOUND, shares.communication):
        return Reason(
            f"{100 * shares.input:.0f} % of a step is waiting for samples",
            "stage the data in (--stage-in), or more readers a rank",
        )
    if shares and shares.communication >= _MESSAGES_BOUND:
        return Reason(
            f"{100 * shares.communication:.0f} % of a step is communication that computing does not hide",
            "a larger batch a rank; --comm with compression (FAIRLEAD_COMM_COMPRESSION=bf16)",
        )
    return None


def throttled(m: Measurement, evidence: Evidence) -> Reason | None:
    """A processor that takes part was held back: its own counter says so, or its clock *and* its arithmetic.

    A low clock alone is not evidence: that of all cores is below that of one, and some save power between samples.
    """
    if m.what is What.CHECKPOINT:  # the storage's
        return None
    taking_part = [c for c in evidence.clocks if m.nodes >= c.from_nodes]
    slowed = {clock: words for clock in taking_part if (words := held_back(clock))}
    if not slowed:
        return None
    worst = max(slowed, key=lambda c: (c.times or 1.0, c.throttled or 0))
    return Reason(
        f"the processor of {worst.host} is held back: {', and '.join(slowed[worst])}",
        "look at its temperature, power limit and governor: cpupower frequency-info",
    )


def held_back(clock: Clock) -> list[str]:
    """What shows that a processor ran slower than it should, in words; empty where that is not evidence."""
    heat, speed, arithmetic = [], [], []
    if times := clock.throttled:
        heat = [f"it was slowed down for heat {times} time{'s' * (times > 1)}"]
    if clock.seen_mhz and clock.usual_mhz and clock.seen_mhz <= _BELOW * clock.usual_mhz:
        sold = f" ({clock.nominal_mhz:.0f} nominal)" if clock.nominal_mhz else ""
        speed = [f"it ran at {clock.seen_mhz:.0f}{sold} MHz, {clock.usual_mhz:.0f} is usual"]
    if clock.times and clock.times >= _SLOWER:
        arithmetic = [f"its arithmetic took {clock.times:.2f} times as long as that of its like"]
    return heat + speed + arithmetic if heat or (speed and arithmetic) else []


def busy(m: Measurement, evidence: Evidence) -> Reason | None:
    """Other work was on the machine."""
    return loaded(evidence)


def unjudgeable(evidence: Evidence) -> Reason | None:
    """Why times of this run say nothing about the machine; None if they do, or if the user wants verdicts anyway."""
    return None if evidence.despite_load else loaded(evidence)


def loaded(evidence: Evidence) -> Reason | None:
    """What other work was on the first node, if so much that times say more about it than about the machine."""
    if evidence.load is None or not evidence.cores:
        return None
    if evidence.load < max(_LOADED, evidence.cores / 16):
        return None
    return Reason(
        f"other work is on the node: it kept {evidence.load:.1f} of {evidence.cores} cores busy",
        "measure on nodes of your own, e.g. an exclusive job; or --despite-load",
    )


def _has_messages(m: Measurement) -> bool:
    return m.what in _MESSAGES or (m.what is What.TRAIN and m.ranks > 1)


RULES: tuple[Rule, ...] = (
    transport,
    other_mpi,
    culprit,
    crowded,
    doctor,
    waits,
    throttled,
    busy,
)
