"""Trains a bundled model in an image, from outside: data, speed on 1 rank, training, baseline.

How a command is launched in an image is the caller's: :func:`train` gets a :data:`Runner`. What
the ranks do is :mod:`fairlead.train.worker`; they tell of it by :mod:`fairlead.train.events`.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fairlead.findings import FairleadError, Finding, Severity, error, fail
from fairlead.models import registry
from fairlead.models.task import Gate, Recipe, Task
from fairlead.paths import atomic_write, cache_dir
from fairlead.progress import Progress, Stage
from fairlead.serial import from_json, to_json
from fairlead.train.events import Tail
from fairlead.train.model import WorkerConfig, WorkerResult

_LOOK_EVERY_S = 0.2
# What the speed of 1 rank may take to measure, however short the training is to be.
_MEASURE_S = 90.0


@dataclass(frozen=True)
class RunOutcome:
    """How a launch ended.

    Attributes:
        code: exit code, 0 when all ranks ended well.
        output: the last of what the ranks printed.
        killed: the rank that a signal ended first, and its host; None where none was.
    """

    code: int
    output: str
    killed: Finding | None = None


# Launches (ranks, command, folders to bind at their own paths, writable) and waits for its end.
Runner = Callable[[int, Sequence[str], Sequence[Path]], RunOutcome]


@dataclass(frozen=True)
class TrainOptions:
    """What to train and how long.

    Attributes:
        run_dir: folder for configuration, progress and results; made if absent.
        model: a name of :mod:`fairlead.models.registry`.
        published: by the published recipe instead of the quick one.
        backend, precision: of Keras; see :class:`fairlead.train.model.WorkerConfig`.
        ranks: processes of the training.
        data_dir: folder of one's own files; None generates synthetic ones in the cache.
        data_format: of generated files: ``hdf5``, ``tfrecord`` or ``tfrecord-gzip``.
        train_samples, val_samples: how many to generate; None for as many as the quick recipe needs.
        batch: samples a rank and step, on 1 rank and on all, so that scaling is weak; None for the recipe's.
        epochs: None for the recipe's.
        measure_steps: timed steps of the 1-rank measurement.
        checkpoints: folder of checkpoints; None for none.
        every_seconds, every_steps: between two checkpoints.
        resume: go on from the last whole checkpoint.
        skip_damaged: leave out files that cannot be read.
    """

    run_dir: Path
    model: str = "hepcnn"
    published: bool = False
    backend: str = "tensorflow"
    precision: str = "float32"
    ranks: int = 2
    data_dir: Path | None = None
    data_format: str = "hdf5"
    train_samples: int | None = None
    val_samples: int | None = None
    batch: int | None = None
    epochs: int | None = None
    max_seconds: float = 90.0
    measure_steps: int = 12
    warmup: int = 3
    dropout: float | None = None
    threads: int = 1
    seed: int = 1
    processes: int = 2
    checkpoints: Path | None = None
    every_seconds: float = 600.0
    every_steps: int | None = None
    resume: bool = False
    skip_damaged: bool = False

    @property
    def task(self) -> Task:
        """What the model is trained for."""
        return registry.find(self.model)

    @property
    def recipe(self) -> Recipe:
        """How, before what these options say otherwise."""
        return self.task.published if self.published else self.task.quick

    @property
    def each(self) -> int:
        """Samples a rank and step."""
        return self.batch or self.recipe.each(self.ranks)

    @property
    def samples(self) -> tuple[int, int]:
        """Training and held-out samples that are generated."""
        task = self.task
        return self.train_samples or task.train, self.val_samples or task.val


@dataclass(frozen=True)
class Baseline:
    """The linear model's scores on the same held-out samples (see :mod:`fairlead.data.baseline`)."""

    scores: dict[str, float]
    train: int
    val: int
    seconds: float


