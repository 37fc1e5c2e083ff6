"""A validation, step by step: each step launches the same program natively and in the container, and gives values.

:func:`validate` is all of them in order. What a step could not do is a finding, and the next step goes on: a site wants to
know the rest.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path

from fairlead import launch as launching
from fairlead.findings import ExitCode, FairleadError, Finding, Severity, fail
from fairlead.models import registry
from fairlead.paths import atomic_write
from fairlead.progress import Progress, Silent
from fairlead.projection.runs import SmallRun
from fairlead.train import host as training
from fairlead.train.host import Runner, TrainOptions
from fairlead.train.model import StepTimes, WorkerResult
from fairlead.validate import faults, pairs, processors, sweeps
from fairlead.validate.compute import worked_of
from fairlead.validate.evidence import Bound, Clock, Culprit, Shares
from fairlead.validate.found import Kind
from fairlead.validate.model import Measurement, Way, What

_SOURCES = {
    "memory": "all ranks copying at once, median",
    "disk": "one file written and synced, median",
}
# On a crowded machine a turn of another rank looks like a slow link.
_CROWDED_THRESHOLD = 4.0
# What clocks may differ: nodes that keep time by NTP are within milliseconds.
_CLOCKS_S = 0.5


@dataclass(frozen=True)
class Wish:
    """What is to be measured.

    Attributes:
        out: folder for what the ranks write.
        ranks: how many, each count once, ascending.
        models: names of :mod:`fairlead.models.registry`.
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
        runs: trainings in the container, by model, for :mod:`fairlead.projection`.
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


Step = Callable[[Wish, Way, Runner, str, Seen], None]


def measure(
    wish: Wish, ways: Mapping[Way, Runner], launcher: str, progress: Progress, seen: Seen
) -> None:
    """Every step, by every way, into ``seen``. A proof that does not hold is the last step's.

    Args:
        ways: how programs are launched; a container at least.
        launcher: its kind, which measurements are told apart by.
    """
    wish.out.mkdir(parents=True, exist_ok=True)
    try:
        _steps(wish, ways, launcher, progress, seen)
    except FairleadError as exc:
        if exc.code is not ExitCode.PROOF_FAILED:
            raise


def _steps(
    wish: Wish, ways: Mapping[Way, Runner], launcher: str, progress: Progress, seen: Seen
) -> None:
    steps: tuple[tuple[str, Step], ...] = (
        ("start-up", _start),
        ("memory and storage", _hardware),
        ("messages", _sweeps),
    )
    for title, step in steps:
        for way, run in ways.items():
            begin = partial(step, wish, way, run, launcher, seen)
            lines = [_checkpoint_line(wish, way)] if step is _hardware else []
            _tried(f"{title}, {way.value}", begin, seen, progress, lines)
    if wish.most > 1:
        run = next(iter(ways.values()))
        _tried("search for what is slow", partial(_pairs, wish, run, seen), seen, progress)
    for model in wish.models:
        _models(wish, model, ways, launcher, seen, progress)


