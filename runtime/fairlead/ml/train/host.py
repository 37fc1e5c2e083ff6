"""Trains a model in an image, from outside: data, speed on 1 rank, training, baseline.

The caller decides how a command is launched in an image: :func:`train` gets a :data:`Runner`
(:mod:`fairlead.ml.train.runner`). The ranks run :mod:`fairlead.ml.train.worker` and report by
:mod:`fairlead.ml.train.events`.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, TypeVar

from fairlead.base.errors import FairleadError, fail
from fairlead.base.paths import atomic_write, cache_dir
from fairlead.base.progress import Progress, Stage
from fairlead.base.serde import from_json, to_json
from fairlead.ml.task import Task
from fairlead.ml.train.model import Training, TrainOptions, WorkerConfig, WorkerResult, tuned
from fairlead.ml.train.result import Baseline, TrainResult, judge, score_name
from fairlead.ml.train.runner import Runner, launch

T = TypeVar("T")
WORKER = "fairlead.ml.train.worker"  # the module that every rank of a training runs


def train(
    runner: Runner,
    options: TrainOptions,
    progress: Progress,
    again: Callable[[FairleadError], bool] = lambda failure: False,
) -> TrainResult:
    """Generates data if necessary, measures 1 rank, trains on all, evaluates, fits the baseline.

    Args:
        again: whether a launch that failed is to begin again, from the last whole checkpoint.
    Raises:
        FairleadError: a launch failed, the loss became NaN, or the ranks' weights differ. A model
            that learnt too little is a finding in the result.
    """
    options.run_dir.mkdir(parents=True, exist_ok=True)
    if options.checkpoints is not None:
        options.checkpoints.mkdir(parents=True, exist_ok=True)

    def persist(step: Callable[[TrainOptions], T]) -> T:
        asked = options
        while True:
            try:
                return step(asked)
            except FairleadError as failure:
                if not again(failure):
                    raise
                asked = replace(options, resume=True)

    data = options.data_dir or persist(lambda asked: generate(runner, asked, progress))
    single = None
    if options.ranks > 1:
        single = persist(lambda asked: _measure_one(runner, asked, data, progress))
    source = _before(runner, options, data, progress)
    everyone = persist(lambda asked: _train(runner, replace(asked, source=source), data, progress))
    baseline = persist(lambda asked: _baseline(runner, asked, data, everyone.damaged, progress))
    result = TrainResult(single, everyone, baseline, data)
    return replace(result, findings=tuple(judge(result)))


def _before(runner: Runner, options: TrainOptions, data: Path, progress: Progress) -> Path | None:
    """Repeats the trainings whose weights this one begins with; the checkpoints of the last of them."""
    source = options.source
    for number, (part, parameters) in enumerate(options.before):
        folder = options.run_dir / f"before-{number}"
        (folder / "checkpoints").mkdir(parents=True, exist_ok=True)
        asked = replace(
            options, run_dir=folder, checkpoints=folder / "checkpoints", every_seconds=math.inf, every_steps=None,
            resume=True, source=source, part=part,
        )  # fmt: skip
        _train(runner, tuned(asked, parameters), data, progress)
        source = asked.checkpoints
    return source


def data_key(options: TrainOptions) -> str:
    """The cache folder's name: a hash of all that the generated samples depend on."""
    task = options.task
    made_of = (task.data.version, *options.samples, options.seed, task.size, options.data_format)
    return f"{task.data.name}-" + hashlib.sha256(repr(made_of).encode()).hexdigest()[:12]


def generate(runner: Runner, options: TrainOptions, progress: Progress) -> Path:
    """The folder of generated files in the cache; missing ones are generated.

    Raises:
        FairleadError: the launch failed.
    """
    folder = cache_dir() / "data" / data_key(options)
    folder.mkdir(parents=True, exist_ok=True)
    task = options.task
    whole = sum(options.samples)
    events = _fresh(options.run_dir / "generate.jsonl")
    train, val = options.samples
    command = _command(
        "fairlead.ml.data.generate", out=folder, train=train, val=val, set=task.data.name, size=task.size,
        format=options.data_format, seed=options.seed, processes=options.processes, events_file=events,
    )  # fmt: skip
    unit = f"{task.sample}s"
    with progress.stage(f"generate {unit}", whole, unit) as stage:
        reach = _reaching(stage)

        def show(event: dict[str, Any]) -> None:
            if event["event"] == "start":
                reach(event["kept"])
                stage.result(f"{whole:,} {unit}" + (", cached" if event["kept"] == whole else ""))
            elif event["event"] == "shard":
                reach(event["events"])

        launch(runner, 1, command, [folder, options.run_dir], events, show)
    return folder


def _command(module: str, **options: object) -> list[str]:
    """``python3 -m MODULE --name VALUE …``."""
    words = ["python3", "-m", module]
    for name, value in options.items():
        words += [f"--{name.replace('_', '-')}", str(value)]
    return words