@dataclass(frozen=True)
class TrainResult:
    """What came out of :func:`train`.

    Attributes:
        one: the measurement on 1 rank; None when the training itself ran on 1.
        all: the training on all ranks.
        baseline: the linear model on the same held-out samples.
        data_dir: the files trained on.
        findings: what a person should know: a gate missed, the linear model not beaten.
    """

    one: WorkerResult | None
    all: WorkerResult
    baseline: Baseline
    data_dir: Path
    findings: tuple[Finding, ...] = ()

    @property
    def task(self) -> Task:
        """What the model was trained for."""
        return registry.find(self.all.model)

    @property
    def scores(self) -> dict[str, float]:
        """Held-out scores by name."""
        assert self.all.evaluation is not None  # `train` asks for it
        return self.all.evaluation.scores

    @property
    def gates(self) -> tuple[Gate, ...]:
        """The task's, of those targets that the data have."""
        return tuple(gate for gate in self.task.gates if gate.metric in self.scores)

    @property
    def efficiency(self) -> float:
        """Weak-scaling efficiency: samples/s on n ranks over n times that on 1; 1 where there is nothing to compare."""
        if self.one is None or self.one.speed is None or self.all.speed is None:
            return 1.0
        return self.all.speed.samples_per_s / (self.all.ranks * self.one.speed.samples_per_s)


def train(runner: Runner, options: TrainOptions, progress: Progress) -> TrainResult:
    """Generates data if need be, measures 1 rank, trains on all, evaluates, fits the baseline.

    Raises:
        FairleadError: a launch failed, the loss became NaN, or the ranks' weights differ. A model
            that learnt too little is a finding in the result.
    """
    options.run_dir.mkdir(parents=True, exist_ok=True)
    if options.checkpoints is not None:
        options.checkpoints.mkdir(parents=True, exist_ok=True)
    data = options.data_dir or generate(runner, options, progress)
    one = _measure_one(runner, options, data, progress) if options.ranks > 1 else None
    everyone = _train(runner, options, data, progress)
    baseline = _baseline(runner, options, data, everyone.damaged, progress)
    result = TrainResult(one, everyone, baseline, data)
    return replace(result, findings=tuple(judge(result)))


def data_key(options: TrainOptions) -> str:
    """The cache folder's name: a hash of all that the generated samples depend on."""
    from fairlead.data import VERSIONS

    task = options.task
    made_of = (VERSIONS[task.data], *options.samples, options.seed, task.size, options.data_format)
    return f"{task.data}-" + hashlib.sha256(repr(made_of).encode()).hexdigest()[:12]


def generate(runner: Runner, options: TrainOptions, progress: Progress) -> Path:
    """The folder of generated files in the cache; what is missing of them is made.

    Raises:
        FairleadError: the launch failed.
    """
    folder = cache_dir() / "data" / data_key(options)
    folder.mkdir(parents=True, exist_ok=True)
    task = options.task
    whole = sum(options.samples)
    events = _fresh(options.run_dir / "generate.jsonl")
    command = [
        "python3",
        "-m",
        "fairlead.data.generate",
        "--out",
        str(folder),
        "--train",
        str(options.samples[0]),
        "--val",
        str(options.samples[1]),
        "--set",
        task.data,
        "--size",
        str(task.size),
        "--format",
        options.data_format,
        "--seed",
        str(options.seed),
        "--processes",
        str(options.processes),
        "--events-file",
        str(events),
    ]
    unit = f"{task.sample}s"
    with progress.stage(f"generate {unit}", whole, unit) as stage:
        done = _Counter(stage)

        def show(event: dict[str, Any]) -> None:
            if event["event"] == "start":
                done.reach(event["kept"])
                stage.result(f"{whole:,} {unit}" + (", cached" if event["kept"] == whole else ""))
            elif event["event"] == "shard":
                done.reach(event["events"])

        launch(runner, 1, command, [folder, options.run_dir], events, show)
    return folder


def _measure_one(
    runner: Runner, options: TrainOptions, data: Path, progress: Progress
) -> WorkerResult:
    steps = options.warmup + options.measure_steps
    with progress.stage("measure speed on 1 rank", steps, "steps") as stage:
        result = work(runner, options, data, 1, steps, stage)
        assert result.speed is not None  # it does not go on from anything
        stage.result(f"{result.speed.samples_per_s:.0f} samples/s")
    return result


def _train(runner: Runner, options: TrainOptions, data: Path, progress: Progress) -> WorkerResult:
    task = options.task
    title = f"train {task.title} on {options.ranks} rank{'s' if options.ranks > 1 else ''}"
    with progress.stage(title, None, "steps") as stage:
        result = work(runner, options, data, options.ranks, None, stage)
        assert result.evaluation is not None
        held = result.evaluation.scores
        scores = [f"{name(g.metric)} {held[g.metric]:.3f}" for g in task.gates if g.metric in held]
        speed = [f"{result.speed.samples_per_s:.0f} samples/s"] if result.speed else []
        stage.result(", ".join([*scores, *speed, f"{len(result.loss)} steps"]))
    return result