def _tried(
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
        stage.result(f"failed: {found[0].what}")
    if failed.code is ExitCode.PROOF_FAILED:
        seen.stopped = tuple(found)
        raise failed


def _fresh(path: Path) -> Path:
    path.unlink(missing_ok=True)
    return path


def _start(wish: Wish, way: Way, run: Runner, launcher: str, seen: Seen) -> None:
    phases: dict[str, list[float]] = {}
    clocks: dict[str, tuple[float, float]] = {}
    repeats = 5 if wish.quick else wish.repeats
    framework = [] if wish.quick or not wish.models else ["--framework", wish.backend]
    for _ in range(repeats):
        out = _fresh(wish.out / "start.json")
        words = ["python3", "-m", "fairlead.validate.start", "--out", str(out), *framework]
        training.launch(run, wish.most, [*words, "--begun", repr(time.time())], [wish.out])
        told = json.loads(out.read_text())
        for name, seconds in told["phases"].items():
            phases.setdefault(name, []).append(seconds)
        seen.mpis[way.value] = told["mpi"]
        seen.placed = tuple(told["hosts"])
        clocks = told["clocks"]
    if not any(f.check == "validate-clock" for f in seen.findings):
        seen.findings += _clocks(clocks)
    nodes = seen.nodes(wish.most)
    for name, values in phases.items():
        seen.measurements.append(
            Measurement(
                What.START, way, tuple(values), wish.most, nodes, subject=name,
                crowded=wish.crowded(wish.most, nodes), launcher=launcher,
            )
        )  # fmt: skip


def _clocks(found: Mapping[str, Sequence[float]]) -> Iterator[Finding]:
    """Clocks that differ by more than a timeline, a log or a lease of a file bears."""
    for host, (ahead, sure) in found.items():
        if abs(ahead) - sure > _CLOCKS_S:
            yield Finding(
                Severity.WARNING,
                f"the clock of {host} is {abs(ahead):.3g} s {'ahead' if ahead > 0 else 'behind'}",
                host,
                f"told by messages to the first rank's host, to within {sure:.2g} s",
                "have the node's clock set (chronyc tracking tells its state); until then times in its logs are off",
                "validate-clock",
            )


def _hardware(wish: Wish, way: Way, run: Runner, launcher: str, seen: Seen) -> None:
    """Checkpoints by each way; memory and storage by themselves, which bound the others, by the first."""
    out, folder = _fresh(wish.out / "hardware.json"), wish.out / "checkpoints"
    folder.mkdir(exist_ok=True)
    ranks = min(wish.most, wish.cores)
    line = _checkpoint_line(wish, way)
    words = [
        "python3",
        "-m",
        "fairlead.validate.hardware",
        "--out",
        str(out),
        "--folder",
        str(folder),
    ]
    training.launch(run, ranks, [*words, "--bytes", str(line.bytes)], [wish.out])
    told = json.loads(out.read_text())
    if seen.memory is None:
        seen.memory = Bound(statistics.median(told["memory"]), _SOURCES["memory"])
    if seen.disk is None and told["disk"]:
        seen.disk = Bound(statistics.median(told["disk"]), _SOURCES["disk"])
    if told["checkpoint"]:
        seen.measurements.append(replace(line, samples=tuple(told["checkpoint"])))
    if told["failed"]:
        raise fail(
            "a checkpoint cannot be written",
            where=str(folder),
            why=f"{told['failed']}, with {(line.bytes or 0) >> 20} MiB to write",
            remedy="make room there, or write the report elsewhere: -o FOLDER",
            check="validate-checkpoint",
        )


def _checkpoint_line(wish: Wish, way: Way) -> Measurement:
    """The line of checkpoints, without samples."""
    return Measurement(What.CHECKPOINT, way, (), bytes=(16 if wish.quick else 64) << 20)


def _sweeps(wish: Wish, way: Way, run: Runner, launcher: str, seen: Seen) -> None:
    """Messages of all ranks, and for several counts the collectives of each."""
    counts = (wish.most,) if wish.quick else tuple(n for n in wish.ranks if n > 1)
    for ranks in counts:
        if ranks < 2:
            continue
        sizes = sweeps.SIZES[::2] if wish.quick else sweeps.SIZES
        settings = sweeps.Settings(
            out=str(_fresh(wish.out / "sweeps.json")),
            sizes=sizes,
            through=("mpi", "comm"),
            repeats=6 if wish.quick else 10,
            limit_s=12 if wish.quick else 45,
        )
        config = wish.out / "sweeps.config.json"
        with atomic_write(config, "w") as stream:
            json.dump(asdict(settings), stream)
        words = ["python3", "-m", "fairlead.validate.sweeps", "--config", str(config)]
        training.launch(run, ranks, words, [wish.out])
        document = json.loads(Path(settings.out).read_text())
        found = sweeps.measurements(document, way, launcher)
        seen.crowded = seen.crowded or document["crowded"]
        seen.measurements += [
            m for m in found if m.what is not What.PINGPONG or ranks == counts[-1]
        ]
        for row in document["wrong_answers"][:3]:
            seen.findings.append(
                Finding(
                    Severity.ERROR,
                    f"{document['wrong']} answers of {ranks} ranks were wrong",
                    f"messages, {way.value}",
                    json.dumps(row),
                    "fairlead doctor; then the same by `--mpi container`, which tells whose MPI it is",
                    "validate-wrong",
                )
            )
            break


def _pairs(wish: Wish, run: Runner, seen: Seen) -> None:
    """Which node, link or processor is slower than its like."""
    crowded = seen.crowded or wish.crowded(wish.most, seen.nodes(wish.most))
    settings = pairs.Settings(
        out=str(_fresh(wish.out / "pairs.json")),
        link_threshold=_CROWDED_THRESHOLD if crowded else pairs.Settings.link_threshold,
        repeats=3 if wish.quick else pairs.Settings.repeats,
        limit_s=20 if wish.quick else 120,
    )
    config = wish.out / "pairs.config.json"
    with atomic_write(config, "w") as stream:
        json.dump(asdict(settings), stream)
    words = ["python3", "-m", "fairlead.validate.pairs", "--config", str(config)]
    training.launch(run, wish.most, words, [wish.out])
    document = json.loads(Path(settings.out).read_text())
    seen.clocks = processors.clocks([worked_of(one) for one in document["samples"]], seen.hosts)
    outcome = pairs.outcomes(document)["all"]
    for one in outcome.culprits:
        name = " - ".join(one.names)
        what = {Kind.COMPUTE: "processor of", Kind.LINK: "link of", Kind.PAIR: "path"}[one.kind]
        ranks = f", rank {', '.join(map(str, one.ranks))}" if one.kind is Kind.COMPUTE else ""
        # All that it takes: of a pair both, and for a link another node to talk to.
        nodes = max((seen.hosts.index(n) + 1 for n in one.names if n in seen.hosts), default=1)
        nodes = nodes if one.kind is Kind.COMPUTE else max(nodes, 2)
        only = one.kind is Kind.PAIR and len(seen.hosts) == 2
        against = "the other way" if only else "its like"
        who = f"{what} {name}{ranks}"
        seen.culprits.append(
            Culprit(who, one.evidence, one.times_slower, one.names, nodes, against)
        )
        seen.findings.append(
            Finding(
                Severity.WARNING,
                f"{who} is {one.times_slower:.1f} times slower than {'the other way' if only else 'the others'}",
                name, one.evidence, one.remedy, "validate-slow",
            )
        )  # fmt: skip


def _models(
    wish: Wish,
    model: str,
    ways: Mapping[Way, Runner],
    launcher: str,
    seen: Seen,
    progress: Progress,
) -> None:
    """One model at every count of ranks, by every way, a count after the other so that both ways see the same machine."""
    task = registry.find(model)
    steps = 15 if wish.quick else 25
    batch = task.quick.batch
    options = TrainOptions(
        run_dir=wish.out,
        model=model,
        backend=wish.backend,
        data_format="tfrecord" if wish.backend == "torch" else "hdf5",
        train_samples=max(batch * wish.most * (steps + 3), 500),
        val_samples=100,
        batch=batch,
        max_seconds=120,
        measure_steps=steps,
        processes=wish.cores,
        data_dir=wish.data.get(model),
        skip_damaged=wish.skip_damaged,
    )
    run = next(iter(ways.values()))
    made: list[Path] = []

    def generate() -> None:
        made.append(training.generate(run, options, Silent()))

    if options.data_dir is not None:
        made.append(options.data_dir)
    else:
        _tried(f"{task.title}: data", generate, seen, progress)
    if not made:
        return
    (data,) = made
    for way, by in ways.items():
        begin = partial(_input, wish, model, way, by, data, seen)
        title = f"{task.title}: input, {way.value}"
        _tried(title, begin, seen, progress, [_input_line(model, way)])
    for ranks in wish.ranks:
        for way, by in ways.items():
            title = f"{task.title} on {ranks} rank{'s' if ranks > 1 else ''}, {way.value}"
            begin = partial(_train, wish, options, ranks, way, by, data, launcher, seen)
            line = _train_line(wish, model, ranks, seen.nodes(ranks), way, launcher)
            _tried(title, begin, seen, progress, [line])


def _input(wish: Wish, model: str, way: Way, run: Runner, data: Path, seen: Seen) -> None:
    out, events = _fresh(wish.out / "input.json"), _fresh(wish.out / "input.jsonl")
    task = registry.find(model)
    batch = task.quick.batch
    more = ["--skip-damaged", "--verify"] if wish.skip_damaged else []
    windows = ["--windows", "6", "--window-s", "0.2" if wish.quick else "0.5", "--warmup-s", "0.2"]
    words = ["python3", "-m", "fairlead.data.speed", "--data", str(data), "--batch", str(batch)]
    words += [*windows, *more, "--json", "--out", str(out), "--events-file", str(events)]
    training.launch(run, 1, words, [data, wish.out], events)
    told = json.loads(out.read_text())
    seen.measurements.append(replace(_input_line(model, way), samples=tuple(told["windows"])))
    if skipped := told["skipped"]:
        files = f"{len(skipped)} damaged file{'s' if len(skipped) > 1 else ''}"
        seen.findings.append(
            Finding(
                Severity.WARNING,
                f"{files} of {task.title} {'were' if len(skipped) > 1 else 'was'} left out",
                skipped[0],
                "truncated, altered or of another kind, and --skip-damaged was given",
                "copy or generate them again",
                "train-skipped",
            )
        )


def _input_line(model: str, way: Way) -> Measurement:
    """The line of a model's input, without samples."""
    return Measurement(What.INPUT, way, (), subject=model)


def _train_line(
    wish: Wish, model: str, ranks: int, nodes: int, way: Way, launcher: str
) -> Measurement:
    """The line of a training, without samples."""
    crowded = wish.crowded(ranks, nodes)
    return Measurement(
        What.TRAIN, way, (), ranks, nodes, subject=model, crowded=crowded, launcher=launcher
    )


def _train(
    wish: Wish, options: TrainOptions, ranks: int, way: Way, run: Runner, data: Path, launcher: str,
    seen: Seen,
) -> None:  # fmt: skip
    each = options.batch or 1
    if wish.strong:  # the recipe's samples a step, whatever the ranks
        each = max(each // ranks, 1)
    with Silent().stage("") as stage:
        result = training.work(
            run,
            replace(options, batch=each),
            data,
            ranks,
            options.warmup + options.measure_steps,
            stage,
        )
    steps = tuple(s.after(options.warmup) for s in result.steps)
    whole = steps[0].whole_s
    hosts = len({w.host for w in result.weights})
    rates = tuple(each * ranks / seconds for seconds in whole)
    line = _train_line(wish, options.model, ranks, hosts, way, launcher)
    made = replace(line, samples=rates)
    seen.measurements.append(made)
    total = sum(whole) * len(result.steps)
    waits = [sum(s.input_s) for s in steps]
    talks = [sum(s.exposed_s) + sum(s.idle_s) for s in steps]
    seen.shares[made.key] = Shares(min(sum(waits) / total, 1.0), min(sum(talks) / total, 1.0))
    if way is not Way.NATIVE:
        seen.runs.setdefault(options.model, []).append(_small_run(result, hosts, steps))
    if ranks == wish.most and way is not Way.NATIVE and options.model == wish.models[0]:
        seen.steps, seen.steps_of = steps, made.key


def _small_run(result: WorkerResult, nodes: int, each: Sequence[StepTimes]) -> SmallRun:
    """A training as a projection wants it: gradients travel in float32, whatever layers compute in."""
    first = each[0]

    def mean(values: list[tuple[float, ...]]) -> tuple[float, ...]:
        return tuple(statistics.fmean(step) for step in zip(*values, strict=True))

    return SmallRun(
        ranks=result.ranks,
        nodes=nodes,
        compute_s=tuple(
            tuple(map(sum, zip(s.forward_s, s.backward_s, s.update_s, strict=True))) for s in each
        ),
        bytes=4 * result.parameters,
        local_batch=result.batch,
        communicate_s=first.exposed_s if result.ranks > 1 else (),
        wait_s=mean([s.idle_s for s in each]) if result.ranks > 1 else (),
        input_s=mean([s.input_s for s in each]),
        step_s=first.whole_s,
    )


def load() -> float | None:
    """Processes that want to run, mean of the last minute; None where the system does not say."""
    try:
        return os.getloadavg()[0]
    except OSError:
        return None


def machine_facts() -> dict[str, str]:
    """Of the machine that this runs on: kernel and processor."""
    return {"kernel": platform.release(), "processor": _processor()}


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")),
        platform.machine(),
    )
