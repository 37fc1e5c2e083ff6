"""Reading samples and training: each model at each count of ranks."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from fairlead.base.errors import warning
from fairlead.base.progress import Silent
from fairlead.ml import registry
from fairlead.ml.task import Task
from fairlead.ml.train import host as training
from fairlead.ml.train.model import StepTimes, TrainOptions, WorkerResult
from fairlead.ml.train.runner import Runner, launch
from fairlead.perf.measure.step import Context, Options, Step
from fairlead.perf.projection.small_runs import SmallRun
from fairlead.perf.records.validation import Measurement, Shares, Way, What

_STEPS_S = 8.0  # of timed steps, beyond those that are needed


def _measure(context: Context) -> None:
    """Counts of ranks one after the other, each by every way, so that all ways see the same machine."""
    for model in context.options.models:
        task = registry.find(model)
        prepared = _prepare(context, task)
        if data := prepared.data_dir:
            context.each_way(f"{task.title}: input", partial(_input, task, data), _input_line(task))
            for ranks in context.options.ranks:
                nodes = context.observations.nodes(ranks)
                context.each_way(
                    f"{task.title} on {ranks} rank{'s' if ranks > 1 else ''}",
                    partial(train, prepared, ranks),
                    partial(_train_line, context, task.name, ranks, nodes),
                    # Ranks that share cores cannot show what a container costs.
                    first_only=context.crowded(ranks),
                )


def _prepare(context: Context, task: Task) -> TrainOptions:
    """How the model is trained; ``data_dir`` is None where samples could not be generated."""
    options = context.options
    steps = max(options.repeats, 15 if options.quick else 25)  # fewer if there is no time
    batch = task.quick.batch
    train = TrainOptions(
        run_dir=options.out,
        model=task.name,
        train_samples=max(batch * options.most * (steps + 3), 500),
        val_samples=100,
        batch=batch,
        measure_steps=steps,
        measure_seconds=_STEPS_S,
        measure_least=options.repeats,
        processes=options.cores,
        data_dir=options.data.get(task.name),
        skip_damaged=options.skip_damaged,
        external_data=options.external_data,
    )
    made = [train.data_dir] if train.data_dir else []
    if not made:
        context.attempt(
            f"{task.title}: data",
            lambda: made.append(training.generate(context.container, train, Silent())),
        )
    return replace(train, data_dir=next(iter(made), None))


def _input(task: Task, data: Path, context: Context, way: Way, run: Runner) -> None:
    options, observations = context.options, context.observations
    out, events = options.out / "input.json", options.out / "input.jsonl"
    for old in (out, events):
        old.unlink(missing_ok=True)
    more = ["--skip-damaged", "--verify"] if options.skip_damaged else []
    more += ["--external-data"] if options.external_data else []
    windows = ["--windows", str(options.repeats), "--window-s", "0.2" if options.quick else "0.3", "--warmup-s", "0.2"]  # fmt: skip
    words = ["python3", "-m", "fairlead.ml.data.speed", "--data", str(data), "--batch", str(task.quick.batch)]  # fmt: skip
    words += [*windows, *more, "--json", "--out", str(out), "--events-file", str(events)]
    launch(run, 1, words, [data, options.out], events)
    speed = json.loads(out.read_text("utf-8"))
    observations.measurements.append(
        replace(_input_line(task)(way), samples=tuple(speed["windows"]))
    )
    if skipped := speed["skipped"]:
        observations.findings.append(
            warning(
                "train-skipped-in-validation",
                skipped_count=len(skipped),
                s="s" if len(skipped) > 1 else "",
                task_title=task.title,
                were="were" if len(skipped) > 1 else "was",
                skipped=skipped[0],
            )
        )


def _input_line(task: Task) -> partial[Measurement]:
    """The line of a model's input, without samples, by way."""
    return partial(Measurement, What.INPUT, samples=(), subject=task.name)


def _train_line(context: Context, model: str, ranks: int, nodes: int, way: Way) -> Measurement:
    """The line of a training, without samples."""
    crowded = context.options.crowded(ranks, nodes)
    return Measurement(
        What.TRAIN, way, (), ranks, nodes, subject=model, crowded=crowded, launcher=context.launcher
    )


def train(prepared: TrainOptions, ranks: int, context: Context, way: Way, run: Runner) -> None:
    """Trains for a few steps, and keeps speed, shares of a step, and the step times of the largest launch."""
    options, observations = context.options, context.observations
    each = prepared.batch or 1
    if options.strong:  # the recipe's samples a step, whatever the number of ranks
        each = max(each // ranks, 1)
    model = prepared.model
    largest = ranks == context.roomiest
    shown = largest and way is not Way.NATIVE and model == options.models[0]
    # Ranks that share cores are compared with nothing but their like.
    steps_wanted = options.repeats if context.crowded(ranks) else prepared.measure_steps
    asked = replace(prepared, batch=each, measure_steps=steps_wanted, forward_apart=shown)
    with Silent().stage("") as stage:
        most = asked.warmup + asked.measure_steps
        assert asked.data_dir
        result = training.work(run, asked, asked.data_dir, ranks, most, stage)
    steps = tuple(s.after(asked.warmup) for s in result.steps)
    whole = steps[0].whole_s
    hosts = len({w.host for w in result.weights})
    rates = tuple(each * ranks / seconds for seconds in whole)
    line = replace(_train_line(context, model, ranks, hosts, way), samples=rates)
    observations.measurements.append(line)
    observations.shares[line.key] = _shares(steps)
    if way is not Way.NATIVE:
        observations.runs.setdefault(model, []).append(_small_run(result, hosts, steps))
    if shown:
        observations.steps, observations.steps_of = steps, line.key


def _shares(steps: Sequence[StepTimes]) -> Shares:
    total = sum(steps[0].whole_s) * len(steps)
    waits = sum(sum(s.input_s) for s in steps)
    talks = sum(sum(s.exposed_s) + sum(s.idle_s) for s in steps)
    return Shares(min(waits / total, 1.0), min(talks / total, 1.0))


def _small_run(result: WorkerResult, nodes: int, steps: Sequence[StepTimes]) -> SmallRun:
    """A training as a projection reads it: gradients travel in float32, whatever layers compute in."""
    several = result.ranks > 1

    def mean(values: list[tuple[float, ...]]) -> tuple[float, ...]:
        return tuple(statistics.fmean(step) for step in zip(*values, strict=True))

    return SmallRun(
        ranks=result.ranks,
        nodes=nodes,
        compute_s=tuple(
            tuple(map(sum, zip(s.forward_s, s.backward_s, s.update_s, strict=True))) for s in steps
        ),
        bytes=4 * result.parameters,
        local_batch=result.batch,
        communicate_s=steps[0].exposed_s if several else (),
        wait_s=mean([s.idle_s for s in steps]) if several else (),
        input_s=mean([s.input_s for s in steps]),
        step_s=steps[0].whole_s,
    )


def _describe(options: Options) -> list[str]:
    counts = ", ".join(map(str, options.ranks))
    return [f"{registry.find(model).title} on {counts} ranks" for model in options.models]


STEP = Step(50, _measure, _describe, lambda options: len(options.models) * (1 + len(options.ranks)))