def work(
    runner: Runner,
    options: TrainOptions,
    data: Path,
    ranks: int,
    max_steps: int | None,
    stage: Stage,
) -> WorkerResult:
    """One launch of the worker; ``max_steps`` makes it a measurement without evaluation."""
    folder = options.run_dir
    stem = "measure" if max_steps else "train"
    result = folder / f"{stem}.result.json"
    result.unlink(missing_ok=True)
    measure = max_steps is not None
    config = WorkerConfig(
        data=data,
        result=result,
        model=options.model,
        published=options.published,
        backend=options.backend,
        precision=options.precision,
        events=_fresh(folder / f"{stem}.events.jsonl"),
        batch=options.each,
        epochs=options.epochs,
        max_seconds=max(options.max_seconds, _MEASURE_S) if measure else options.max_seconds,
        max_steps=max_steps,
        warmup=options.warmup,
        measure_only=measure,
        dropout=options.dropout,
        threads=options.threads,
        seed=options.seed,
        checkpoints=None if measure else options.checkpoints,
        every_seconds=options.every_seconds,
        every_steps=options.every_steps,
        resume=options.resume and not measure,
        skip_damaged=options.skip_damaged,
    )
    assert config.events is not None
    path = folder / f"{stem}.config.json"
    with atomic_write(path, "w") as stream:
        json.dump(to_json(config), stream, indent=2)
    command = ["python3", "-m", "fairlead.train.worker", "--config", str(path)]
    binds = [data, folder, *([options.checkpoints] if options.checkpoints else [])]
    launch(runner, ranks, command, binds, config.events, _ShowTraining(stage))
    try:
        return from_json(WorkerResult, json.loads(result.read_text()))
    except (OSError, ValueError) as exc:
        raise fail(
            "the ranks ended well but left no result",
            where=str(result),
            why=str(exc),
            remedy="run the same command again; the image's fairlead may be another version:"
            " build it anew",
            check="train-no-result",
        ) from exc


class _ShowTraining:
    """Turns a worker's events into a stage's progress."""

    def __init__(self, stage: Stage):
        self._stage, self._done = stage, _Counter(stage)

    def __call__(self, event: dict[str, Any]) -> None:
        kind = event["event"]
        if kind == "setup":
            self._stage.note("loading the framework")
        elif kind == "start":
            self._stage.total(event["steps"])
            self._done.reach(event["begin"])
            self._stage.note("compiling the first step")
        elif kind == "step":
            self._done.reach(event["step"])
            self._stage.note(f"loss {event['loss']:.3f}, {event['samples_per_s']:.0f} samples/s")
        elif kind == "resumed":
            self._stage.note(f"going on after step {event['step']}")
        elif kind == "damaged":
            self._stage.note(f"left out: {event['what']}")
        elif kind == "evaluate":
            self._stage.note(f"scoring {event['samples']} held-out samples")
        elif kind == "evaluated":
            self._stage.note(f"scored {event['samples']} held-out samples")


class _Counter:
    """Advances a stage to absolute amounts."""

    def __init__(self, stage: Stage):
        self._stage, self._at = stage, 0.0

    def reach(self, amount: float) -> None:
        self._stage.advance(amount - self._at)
        self._at = amount


def _baseline(
    runner: Runner, options: TrainOptions, data: Path, damaged: Sequence[str], progress: Progress
) -> Baseline:
    result = options.run_dir / "baseline.json"
    command = ["python3", "-m", "fairlead.data.baseline"]
    command += ["--data", str(data), "--out", str(result), "--model", options.model]
    command += [word for path in damaged for word in ("--leave-out", path)]
    with progress.stage("fit the linear baseline") as stage:
        launch(runner, 1, command, [data, options.run_dir])
        baseline = from_json(Baseline, json.loads(result.read_text()))
        held = baseline.scores
        gates = [g for g in options.task.gates if g.metric in held]
        stage.result(", ".join(f"{name(g.metric)} {held[g.metric]:.3f}" for g in gates))
    return baseline


def _fresh(events: Path) -> Path:
    events.unlink(missing_ok=True)
    return events


