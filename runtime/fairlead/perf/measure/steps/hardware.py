"""Checkpoints by each way; memory and storage, which bound other measurements, by the first."""

from __future__ import annotations

import statistics
from dataclasses import replace

from fairlead.base.errors import fail
from fairlead.ml.train.runner import Runner
from fairlead.perf.measure.program import run_program
from fairlead.perf.measure.ranks import hardware
from fairlead.perf.measure.step import Context, Options, Step
from fairlead.perf.records.validation import Bound, Measurement, Way, What


def _measure(context: Context, way: Way, run: Runner) -> None:
    options, observations = context.options, context.observations
    folder = options.out / "checkpoints"
    folder.mkdir(exist_ok=True)
    line = _line(options, way)
    size = line.bytes or 0
    settings = hardware.Settings(options.out / "hardware.json", folder, size, options.repeats)
    rates = run_program(hardware.__name__, settings, run, min(options.most, options.cores))
    if observations.memory is None:
        median = statistics.median(rates["memory"])
        observations.memory = Bound(median, "all ranks copying at once, median")
    if observations.disk is None and rates["disk"]:
        observations.disk = Bound(
            statistics.median(rates["disk"]), "one file written and synced, median"
        )
    if rates["checkpoint"]:
        observations.measurements.append(replace(line, samples=tuple(rates["checkpoint"])))
    if rates["failed"]:
        raise fail("validate-checkpoint", folder=folder, failed=rates["failed"], size=size >> 20)


def _line(options: Options, way: Way) -> Measurement:
    """The line of checkpoints, without samples."""
    return Measurement(What.CHECKPOINT, way, (), bytes=(16 if options.quick else 64) << 20)


STEP = Step(
    20,
    lambda context: context.each_way(
        "memory and storage", _measure, lambda way: _line(context.options, way)
    ),
    lambda options: ["memory, storage, checkpoints"],
    lambda options: 1,
)