def _measure_one(
    runner: Runner, options: TrainOptions, data: Path, progress: Progress
) -> WorkerResult:
    steps = options.warmup + options.measure_steps
    patience = max(options.max_seconds, options.measure_seconds)
    options = replace(options, measure_seconds=patience)
    with progress.stage("measure speed on 1 rank", steps, "steps") as stage:
        result = work(runner, options, data, 1, steps, stage)
        assert result.speed is not None  # a measurement starts fresh
        stage.result(f"{result.speed.samples_per_s:.0f} samples/s")
    return result


def _train(runner: Runner, options: TrainOptions, data: Path, progress: Progress) -> WorkerResult:
    task = options.task
    title = f"train {task.title} on {options.ranks} rank{'s' if options.ranks > 1 else ''}"
    with progress.stage(title, None, "steps") as stage:
        result = work(runner, options, data, options.ranks, None, stage)
        assert result.evaluation is not None
        speed = [f"{result.speed.samples_per_s:.0f} samples/s"] if result.speed else []
        scores = _gated(task, result.evaluation.scores)
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
    config, path = configured(options, data, max_steps)
    folder, result = options.run_dir, config.result
    more = (options.checkpoints, None if max_steps else options.source)
    binds = [data, folder, *(path for path in more if path)]
    assert config.events is not None
    launch(runner, ranks, worker_command(path), binds, config.events, _showing(stage))
    try:
        return from_json(WorkerResult, json.loads(result.read_text("utf-8")))
    except (OSError, ValueError) as exc:
        raise fail("train-no-result", result=result, reason=exc) from exc


def worker_command(config: Path) -> list[str]:
    """What each rank of a training executes."""
    return _command(WORKER, config=config)


def configured(
    options: TrainOptions, data: Path, max_steps: int | None = None
) -> tuple[WorkerConfig, Path]:
    """The configuration of one launch of the worker, and the file that it was written to."""
    folder, measure = options.run_dir, max_steps is not None
    stem = "measure" if measure else "train"
    result = _fresh(folder / f"{stem}.result.json")
    asked = {field.name: getattr(options, field.name) for field in fields(Training)}
    asked |= {"batch": options.each}
    if measure:
        asked |= {"max_seconds": options.measure_seconds, "checkpoints": None, "resume": False}
        asked |= {"source": None, "parts": 1, "part": 0}
    config = WorkerConfig(
        data=data,
        result=result,
        events=_fresh(folder / f"{stem}.events.jsonl"),
        max_steps=max_steps,
        least_steps=options.warmup + options.measure_least if measure else 0,
        measure_only=measure,
        **asked,
    )
    path = folder / f"{stem}.config.json"
    with atomic_write(path, "w") as stream:
        json.dump(to_json(config), stream, indent=2)
    return config, path


# By a worker's event, what its stage shows.
_NOTES = {
    "setup": "loading the framework",
    "start": "compiling the first step",
    "step": "loss {loss:.3f}, {samples_per_s:.0f} samples/s",
    "resumed": "going on after step {step}",
    "damaged": "left out: {what}",
    "evaluate": "scoring {samples} held-out samples",
    "evaluated": "scored {samples} held-out samples",
}


def _showing(stage: Stage) -> Callable[[dict[str, Any]], None]:
    """Turns a worker's events into a stage's progress."""
    reach = _reaching(stage)

    def show(event: dict[str, Any]) -> None:
        kind = event["event"]
        if kind == "start":
            stage.total(event["steps"])
            reach(event["begin"])
        elif kind == "step":
            reach(event["step"])
        if kind in _NOTES:
            stage.note(_NOTES[kind].format(**event))

    return show


def _reaching(stage: Stage) -> Callable[[float], None]:
    """Advances a stage to absolute amounts."""
    at = 0.0

    def reach(amount: float) -> None:
        nonlocal at
        stage.advance(amount - at)
        at = amount

    return reach


def _baseline(
    runner: Runner, options: TrainOptions, data: Path, damaged: Sequence[str], progress: Progress
) -> Baseline:
    result = options.run_dir / "baseline.json"
    command = _command("fairlead.ml.data.baseline", data=data, out=result, model=options.model)
    command += [word for path in damaged for word in ("--leave-out", path)]
    command += ["--external-data"] if options.external_data else []
    with progress.stage("fit the linear baseline") as stage:
        launch(runner, 1, command, [data, options.run_dir])
        baseline = from_json(Baseline, json.loads(result.read_text("utf-8")))
        stage.result(", ".join(_gated(options.task, baseline.scores)))
    return baseline


def _gated(task: Task, scores: Mapping[str, float]) -> list[str]:
    """The scores that have a gate, in words."""
    metrics = [gate.metric for gate in task.gates if gate.metric in scores]
    return [f"{score_name(metric)} {scores[metric]:.3f}" for metric in metrics]


def _fresh(path: Path) -> Path:
    path.unlink(missing_ok=True)
    return path
