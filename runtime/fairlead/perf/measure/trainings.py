"""Steps of a validation that read samples and train: each model at each count of ranks, by each way."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from fairlead.base.errors import Finding, Severity
from fairlead.base.progress import Progress, Silent
from fairlead.ml.models import registry
from fairlead.ml.train import host as training
from fairlead.ml.train.model import StepTimes, WorkerResult
from fairlead.ml.train.options import TrainOptions
from fairlead.ml.train.runner import Runner, launch
from fairlead.perf.measure.steps import Seen, Wish, fresh, roomiest, tried
from fairlead.perf.projection.small_runs import SmallRun
from fairlead.perf.records.evidence import Shares
from fairlead.perf.records.validation import Measurement, Way, What

_STEPS_S, _LEAST = 8.0, 8  # of steps that are timed: how long, and how many at least
_CROWDED = 6  # such steps of ranks that share cores: they are held against nothing but their like


def models(
    wish: Wish,
    model: str,
    ways: Mapping[Way, Runner],
    launcher: str,
    seen: Seen,
    progress: Progress,
) -> None:
    """One model at every count of ranks, by every way, a count after the other so that both ways see the same machine."""
    task = registry.find(model)
    steps = 15 if wish.quick else 25  # as many as there is time for
    batch = task.quick.batch
    options = TrainOptions(
        run_dir=wish.out,
        model=model,
        backend=wish.backend,
        data_format="tfrecord" if wish.backend == "torch" else "hdf5",
        train_samples=max(batch * wish.most * (steps + 3), 500),
        val_samples=100,
        batch=batch,
        measure_steps=steps,
        measure_seconds=_STEPS_S,
        measure_least=_LEAST,
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
        tried(f"{task.title}: data", generate, seen, progress)
    if not made:
        return
    (data,) = made
    for way, by in ways.items():
        begin = partial(_input, wish, model, way, by, data, seen)
        title = f"{task.title}: input, {way.value}"
        tried(title, begin, seen, progress, [_input_line(model, way)])
    for ranks in wish.ranks:
        crowded = wish.crowded(ranks, seen.nodes(ranks))
        for way, by in ways.items():
            if crowded and by is not run:
                continue  # ranks that share cores cannot tell what a container costs
            title = f"{task.title} on {ranks} rank{'s' if ranks > 1 else ''}, {way.value}"
            begin = partial(_train, wish, options, ranks, way, by, data, launcher, seen)
            line = _train_line(wish, model, ranks, seen.nodes(ranks), way, launcher)
            tried(title, begin, seen, progress, [line])


def _input(wish: Wish, model: str, way: Way, run: Runner, data: Path, seen: Seen) -> None:
    out, events = fresh(wish.out / "input.json"), fresh(wish.out / "input.jsonl")
    task = registry.find(model)
    batch = task.quick.batch
    more = ["--skip-damaged", "--verify"] if wish.skip_damaged else []
    windows = ["--windows", "6", "--window-s", "0.2" if wish.quick else "0.3", "--warmup-s", "0.2"]
    words = ["python3", "-m", "fairlead.ml.data.speed", "--data", str(data), "--batch", str(batch)]
    words += [*windows, *more, "--json", "--out", str(out), "--events-file", str(events)]
    launch(run, 1, words, [data, wish.out], events)
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
    largest = ranks == roomiest(wish, seen)
    shown = largest and way is not Way.NATIVE and options.model == wish.models[0]
    crowded = wish.crowded(ranks, seen.nodes(ranks))
    options = replace(
        options,
        batch=each,
        measure_steps=_CROWDED if crowded else options.measure_steps,
        forward_apart=shown,
    )
    most = options.warmup + options.measure_steps
    with Silent().stage("") as stage:
        result = training.work(run, options, data, ranks, most, stage)
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
    if shown:
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
