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
from fairlead.paths import atomic_write, cache_dir
from fairlead.progress import Progress, Stage
from fairlead.serial import from_json, to_json
from fairlead.train.events import Tail
from fairlead.train.model import WorkerConfig, WorkerResult

# The published gate of this data set: a linear model is near .55, counting clusters gives .95.
AUC_GATE = 0.90

_LOOK_EVERY_S = 0.2


@dataclass(frozen=True)
class RunOutcome:
    """How a launch ended.

    Attributes:
        code: exit code, 0 when all ranks ended well.
        output: the last of what the ranks printed.
    """

    code: int
    output: str


# Launches (ranks, command, folders to bind at their own paths, writable) and waits for its end.
Runner = Callable[[int, Sequence[str], Sequence[Path]], RunOutcome]


@dataclass(frozen=True)
class TrainOptions:
    """What to train and how long.

    Attributes:
        run_dir: folder for configuration, progress and results; made if absent.
        ranks: processes of the training.
        data_dir: folder of one's own HEP-CNN files; None generates synthetic ones in the cache.
        train_events, val_events: how many to generate.
        batch: samples a rank and step, on 1 rank and on all, so that scaling is weak.
        measure_steps: timed steps of the 1-rank measurement.
    """

    run_dir: Path
    ranks: int = 2
    data_dir: Path | None = None
    train_events: int = 6000
    val_events: int = 2000
    batch: int = 16
    epochs: int = 1
    max_seconds: float = 90.0
    measure_steps: int = 12
    warmup: int = 3
    learning_rate: float = 1e-3
    dropout: float = 0.0
    threads: int = 1
    seed: int = 1
    processes: int = 2


@dataclass(frozen=True)
class Baseline:
    """The linear model's result on the same held-out events (see :mod:`fairlead.data.baseline`)."""

    auc: float
    train: int
    val: int
    seconds: float


@dataclass(frozen=True)
class TrainResult:
    """What came out of :func:`train`.

    Attributes:
        one: the measurement on 1 rank; None when the training itself ran on 1.
        all: the training on all ranks.
        baseline: the linear model on the same held-out events.
        data_dir: the files trained on.
        findings: what a person should know: the gate missed, the linear model not beaten.
    """

    one: WorkerResult | None
    all: WorkerResult
    baseline: Baseline
    data_dir: Path
    findings: tuple[Finding, ...] = ()

    @property
    def efficiency(self) -> float:
        """Weak-scaling efficiency: samples/s on n ranks over n times that on 1."""
        if self.one is None:
            return 1.0
        return self.all.speed.samples_per_s / (self.all.ranks * self.one.speed.samples_per_s)

    @property
    def auc(self) -> float:
        """Held-out area under the ROC curve."""
        assert self.all.evaluation is not None  # `train` asks for it
        return self.all.evaluation.auc


def train(runner: Runner, options: TrainOptions, progress: Progress) -> TrainResult:
    """Generates data if need be, measures 1 rank, trains on all, evaluates, fits the baseline.

    Raises:
        FairleadError: a launch failed, the loss became NaN, or the ranks' weights differ. A model
            that learnt too little is a finding in the result.
    """
    options.run_dir.mkdir(parents=True, exist_ok=True)
    data = options.data_dir or _generate(runner, options, progress)
    one = _measure_one(runner, options, data, progress) if options.ranks > 1 else None
    everyone = _train(runner, options, data, progress)
    baseline = _baseline(runner, options, data, progress)
    result = TrainResult(one, everyone, baseline, data)
    return replace(result, findings=tuple(judge(result)))


def data_key(options: TrainOptions) -> str:
    """The cache folder's name: a hash of all that the generated events depend on."""
    from fairlead.data import VERSION

    made_of = (VERSION, options.train_events, options.val_events, options.seed)
    return "hep-" + hashlib.sha256(repr(made_of).encode()).hexdigest()[:12]


def _generate(runner: Runner, options: TrainOptions, progress: Progress) -> Path:
    folder = cache_dir() / "data" / data_key(options)
    folder.mkdir(parents=True, exist_ok=True)
    whole = options.train_events + options.val_events
    events = _fresh(options.run_dir / "generate.jsonl")
    command = [
        "python3",
        "-m",
        "fairlead.data.generate",
        "--out",
        str(folder),
        "--train",
        str(options.train_events),
        "--val",
        str(options.val_events),
        "--seed",
        str(options.seed),
        "--processes",
        str(options.processes),
        "--events-file",
        str(events),
    ]
    with progress.stage("generate HEP events", whole, "events") as stage:
        done = _Counter(stage)

        def show(event: dict[str, Any]) -> None:
            if event["event"] == "start":
                done.reach(event["kept"])
                stage.result(f"{whole:,} events" + (", cached" if event["kept"] == whole else ""))
            elif event["event"] == "shard":
                done.reach(event["events"])

        _launch(runner, 1, command, [folder, options.run_dir], events, show)
    return folder


