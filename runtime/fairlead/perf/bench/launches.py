"""Measures the peers from outside: a launch for each peer and round, in an order that goes round.

How a command is launched in an image is the caller's, as for :mod:`fairlead.ml.train.host`. What the ranks do is
:mod:`fairlead.perf.bench.worker`; what comes of it :mod:`fairlead.perf.bench.summary`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fairlead.base.errors import ExitCode, FairleadError, Finding, Severity
from fairlead.base.progress import Progress, Stage
from fairlead.base.serde import from_json
from fairlead.ml.train.events import Tail
from fairlead.ml.train.runner import Runner
from fairlead.perf.bench import nets
from fairlead.perf.bench.peers import MODELS, Peer
from fairlead.perf.bench.results import Launch, WorkerConfig
from fairlead.perf.measure.program import run_program

_MOST_FAILURES = 2
_WORKER = "fairlead.perf.bench.worker"

# A peer's image cannot be launched: why, and what to do.
Refused = Finding


@dataclass(frozen=True)
class PeersWish:
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
class Found:
    """What there is of one peer.

    Attributes:
        refused: why it was not run at all.
        failures: why launches failed, by round, from 0.
    """

    launches: list[Launch | None] = field(default_factory=list)
    refused: Finding | None = None
    failures: dict[int, Finding] = field(default_factory=dict)


def orders(peers: Sequence[Peer], rounds: int) -> list[list[Peer]]:
    """Who is measured when: each round begins with another peer; those alone come last, since they are given the
    cores that a rank of the others had.

    >>> from fairlead.perf.bench.peers import find
    >>> some = [find(n) for n in ("alone", "fairlead", "horovod")]
    >>> [[p.name for p in one] for one in orders(some, 2)]
    [['fairlead', 'horovod', 'alone'], ['horovod', 'fairlead', 'alone']]
    """
    many, single = ([p for p in peers if p.alone is alone] for alone in (False, True))
    found = []
    for number in range(rounds):
        at = number % len(many) if many else 0
        found.append([*many[at:], *many[:at], *single])
    return found


def measure(
    wish: PeersWish, runners: Mapping[str, Runner | Refused], progress: Progress
) -> dict[str, Found]:
    """Every peer, a launch a round. One that has failed twice is not launched again; the others go on.

    Args:
        runners: by recipe, how a program is launched in its image; or why it cannot be.
    Returns:
        By name of the peer.
    Raises:
        FairleadError: it was interrupted.
    """
    wish.out.mkdir(parents=True, exist_ok=True)
    found = {peer.name: Found() for peer in wish.peers}
    ready = []
    for peer in wish.peers:
        runner = runners[peer.recipe]
        if isinstance(runner, Finding):
            found[peer.name].refused = runner
        else:
            ready.append((peer, runner))
    by_name = {peer.name: runner for peer, runner in ready}
    cores = 0
    with progress.stage(f"train by {len(ready)} peers", len(ready) * wish.rounds, "launches") as s:
        for number, order in enumerate(orders([peer for peer, _ in ready], wish.rounds)):
            for peer in order:
                own = found[peer.name]
                own.launches.append(None)
                if len(own.failures) < _MOST_FAILURES:
                    s.note(f"round {number + 1}, {peer.title}")
                    one = _tried(wish, peer, by_name[peer.name], cores, own, s)
                    if one is not None and not peer.alone:
                        cores = min(one.cores)
                s.advance(1)
        bad = [peer.title for peer, _ in ready if found[peer.name].failures]
        s.result(f"failed: {', '.join(bad)}" if bad else "")
    return found


def _tried(
    wish: PeersWish, peer: Peer, runner: Runner, cores: int, found: Found, stage: Stage
) -> Launch | None:
    try:
        found.launches[-1] = _launched(wish, peer, runner, cores, len(found.launches), stage)
    except FairleadError as exc:
        if exc.code == ExitCode.INTERRUPTED:
            raise
        number = len(found.launches)
        found.failures[number - 1] = _told_by_a_rank(wish, peer, number) or exc.findings[0]
    return found.launches[-1]


def _told_by_a_rank(wish: PeersWish, peer: Peer, number: int) -> Finding | None:
    """What the first rank that gave up has said; else a launch that was ended before MPI had started hides it."""
    for event in Tail(_stem(wish, peer, number).with_suffix(".events.jsonl")).read():
        if event["event"] == "error":
            told = {k: str(event.get(k, "")) for k in ("what", "where", "why", "remedy", "check")}
            return Finding(Severity.ERROR, **told)
    return None


def _stem(wish: PeersWish, peer: Peer, number: int) -> Path:
    """Of a launch's files."""
    return wish.out / f"{peer.name}-{number}"


def _launched(
    wish: PeersWish, peer: Peer, runner: Runner, cores: int, number: int, stage: Stage
) -> Launch:
    """One launch.

    Raises:
        FairleadError: it failed, or left nothing.
    """
    stem = _stem(wish, peer, number)
    config = WorkerConfig(
        peer=peer.name,
        framework=peer.framework,
        way=peer.way,
        model=MODELS[wish.model],
        size=wish.size,
        servers=peer.servers,
        blocks=wish.blocks,
        steps=wish.steps,
        out=stem.with_suffix(".json"),
        events=stem.with_suffix(".events.jsonl"),
        limit_s=wish.limit_s,
        cores=cores if peer.alone else 0,
        env=peer.env,
    )

    def show(event: dict[str, Any]) -> None:
        if event["event"] == "block":
            of = f"{event['block']} of {event['blocks']}"
            stage.note(f"round {number}, {peer.title}: {of} turns")

    ranks = 1 if peer.alone else wish.ranks
    document = run_program(_WORKER, config, runner, ranks, events=config.events, show=show)
    return from_json(Launch, document)
