"""Settings and results of ``python -m benchmarks.peers``, as values; files are their JSON form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from fairlead.perf.bench import Machine

SCHEMA, SCHEMA_VERSION = "fairlead/bench-peers", 1


@dataclass(frozen=True)
class WorkerConfig:
    """One launch of one peer, for its ranks.

    Attributes:
        peer: its name; ``way`` is what its ranks do.
        model: key of :mod:`benchmarks.peers.nets`.
        size: ``full``, or ``tiny`` where only its working is of interest.
        servers: parameter servers.
        cores: most that a rank may use; 0 for its share of the node.
        blocks: turns of the peer's way and of none; ``steps`` are timed in each.
        out: what rank 0 writes, a :class:`Launch`.
        events: what ranks report meanwhile.
        limit_s: seconds after which a rank gives up.
    """

    peer: str
    framework: str
    way: str
    model: str
    size: str
    servers: int
    blocks: int
    steps: int
    out: Path
    events: Path
    limit_s: float
    cores: int = 0
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Block:
    """Seconds of a step by rank, the mean of some in a row: without communication, and by the peer run next."""

    base: tuple[float, ...]
    own: tuple[float, ...]


@dataclass(frozen=True)
class Launch:
    """What the ranks of one launch measured.

    Attributes:
        error: how far the first step's means are off those by MPI, as a part of their largest element; null where
            nothing is communicated.
        apart: how far a rank's own gradients are from their mean, by the same measure: the error of an answer that is not added up.
        alike: all ranks hold, or get from the servers, the same weights at the end, bit by bit.
        updates, expected_updates: how often the servers have changed the weights, and how often workers asked for it.
        hosts, cores: of each rank; how many cores it is pinned to.
        crowded: ranks share cores.
        backend: what carried the bytes of ``fairlead.comm``.
        load: processes that want to run, mean of a minute, at the end.
        seconds: of the launch, from MPI's start on.
    """

    blocks: tuple[Block, ...]
    error: float | None
    apart: float | None
    alike: bool
    updates: int | None
    expected_updates: int | None
    hosts: tuple[str, ...]
    cores: tuple[int, ...]
    crowded: bool
    backend: str
    versions: Mapping[str, str]
    load: float
    seconds: float


class Outcome(StrEnum):
    """How a peer did."""

    RIGHT = "right"
    WRONG = "wrong"
    FAILED = "failed"
    NOT_RUN = "not run"


@dataclass(frozen=True)
class Estimate:
    """A median over rounds and its interval by order statistics (:mod:`fairlead.perf.stats`).

    Attributes:
        low, high: null with fewer than five rounds.
        confidence: what the interval reaches; 0 without one.
    """

    value: float
    low: float | None
    high: float | None
    confidence: float
    rounds: int


@dataclass(frozen=True)
class PeerResult:
    """One peer.

    Attributes:
        samples_per_s: of all ranks together.
        efficiency: samples/s over those of the same ranks without communication, in turns with them; 1 is ideal.
        of_alone: samples/s over as many times those of one process alone.
        fairlead_times: how many times as fast fairlead trains, by the same framework, in the same round.
        guarantee: what holds of the weights.
        why, next: where it was not run, failed or was wrong: the reason, and the command that goes on.
        launches: by round; null for a round without a result.
    """

    name: str
    title: str
    framework: str
    recipe: str
    outcome: Outcome
    guarantee: str
    why: str = ""
    next: str = ""
    samples_per_s: Estimate | None = None
    efficiency: Estimate | None = None
    of_alone: Estimate | None = None
    fairlead_times: Estimate | None = None
    launches: tuple[Launch | None, ...] = ()


@dataclass(frozen=True)
class PeersBench:
    """``python -m benchmarks.peers``: the peers, the fastest first.

    Attributes:
        begun: ISO 8601, with zone.
        seconds: of the whole.
        command: what repeats it.
        model: name of the bundled model; ``title`` as it is written.
        image: shape of a sample; ``weights`` are the network's.
        batch: samples a rank and step.
        size: ``full`` or ``tiny``.
        rounds: launches of each peer; each has ``blocks`` of ``steps`` timed steps.
    """

    begun: str
    seconds: float
    command: str
    machine: Machine
    model: str
    title: str
    image: tuple[int, ...]
    weights: int
    batch: int
    size: str
    ranks: int
    rounds: int
    blocks: int
    steps: int
    peers: tuple[PeerResult, ...]
