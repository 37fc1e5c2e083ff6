"""Launches the peers: one launch for each peer and round, in a rotating order.

How a command is launched in an image is the caller's, as for :mod:`fairlead.ml.train.host`. What the ranks do is
:mod:`benchmarks.peers.worker`; their results :mod:`benchmarks.peers.summary`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.peers import nets
from benchmarks.peers.catalogue import MODELS, Peer
from benchmarks.peers.results import Launch, WorkerConfig
from fairlead.base.errors import ExitCode, FairleadError, Finding, Severity
from fairlead.base.progress import Progress, Stage
from fairlead.base.serde import from_json
from fairlead.ml.train.events import Tail
from fairlead.ml.train.runner import Runner
from fairlead.perf.measure.program import run_program

_MOST_FAILURES = 2
_WORKER = "benchmarks.peers.worker"


@dataclass(frozen=True)
class PeersOptions:
    """What is to be measured.

    Attributes:
        out: folder for what ranks write.
        model: name of the bundled model.
        size: ``full``, or ``tiny`` where only its working is of interest.
        rounds: launches of each peer; ``blocks`` of ``steps`` timed steps in each.
        limit_s: of one launch, from the ranks' start on.
    """

    out: Path
    model: str
    peers: tuple[Peer, ...]
    ranks: int
    size: str = "full"
    rounds: int = 6
    blocks: int = 4
    steps: int = 3
    limit_s: float = 300

    @property
    def task(self) -> nets.Task:
        """The network."""
        return nets.SIZES[self.size][MODELS[self.model]]


@dataclass
class PeerRuns:
    """The launches of one peer.

    Attributes:
        refused: why it was not run at all.
        failures: why launches failed, by round, from 0.
    """

    launches: list[Launch | None] = field(default_factory=list)
    refused: Finding | None = None
    failures: dict[int, Finding] = field(default_factory=dict)


def rotation(peers: Sequence[Peer], rounds: int) -> list[list[Peer]]:
    """The peers in order, by round: each round begins with another one; single processes come last, since they get the
    cores that a rank of the others had.

    >>> from benchmarks.peers.catalogue import find
    >>> some = [find(n) for n in ("alone", "fairlead", "horovod")]
    >>> [[p.name for p in one] for one in rotation(some, 2)]
    [['fairlead', 'horovod', 'alone'], ['horovod', 'fairlead', 'alone']]
    """
    many, single = ([p for p in peers if p.alone is alone] for alone in (False, True))
    rounds_of_peers = []
    for number in range(rounds):
        at = number % len(many) if many else 0
        rounds_of_peers.append([*many[at:], *many[:at], *single])
    return rounds_of_peers


def measure(
    options: PeersOptions, runners: Mapping[str, Runner | Finding], progress: Progress
) -> dict[str, PeerRuns]:
    """Every peer, a launch a round. One that has failed twice is not launched again; the others go on.

    Args:
        runners: by recipe, how a program is launched in its image; or why it cannot be.
    Returns:
        By name of the peer.
    Raises:
        FairleadError: it was interrupted.
    """
    options.out.mkdir(parents=True, exist_ok=True)
    runs = {peer.name: PeerRuns() for peer in options.peers}
    ready = []
    for peer in options.peers:
        runner = runners[peer.recipe]
        if isinstance(runner, Finding):
            runs[peer.name].refused = runner
        else:
            ready.append((peer, runner))
    by_name = {peer.name: runner for peer, runner in ready}
    cores = 0
    with progress.stage(
        f"train by {len(ready)} peers", len(ready) * options.rounds, "launches"
    ) as s:
        for number, order in enumerate(rotation([peer for peer, _ in ready], options.rounds)):
            for peer in order:
                own = runs[peer.name]
                own.launches.append(None)
                if len(own.failures) < _MOST_FAILURES:
                    s.note(f"round {number + 1}, {peer.title}")
                    one = _tried(options, peer, by_name[peer.name], cores, own, s)
                    if one is not None and not peer.alone:
                        cores = min(one.cores)
                s.advance(1)
        bad = [peer.title for peer, _ in ready if runs[peer.name].failures]
        s.result(f"failed: {', '.join(bad)}" if bad else "")
    return runs


def _tried(
    options: PeersOptions, peer: Peer, runner: Runner, cores: int, runs: PeerRuns, stage: Stage
) -> Launch | None:
    try:
        runs.launches[-1] = _launched(options, peer, runner, cores, len(runs.launches), stage)
    except FairleadError as exc:
        if exc.code == ExitCode.INTERRUPTED:
            raise
        number = len(runs.launches)
        runs.failures[number - 1] = _reported_by_rank(options, peer, number) or exc.findings[0]
    return runs.launches[-1]


def _reported_by_rank(options: PeersOptions, peer: Peer, number: int) -> Finding | None:
    """The error of the first rank that gave up; a launch that ended before MPI started would hide it."""
    for event in Tail(_stem(options, peer, number).with_suffix(".events.jsonl")).read():
        if event["event"] == "error":
            words = {k: str(event.get(k, "")) for k in ("what", "where", "why", "remedy", "check")}
            return Finding(Severity.ERROR, **words)
    return None


def _stem(options: PeersOptions, peer: Peer, number: int) -> Path:
    """Of a launch's files."""
    return options.out / f"{peer.name}-{number}"


def _launched(
    options: PeersOptions, peer: Peer, runner: Runner, cores: int, number: int, stage: Stage
) -> Launch:
    """One launch.

    Raises:
        FairleadError: it failed, or left nothing.
    """
    stem = _stem(options, peer, number)
    config = WorkerConfig(
        peer=peer.name,
        framework=peer.framework,
        way=peer.way,
        model=MODELS[options.model],
        size=options.size,
        servers=peer.servers,
        blocks=options.blocks,
        steps=options.steps,
        out=stem.with_suffix(".json"),
        events=stem.with_suffix(".events.jsonl"),
        limit_s=options.limit_s,
        cores=cores if peer.alone else 0,
        env=peer.env,
    )

    def show(event: dict[str, Any]) -> None:
        if event["event"] == "block":
            of = f"{event['block']} of {event['blocks']}"
            stage.note(f"round {number}, {peer.title}: {of} turns")

    ranks = 1 if peer.alone else options.ranks
    document = run_program(_WORKER, config, runner, ranks, events=config.events, show=show)
    return from_json(Launch, document)
