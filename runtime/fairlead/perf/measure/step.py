"""The steps of a validation: what is to be measured, what has been observed, and how a step is attempted.

A step is one file in :mod:`fairlead.perf.measure.steps` that declares a :class:`Step`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from fairlead.base.errors import ExitCode, FairleadError, Finding, fail
from fairlead.base.nccl_verdict import Expected
from fairlead.base.progress import Progress
from fairlead.launch import launch as launching
from fairlead.ml.train.model import StepTimes
from fairlead.ml.train.runner import Runner
from fairlead.perf import stats
from fairlead.perf.measure import processors
from fairlead.perf.projection.small_runs import SmallRun
from fairlead.perf.records.validation import Bound, Clock, Culprit, Measurement, Shares, Way
from fairlead.site.model import Reference


@dataclass(frozen=True)
class Options:
    """What is to be measured.

    Attributes:
        out: folder for what the ranks write.
        ranks: counts of ranks, each once, ascending.
        models: names of :mod:`fairlead.ml.registry`.
        quick: fewer sizes, steps and repeats.
        cores: of a node, that ranks may use.
        strong: the samples of a step stay the same whatever the number of ranks.
        data: by model, a folder of the user's files instead of generated ones.
        skip_damaged: leave out files that cannot be read, and report them.
        repeats: samples of each line at least; :func:`fairlead.perf.measure.steps.planned` sets it.
        external_data: HDF5 files may have values in other files.
        network: what NCCL must use; None where nothing is planned of it.
        gpus: the image has NCCL or RCCL, and ranks get GPUs.
        performance: what the site's profile says that measurements give there.
        node_local: the site's folder on a disk of the node; empty for that of temporary files.
    """

    out: Path
    ranks: tuple[int, ...]
    models: tuple[str, ...]
    quick: bool = False
    cores: int = 1
    strong: bool = False
    data: Mapping[str, Path] = field(default_factory=dict)
    skip_damaged: bool = False
    repeats: int = stats.FEWEST
    external_data: bool = False
    network: Expected | None = None
    gpus: bool = False
    performance: tuple[Reference, ...] = ()
    node_local: str = ""

    @property
    def most(self) -> int:
        """The largest count of ranks."""
        return max(self.ranks)

    def crowded(self, ranks: int, nodes: int = 1) -> bool:
        """Whether ranks share cores."""
        return ranks > self.cores * nodes


@dataclass
class Observations:
    """What the steps have observed so far.

    Attributes:
        mpis: how ranks named their MPI, by way.
        placed: each rank's host, in the largest launch.
        crowded: ranks share cores by their own account: simulated hosts are on one machine.
        findings: what went wrong or could not be done.
        failed: why a line has no samples, by its key.
        codes: exit codes of failed steps.
        stopped: why the proof did not hold, which ends the validation; else empty.
        memory, disk: measured bounds.
        steps_of: the key of the training that ``steps`` belong to.
        runs: trainings in the container, by model, for :mod:`fairlead.perf.projection`.
        busy: cores of this node that other processes kept busy, looked at while no rank ran.
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
    busy: list[float] = field(default_factory=list)

    @property
    def hosts(self) -> tuple[str, ...]:
        """Each host once, in the order in which ranks fill them."""
        return tuple(dict.fromkeys(self.placed))

    def nodes(self, ranks: int) -> int:
        """The number of hosts of that many ranks, as far as known."""
        return max(len(set(self.placed[:ranks])), 1)


@dataclass(frozen=True)
class Context:
    """What every step gets.

    Attributes:
        ways: how programs are launched; at least one, which is in a container.
        launcher: its kind, by which measurements are distinguished.
    """

    options: Options
    ways: Mapping[Way, Runner]
    launcher: str
    progress: Progress
    observations: Observations = field(default_factory=Observations)

    @property
    def container(self) -> Runner:
        """The first way: in a container."""
        return next(iter(self.ways.values()))

    def crowded(self, ranks: int) -> bool:
        """Whether that many ranks share cores, as far as their hosts are known."""
        return self.options.crowded(ranks, self.observations.nodes(ranks))

    @property
    def roomiest(self) -> int:
        """The most ranks that have a core each; the most of all if every count shares cores."""
        counts = self.options.ranks
        return max((n for n in counts if not self.crowded(n)), default=self.options.most)

    def attempt(
        self, title: str, action: Callable[[], None], lines: Sequence[Measurement] = ()
    ) -> None:
        """Runs a step, then looks for other work. Its failure is kept and does not end the validation.

        Args:
            lines: measurements without samples that the action would have made: reported with the reason.
        Raises:
            FairleadError: an interrupt, or a proof that does not hold.
        """
        with self.progress.stage(title) as stage:
            try:
                action()
                self.look()
            except FairleadError as exc:
                if exc.code is ExitCode.INTERRUPTED:
                    raise
                failed = exc
            except OSError as exc:  # the report's folder is full
                failed = fail(
                    "output-unwritable-report",
                    filename=exc.filename or "the report's folder",
                    reason=exc.strerror or str(exc),
                )
            else:
                return
            findings = self._keep(title, failed, lines)
            stage.failed(findings[0].what)
        if failed.code is ExitCode.PROOF_FAILED:
            self.observations.stopped = tuple(findings)
            raise failed

    def look(self) -> None:
        """Looks for other work on this node; only while no rank of ours runs."""
        if (others := processors.others()) is not None:
            self.observations.busy.append(others)

    def _keep(
        self, title: str, failed: FairleadError, lines: Sequence[Measurement]
    ) -> list[Finding]:
        observations = self.observations
        # A rank that died before MPI started has not reported its host; earlier launches know it.
        hosts = dict(enumerate(observations.placed))
        findings = [
            replace(f, where=f"{title}: {launching.on_host(f.where, hosts)}")
            for f in failed.findings
        ]
        observations.findings += findings
        observations.codes.append(failed.code)
        there = {m.key for m in observations.measurements}
        for line in lines:
            if line.key not in there:
                observations.measurements.append(line)
                observations.failed[line.key] = findings[0]
        return findings

    def each_way(
        self,
        title: str,
        action: Callable[[Context, Way, Runner], None],
        line: Callable[[Way], Measurement] | None = None,
        first_only: bool = False,
    ) -> None:
        """Attempts ``action`` by every way, or the first; ``line`` as ``lines`` of :meth:`attempt`."""
        for way, run in list(self.ways.items())[: 1 if first_only else None]:
            lines = [line(way)] if line else []
            self.attempt(f"{title}, {way.value}", partial(action, self, way, run), lines)


@dataclass(frozen=True)
class Step:
    """One step of a validation.

    Attributes:
        order: steps run in ascending order.
        measure: runs it.
        describe: what it would do, a line each, for ``--dry-run``.
        lines: how many measurements it makes by each way, at most.
    """

    order: int
    measure: Callable[[Context], None]
    describe: Callable[[Options], Sequence[str]]
    lines: Callable[[Options], int]
