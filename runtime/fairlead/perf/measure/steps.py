"""What the steps of a validation share: what is wished for, what was seen so far, and how a step is tried."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from fairlead.base.errors import ExitCode, FairleadError, Finding
from fairlead.base.progress import Progress
from fairlead.launch import launch as launching
from fairlead.ml.train.model import StepTimes
from fairlead.ml.train.runner import Runner
from fairlead.perf.judge import faults
from fairlead.perf.projection.small_runs import SmallRun
from fairlead.perf.records.evidence import Bound, Clock, Culprit, Shares
from fairlead.perf.records.validation import Measurement, Way


@dataclass(frozen=True)
class Wish:
    """What is to be measured.

    Attributes:
        out: folder for what the ranks write.
        ranks: how many, each count once, ascending.
        models: names of :mod:`fairlead.ml.models.registry`.
        quick: fewer sizes, steps and repeats; one model.
        repeats: launches of a start.
        cores: of a node, that ranks may use.
        strong: a training's samples a step stay the same whatever the ranks.
        backend: of Keras.
        data: by model, a folder of one's own files instead of generated ones.
        skip_damaged: leave out files that cannot be read, and say so.
    """

    out: Path
    ranks: tuple[int, ...]
    models: tuple[str, ...]
    quick: bool = False
    repeats: int = 6
    cores: int = 1
    strong: bool = False
    backend: str = "tensorflow"
    data: Mapping[str, Path] = field(default_factory=dict)
    skip_damaged: bool = False

    @property
    def most(self) -> int:
        """The largest count of ranks."""
        return max(self.ranks)

    def crowded(self, ranks: int, nodes: int = 1) -> bool:
        """Whether ranks share cores."""
        return ranks > self.cores * nodes


@dataclass
class Seen:
    """What steps have given so far.

    Attributes:
        mpis: what ranks called their MPI, by way.
        placed: each rank's host, in the largest launch.
        crowded: ranks share cores, as they themselves say: simulated hosts are on one machine.
        findings: what went wrong or could not be done.
        failed: why a line has no samples, by its key.
        codes: what steps that failed would have ended a launch with.
        stopped: why the proof did not hold, which ends all; empty where it did.
        memory, disk: bounds that were measured.
        steps_of: the key of the training that ``steps`` are of.
        runs: trainings in the container, by model, for :mod:`fairlead.perf.projection`.
    """

    measurements: list[Measurement] = field(default_factory=list)
    shares: dict[str, Shares] = field(default_factory=dict)
    mpis: dict[str, str] = field(default_factory=dict)
    placed: tuple[str, ...] = ()
    crowded: bool = False
    culprits: list[Culprit] = field(default_factory=list)
    clocks: tuple[Clock, ...] = ()
    findings: list[Finding] = field(default_factory=list)
    failed: dict[str, Finding] = field(default_factory=dict)
    codes: list[ExitCode] = field(default_factory=list)
    stopped: tuple[Finding, ...] = ()
    memory: Bound | None = None
    disk: Bound | None = None
    steps: tuple[StepTimes, ...] = ()
    steps_of: str = ""
    runs: dict[str, list[SmallRun]] = field(default_factory=dict)

    @property
    def hosts(self) -> tuple[str, ...]:
        """Each host once, in the order in which ranks fill them."""
        return tuple(dict.fromkeys(self.placed))

    def nodes(self, ranks: int) -> int:
        """On how many hosts so many ranks are, as far as that is known."""
        return max(len(set(self.placed[:ranks])), 1)


def roomiest(wish: Wish, seen: Seen) -> int:
    """The most ranks that have a core each; where all counts share cores, the most."""
    return max((n for n in wish.ranks if not wish.crowded(n, seen.nodes(n))), default=wish.most)


Step = Callable[[Wish, Way, Runner, str, Seen], None]


def tried(
    title: str,
    step: Callable[[], None],
    seen: Seen,
    progress: Progress,
    lines: Sequence[Measurement] = (),
) -> None:
    """One step; its failure is kept, and ends no validation. An interrupt and a proof that fails do.

    Args:
        lines: without samples, that the step would have given: they are told with the reason.
    """
    with progress.stage(title) as stage:
        try:
            step()
        except FairleadError as exc:
            if exc.code is ExitCode.INTERRUPTED:
                raise
            failed = exc
        except OSError as exc:  # a folder of the report's that is full
            failed = faults.unwritten(exc)
        else:
            return
        # A rank that died before MPI had started has told no host; where it is, earlier launches say.
        hosts = dict(enumerate(seen.placed))
        found = [
            replace(f, where=f"{title}: {launching.on_host(f.where, hosts)}")
            for f in failed.findings
        ]
        seen.findings += found
        seen.codes.append(failed.code)
        there = {m.key for m in seen.measurements}
        for line in lines:
            if line.key not in there:
                seen.measurements.append(line)
                seen.failed[line.key] = found[0]
        stage.failed(found[0].what)
    if failed.code is ExitCode.PROOF_FAILED:
        seen.stopped = tuple(found)
        raise failed


def fresh(path: Path) -> Path:
    """A path at which there is nothing any more."""
    path.unlink(missing_ok=True)
    return path
