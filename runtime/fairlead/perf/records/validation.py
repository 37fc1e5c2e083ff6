"""What a validation measures, and what is said of it: plain frozen values with a JSON form.

A :class:`Measurement` is one quantity, measured several times; a :class:`Verdict` holds it against what is to be
expected. A :class:`Validation` is all of one run: what `validation.json` holds, and what
`fairlead report --compare` reads.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from fairlead.base.errors import Finding
from fairlead.ml.train.model import StepTimes

SCHEMA, SCHEMA_VERSION = "fairlead/validation", 1


class What(enum.Enum):
    """What is measured; its unit follows."""

    PINGPONG = "pingpong"  # seconds one way
    ALLREDUCE = "allreduce"  # seconds of a call
    BROADCAST = "broadcast"  # seconds of a call
    TRAIN = "train"  # samples a second, of all ranks
    INPUT = "input"  # samples a second a rank, of the pipeline without a network
    CHECKPOINT = "checkpoint"  # bytes a second
    START = "start"  # seconds of a phase of the launch


UNITS = {
    What.PINGPONG: "s",
    What.ALLREDUCE: "s",
    What.BROADCAST: "s",
    What.TRAIN: "samples/s",
    What.INPUT: "samples/s",
    What.CHECKPOINT: "B/s",
    What.START: "s",
}


class Way(enum.Enum):
    """Where the ranks ran."""

    NATIVE = "native"  # on the host, without a container
    CONTAINER = "container"  # in the image, its MPI swapped
    IMAGE = "image"  # in the image, by its own MPI


@dataclass(frozen=True)
class Measurement:
    """One quantity.

    Attributes:
        samples: one a repeat, in the unit of ``UNITS[what]``.
        bytes: of the message or file; None where there is none.
        subject: what else identifies it: a model, a phase of the start, a pair of nodes.
        crowded: there were more ranks than cores.
        wrong: answers that were wrong, of all repeats.
        launcher: that started the ranks.
        hosts: of a ping-pong, those of its two ranks.
    """

    what: What
    way: Way
    samples: tuple[float, ...]
    ranks: int = 1
    nodes: int = 1
    bytes: int | None = None
    subject: str = ""
    crowded: bool = False
    wrong: int = 0
    launcher: str = ""
    hosts: tuple[str, ...] = ()

    @property
    def unit(self) -> str:
        """``s``, ``samples/s`` or ``B/s``."""
        return UNITS[self.what]

    @property
    def smaller_is_better(self) -> bool:
        """Of a time it is, of a rate it is not."""
        return self.unit == "s"

    @property
    def key(self) -> str:
        """By which two runs' measurements of the same thing are found: all but the samples."""
        parts = [self.what.value, self.way.value, f"{self.ranks}r{self.nodes}n"]
        parts += [f"{self.bytes}B"] if self.bytes is not None else []
        return " ".join([*parts, *filter(None, (self.subject, self.launcher))])


class State(enum.Enum):
    """How a measurement stands."""

    NORMAL = "normal"
    SLOW = "slow"
    WRONG = "wrong"  # it gave wrong answers, however fast
    UNKNOWN = "cannot tell"


class Basis(enum.Enum):
    """What a measurement was held against."""

    REFERENCE = "reference"  # of this site, saved before
    BOUND = "bound"  # what the hardware allows
    NATIVE = "native"  # the same without a container
    NONE = "none"


@dataclass(frozen=True)
class Expected:
    """What a measurement should reach.

    Attributes:
        value: in the measurement's unit.
        low, high: between which it is normal; ``low`` is the worst that is, for rates, ``high`` for times.
        basis, source: where the value is from, the latter in words.
    """

    value: float
    low: float
    high: float
    basis: Basis
    source: str


@dataclass(frozen=True)
class Verdict:
    """What is said of one measurement.

    Attributes:
        times: how many times slower than expected; 1 and less is as expected; None if nothing is.
        because: the likeliest reason of slowness, or why there is no verdict; with its evidence.
        remedy: the next command or step.
    """

    key: str
    state: State
    expected: Expected | None
    times: float | None
    because: str = ""
    remedy: str = ""


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
        storage: it is a disk, for which messages and computing do not wait.
    """

    name: str
    seen: str
    times: float
    hosts: tuple[str, ...] = ()
    from_nodes: int = 1
    against: str = "its like"
    storage: bool = False


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

    :mod:`fairlead.perf.judge.diagnosis` concludes reasons for slowness, and only from what stands here.

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
        load: cores of the first node that other work kept busy: looked at while no rank ran, mean of the busier
            half of the looks; None where unknown.
        despite_load: the user asked for verdicts whatever the load.
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
    despite_load: bool = False


@dataclass(frozen=True)
class Machine:
    """Where a validation ran; what explains a difference between two.

    Attributes:
        facts: names and values, e.g. ``mpi``, ``image digest``, ``kernel``, ``driver``.
    """

    site: str
    hosts: tuple[str, ...]
    cores: int
    facts: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class RankSaw:
    """What one rank saw of its MPI: a row of :class:`fairlead.proof.verdict.Proof`.

    Attributes:
        size: of the world that it was in.
        mpi_path: the MPI library mapped into it, as it saw it.
        version: first line of ``MPI_Get_library_version``.
        transport: what carried messages.
        as_planned: world, file and inode are those of the plan, and there is no second MPI.
    """

    rank: int
    host: str
    size: int
    mpi_path: str
    version: str
    transport: str
    as_planned: bool


@dataclass(frozen=True)
class Proved:
    """The proof of a launch.

    Attributes:
        planned: the MPI that was to run, in words.
        planned_file: its file as ranks see it.
    """

    planned: str
    planned_file: str
    ranks: tuple[RankSaw, ...]


@dataclass(frozen=True)
class Validation:
    """All of one run.

    Attributes:
        id: names it in the history, e.g. ``20260102T030405-laptop``.
        begun: ISO 8601 with time zone.
        seconds: of the whole run.
        command: as it was typed.
        evidence: what verdicts were reasoned from; see :mod:`fairlead.perf.judge.diagnosis`.
        bounds: of the hardware, as they were known.
        steps: of the training on the most ranks that have a core each, one a rank.
        steps_of: the key of the measurement that they belong to.
        proof: what every rank of the largest launch saw of its MPI, or of the first that was not as planned; None
            where nothing was launched so.
        faults: what broke (errors), then what else is wrong outside the lines (warnings); the most fundamental of
            each first, see :mod:`fairlead.perf.judge.faults`.
    """

    id: str
    begun: str
    seconds: float
    command: str
    machine: Machine
    measurements: tuple[Measurement, ...]
    verdicts: tuple[Verdict, ...]
    evidence: Evidence = field(default_factory=Evidence)
    bounds: Bounds = field(default_factory=Bounds)
    steps: tuple[StepTimes, ...] = ()
    steps_of: str = ""
    proof: Proved | None = None
    faults: tuple[Finding, ...] = ()
