"""What was seen along with the measurements, from which a reason for slowness may be concluded: plain frozen values.

Nothing here is a conclusion. :mod:`fairlead.perf.judge.diagnosis` draws them, and only from what stands here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from fairlead.base.errors import Finding


@dataclass(frozen=True)
class Bound:
    """A number of the machine, and who says it.

    Attributes:
        value: bytes a second, or seconds.
    """

    value: float
    source: str


@dataclass(frozen=True)
class Bounds:
    """How fast the hardware is, as far as that is known; see :mod:`fairlead.perf.judge.bounds`.

    Attributes:
        link: bytes a second that a node can send.
        latency: seconds of the smallest message between two nodes, one way.
        memory: bytes a second that all cores of a node read and write together.
        disk: bytes a second to the storage.
    """

    link: Bound | None = None
    latency: Bound | None = None
    memory: Bound | None = None
    disk: Bound | None = None


@dataclass(frozen=True)
class Shares:
    """What part of a training step's time went where, each of 0 to 1; medians over steps and ranks.

    Attributes:
        input: waiting for samples.
        communication: gradients that computing does not hide.
    """

    input: float
    communication: float


@dataclass(frozen=True)
class Culprit:
    """A node, a pair of nodes or a rank that was found slower than its like.

    Attributes:
        name: e.g. ``node n0017``.
        seen: in words, with the numbers, e.g. ``its link carries 1.9 GB/s, the others 12.1``.
        times: how many times slower.
        hosts: whose it is.
        from_nodes: nodes of the smallest launch that it takes part in: a job's hosts are filled in order.
        against: what it was held against, in words.
    """

    name: str
    seen: str
    times: float
    hosts: tuple[str, ...] = ()
    from_nodes: int = 1
    against: str = "its like"


@dataclass(frozen=True)
class Clock:
    """A host's processor while its ranks computed, as its slowest rank saw it; None if unknown.

    Attributes:
        seen_mhz: the clock of the core at the end of each sample of arithmetic, median.
        nominal_mhz: the one that it is sold with, without boost.
        usual_mhz: ``seen_mhz`` of all ranks, median; None of one rank alone.
        throttled: how often it was slowed down for heat meanwhile.
        times: its arithmetic took as many times as long as is usual of all ranks.
        from_nodes: nodes of the smallest launch that it takes part in: a job's hosts are filled in order.
    """

    host: str
    seen_mhz: float | None = None
    nominal_mhz: float | None = None
    usual_mhz: float | None = None
    throttled: int | None = None
    times: float | None = None
    from_nodes: int = 1


@dataclass(frozen=True)
class Evidence:
    """Facts. What is not known is empty.

    Attributes:
        cores: of a node, that ranks may use; 0 where unknown.
        transports: what carried messages, by way of launch (``native``, ``container``, ``image``), as the
            proof names it, e.g. ``ofi: cxi``.
        accepted: transports that the site's profile accepts; empty where it names none.
        mpis: the MPI that was mapped, by way of launch, as it names itself.
        planned_mpi: the one that was to run in containers.
        shares: of a training, by the key of its measurement.
        culprits: the worst first.
        clocks: of hosts that report their clock or count thermal throttling; empty where none does.
        findings: of doctor, warnings and errors.
        failed: why a line has no samples, by the key of its measurement, and what to do next.
        load: processes that wanted to run on the first node before fairlead began; None where unknown.
    """

    cores: int = 0
    transports: Mapping[str, str] = field(default_factory=dict)
    accepted: tuple[str, ...] = ()
    mpis: Mapping[str, str] = field(default_factory=dict)
    planned_mpi: str = ""
    shares: Mapping[str, Shares] = field(default_factory=dict)
    culprits: tuple[Culprit, ...] = ()
    clocks: tuple[Clock, ...] = ()
    findings: tuple[Finding, ...] = ()
    failed: Mapping[str, Finding] = field(default_factory=dict)
    load: float | None = None