def launch(
    runner: Runner,
    ranks: int,
    command: Sequence[str],
    binds: Sequence[Path],
    events: Path | None = None,
    show: Callable[[dict[str, Any]], None] | None = None,
) -> None:
    """Runs ``command``, showing its events meanwhile.

    Raises:
        FairleadError: it failed. What a rank itself wrote of the cause comes first.
    """
    try:
        if events is not None and show is not None:
            with _watched(events, show):
                outcome = runner(ranks, command, binds)
        else:
            outcome = runner(ranks, command, binds)
    except FairleadError as exc:
        raise _at_step(exc, events) from None
    if outcome.code:
        raise _at_step(_failure(outcome, command, events), events)


@contextmanager
def _watched(events: Path, show: Callable[[dict[str, Any]], None]) -> Iterator[None]:
    """Shows events as they come, from a thread, so that the launch keeps the main one: signals
    arrive there."""
    over = threading.Event()
    tail = Tail(events)

    def watch() -> None:
        last = False
        while not last:
            last = over.wait(_LOOK_EVERY_S)  # one more look after the end
            for event in tail.read():
                show(event)

    thread = threading.Thread(target=watch, name="events", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _at_step(error: FairleadError, events: Path | None) -> FairleadError:
    """The same; of a rank that was killed in a training, also in which step."""
    killed = {"rank-died", "rank-failed"}
    if events is None or not any(f.check in killed for f in error.findings):
        return error
    done = max((e["step"] for e in Tail(events).read() if e["event"] == "step"), default=None)
    when = "before its first step was over" if done is None else f"in step {done + 1}"
    findings = [
        replace(f, where=f"{f.where}, {when}") if f.check in killed else f for f in error.findings
    ]
    return FairleadError(findings, error.code)


def _failure(outcome: RunOutcome, command: Sequence[str], events: Path | None) -> FairleadError:
    told = [e for e in Tail(events).read() if e["event"] == "error"] if events else []
    # What the others say of a rank that is gone is no cause.
    if outcome.killed and all(e.get("check") == "comm-peer-lost" for e in told):
        return FairleadError(outcome.killed)
    if told:
        first = told[0]
        return fail(
            first["what"],
            where=first.get("where", ""),
            why=first.get("why", ""),
            remedy=first.get("remedy") or f"see {events}",
            check=first.get("check", "train-rank"),
        )
    last = "\n".join(outcome.output.strip().splitlines()[-12:])
    return fail(
        f"`{' '.join(command[:3])}` ended with exit code {outcome.code}",
        where=" ".join(command),
        why=last or "it printed nothing",
        remedy="mend what it says, then run the same command again",
        check="train-launch",
    )


def name(metric: str) -> str:
    """A score's name as it is shown: ``AUC``, ``accuracy``."""
    return "AUC" if metric == "auc" else metric


def judge(result: TrainResult) -> Iterator[Finding]:
    """What a finished training shows: an error where the linear model was not beaten, a warning where a gate was
    missed, or where files or checkpoints were left out."""
    task, held_out = result.task, f"{result.baseline.val} held-out {result.task.sample}s"
    how_long = f"{result.all.epochs_done:.2f} epochs in {result.all.train_seconds:.0f} s"
    longer = "train longer, e.g. with twice the time limit"
    for gate in result.gates:
        score, linear = result.scores[gate.metric], result.baseline.scores[gate.metric]
        if not gate.better(score, linear):
            yield error(
                f"{task.title} ({name(gate.metric)} {score:.3f}) did not beat the linear model ({linear:.3f})",
                where=held_out,
                why=how_long,
                remedy=longer,
                check="train-not-learnt",
            )
        elif not gate.passed(score):
            yield Finding(
                Severity.WARNING,
                f"{name(gate.metric)} {score:.3f} is not {gate.words}",
                held_out,
                f"training stopped by {result.all.stopped_by} after {how_long}",
                longer,
                "train-below-gate",
            )
    if result.all.damaged:
        yield Finding(
            Severity.WARNING,
            f"{len(result.all.damaged)} files were left out because they cannot be read",
            result.all.damaged[0],
            "truncated, altered or of another kind: the same on every rank",
            "copy or generate them again",
            "train-skipped",
        )
    if result.all.unreadable:
        since = f"went on after step {result.all.resumed_from}"
        yield Finding(
            Severity.WARNING,
            f"{len(result.all.unreadable)} checkpoints were passed over because they are damaged",
            "; ".join(result.all.unreadable),
            since if result.all.resumed_from else "none was whole: the training began anew",
            "nothing: the training writes them again; look at that disk",
            "checkpoint-damaged",
        )