def _measure_one(
    runner: Runner, options: TrainOptions, data: Path, progress: Progress
) -> WorkerResult:
    steps = options.warmup + options.measure_steps
    with progress.stage("measure speed on 1 rank", steps, "steps") as stage:
        result = _work(runner, options, data, 1, steps, stage)
        stage.result(f"{result.speed.samples_per_s:.0f} samples/s")
    return result


def _train(runner: Runner, options: TrainOptions, data: Path, progress: Progress) -> WorkerResult:
    title = f"train HEP-CNN on {options.ranks} rank{'s' if options.ranks > 1 else ''}"
    with progress.stage(title, None, "steps") as stage:
        result = _work(runner, options, data, options.ranks, None, stage)
        assert result.evaluation is not None
        stage.result(
            f"AUC {result.evaluation.auc:.3f}, {result.speed.samples_per_s:.0f} samples/s,"
            f" {len(result.loss)} steps"
        )
    return result


def _work(
    runner: Runner,
    options: TrainOptions,
    data: Path,
    ranks: int,
    max_steps: int | None,
    stage: Stage,
) -> WorkerResult:
    """One launch of the worker; ``max_steps`` makes it a measurement without evaluation."""
    folder = options.run_dir
    name = "measure" if max_steps else "train"
    result = folder / f"{name}.result.json"
    result.unlink(missing_ok=True)
    config = WorkerConfig(
        data=data,
        result=result,
        events=_fresh(folder / f"{name}.events.jsonl"),
        batch=options.batch,
        epochs=options.epochs,
        max_seconds=options.max_seconds,
        max_steps=max_steps,
        warmup=options.warmup,
        measure_only=max_steps is not None,
        learning_rate=options.learning_rate,
        dropout=options.dropout,
        threads=options.threads,
        seed=options.seed,
    )
    assert config.events is not None
    path = folder / f"{name}.config.json"
    with atomic_write(path, "w") as stream:
        json.dump(to_json(config), stream, indent=2)
    command = ["python3", "-m", "fairlead.train.worker", "--config", str(path)]
    _launch(runner, ranks, command, [data, folder], config.events, _ShowTraining(stage))
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
            self._stage.note("loading TensorFlow")
        elif kind == "start":
            self._stage.total(event["steps"])
            self._stage.note("compiling the first step")
        elif kind == "step":
            self._done.reach(event["step"])
            self._stage.note(f"loss {event['loss']:.3f}, {event['samples_per_s']:.0f} samples/s")
        elif kind == "evaluate":
            self._stage.note(f"scoring {event['events']} held-out events")
        elif kind == "evaluated":
            self._stage.note(f"scored {event['events']} held-out events")


class _Counter:
    """Advances a stage to absolute amounts."""

    def __init__(self, stage: Stage):
        self._stage, self._at = stage, 0.0

    def reach(self, amount: float) -> None:
        self._stage.advance(amount - self._at)
        self._at = amount


def _baseline(runner: Runner, options: TrainOptions, data: Path, progress: Progress) -> Baseline:
    result = options.run_dir / "baseline.json"
    command = ["python3", "-m", "fairlead.data.baseline", "--data", str(data), "--out", str(result)]
    with progress.stage("fit the linear baseline") as stage:
        _launch(runner, 1, command, [data, options.run_dir])
        baseline = from_json(Baseline, json.loads(result.read_text()))
        stage.result(f"AUC {baseline.auc:.3f}")
    return baseline


def _fresh(events: Path) -> Path:
    events.unlink(missing_ok=True)
    return events


def _launch(
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
    if events is not None and show is not None:
        with _watched(events, show):
            outcome = runner(ranks, command, binds)
    else:
        outcome = runner(ranks, command, binds)
    if outcome.code:
        raise _failure(outcome, command, events)


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


def _failure(outcome: RunOutcome, command: Sequence[str], events: Path | None) -> FairleadError:
    told = [e for e in Tail(events).read() if e["event"] == "error"] if events else []
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


def judge(result: TrainResult) -> Iterator[Finding]:
    """What a finished training shows."""
    auc, linear = result.auc, result.baseline.auc
    held_out = result.baseline.val
    if auc <= linear:
        yield error(
            f"HEP-CNN (AUC {auc:.3f}) did not beat the linear model ({linear:.3f})",
            where=f"{held_out} held-out events",
            why=f"{result.all.epochs_done:.2f} epochs in {result.all.train_seconds:.0f} s",
            remedy="train longer, e.g. with twice the time limit",
            check="train-not-learnt",
        )
    elif auc < AUC_GATE:
        yield Finding(
            Severity.WARNING,
            f"AUC {auc:.3f} is below {AUC_GATE}",
            f"{held_out} held-out events",
            f"training stopped by {result.all.stopped_by} after"
            f" {result.all.epochs_done:.2f} epochs",
            "train longer, e.g. with twice the time limit",
            "train-below-gate",
        )
