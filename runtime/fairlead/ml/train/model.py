"""What :mod:`fairlead.ml.train.host` requests from the ranks, and their results: plain frozen values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fairlead.ml import registry
from fairlead.ml.task import Recipe, Task

# The parts between a step's borders, where the framework shows the end of the forward pass and where it does not.
PARTS = ("input", "forward", "backward", "idle", "exposed communication", "update")
FUSED = ("input", "forward and backward", "idle", "exposed communication", "update")


@dataclass(frozen=True, kw_only=True)
class Training:
    """How to train, as the user asks for it and every rank does it.

    Attributes:
        model: a name of :mod:`fairlead.ml.registry`.
        published: use the published recipe instead of the quick one.
        backend: of Keras: ``tensorflow`` or ``torch``.
        precision: Keras's policy: ``float32``, ``mixed_bfloat16`` or ``mixed_float16``.
        batch: samples a rank and step, on 1 rank and on all, so that scaling is weak; None for the recipe's.
        epochs: passes over the training data, at most; None for the recipe's.
        max_seconds: training ends at the first step after this time, not counting an earlier launch.
        warmup: first steps, whose times are not measured.
        forward_apart: measure the forward pass separately, where a backend does not show it.
        dropout: fraction dropped; None for the recipe's.
        threads: of the framework in each rank.
        seed: of shuffling and of initial weights; rank r starts from ``seed + r`` before the
            broadcast makes all ranks equal.
        checkpoints: folder of checkpoints; None for none.
        every_seconds, every_steps: between two checkpoints; whichever comes first.
        resume: continue from the last whole checkpoint, if there is one; otherwise an existing one is an error.
        skip_damaged: leave out files that cannot be read and report them, instead of ending.
        external_data: HDF5 files may have values in other files.
        parameters: of the recipe and of the network, where a search has chosen others: :func:`fairlead.ml.task.varied`.
        source: folder of another training's checkpoints; this one begins with the weights of its last that have the same
            name and shape, and with its optimizer's state where this is a later part of the same course.
        parts, part: a course of so many times ``epochs``, and which of them this launch trains, from 0.
    """

    model: str = "hepcnn"
    published: bool = False
    backend: str = "tensorflow"
    precision: str = "float32"
    batch: int | None = None
    epochs: int | None = None
    max_seconds: float = 90.0
    warmup: int = 3
    forward_apart: bool = True
    dropout: float | None = None
    threads: int = 1
    seed: int = 1
    checkpoints: Path | None = None
    every_seconds: float = 600.0
    every_steps: int | None = None
    resume: bool = False
    skip_damaged: bool = False
    external_data: bool = False
    parameters: Mapping[str, Any] = field(default_factory=dict)
    source: Path | None = None
    parts: int = 1
    part: int = 0


@dataclass(frozen=True)
class TrainOptions(Training):
    """What to train and how long.

    Attributes:
        run_dir: folder for configuration, progress and results; made if absent.
        ranks: processes of the training.
        data_dir: folder of the user's files; None generates synthetic ones in the cache.
        data_format: of generated files: ``hdf5``, ``tfrecord`` or ``tfrecord-gzip``.
        train_samples, val_samples: how many to generate; None for as many as the quick recipe needs.
        measure_steps, measure_seconds: timed steps of a measurement, at most, and their time limit.
        measure_least: number of those steps that are timed whatever they take.
        processes: that generate data.
        before: trainings that are to be repeated first, each the source of the next: ``part`` and ``parameters`` of each.
    """

    run_dir: Path
    ranks: int = 2
    data_dir: Path | None = None
    data_format: str = "hdf5"
    train_samples: int | None = None
    val_samples: int | None = None
    measure_steps: int = 12
    measure_seconds: float = 90.0
    measure_least: int = 1
    processes: int = 2
    before: tuple[tuple[int, Mapping[str, Any]], ...] = ()

    @property
    def task(self) -> Task:
        """The model."""
        return registry.find(self.model)

    @property
    def recipe(self) -> Recipe:
        """The recipe, before the overrides of these options."""
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


# Parameters of a search that have an option of their own.
TUNED_OPTIONS = ("batch", "dropout", "epochs")


def tuned(options: TrainOptions, parameters: Mapping[str, Any]) -> TrainOptions:
    """The options with the parameters that a search has chosen."""
    own = {name: parameters[name] for name in TUNED_OPTIONS if name in parameters}
    rest = {name: value for name, value in parameters.items() if name not in own}
    return replace(options, **own, parameters=rest)


@dataclass(frozen=True)
class WorkerConfig(Training):
    """One launch of :mod:`fairlead.ml.train.worker`, as every rank reads it from ``config.json``.

    Attributes:
        data: folder of the model's files.
        result: JSON file that rank 0 writes at the end: a :class:`WorkerResult`.
        events: file that progress is appended to; None prints it on rank 0 instead.
        max_steps: training ends after this number of steps; None for no limit.
        least_steps: number of steps that are taken even if ``max_seconds`` are over.
        measure_only: stop after the steps: no evaluation; ``max_seconds`` begins when the warm-up is over.
    """

    data: Path
    result: Path
    events: Path | None = None
    max_steps: int | None = None
    least_steps: int = 0
    measure_only: bool = False


@dataclass(frozen=True)
class Speed:
    """How fast steps were, warm-up left out; times are rank 0's, seconds.

    Attributes:
        steps: how many were timed.
        samples_per_s: of all ranks together: batch x ranks / median step.
        step_median_s, step_p95_s: of a whole step.
        compute_s: median of forward, backward and update.
        forward_s: of that, the forward pass, measured apart; 0 where it was not.
        update_s: of that, the optimizer's update.
        communicate_s: median of packing, reducing and unpacking gradients.
        wait_s: median of waiting for the slowest rank.
        input_s: mean of waiting for a batch.
    """

    steps: int
    samples_per_s: float
    step_median_s: float
    step_p95_s: float
    compute_s: float
    communicate_s: float
    wait_s: float
    input_s: float
    forward_s: float = 0.0
    update_s: float = 0.0


@dataclass(frozen=True)
class StepTimes:
    """Where the time of one rank's training steps went, seconds; each of shape (steps,).

    The parts of a step add up to the step.

    Attributes:
        input_s: waiting for samples.
        forward_s, backward_s, update_s: computing.
        exposed_s: communication that computing does not hide: packing, reducing and unpacking gradients.
        idle_s: waiting for the slowest rank.
    """

    rank: int
    host: str
    input_s: tuple[float, ...]
    forward_s: tuple[float, ...]
    backward_s: tuple[float, ...]
    exposed_s: tuple[float, ...]
    update_s: tuple[float, ...]
    idle_s: tuple[float, ...]

    def __post_init__(self) -> None:
        if len({len(part) for part in self.parts.values()}) != 1:
            raise ValueError(f"rank {self.rank}: its parts are not of the same number of steps")

    @property
    def parts(self) -> dict[str, tuple[float, ...]]:
        """By name, in the order in which a step has them; waiting last."""
        return {
            "input": self.input_s,
            "forward": self.forward_s,
            "backward": self.backward_s,
            "exposed communication": self.exposed_s,
            "update": self.update_s,
            "idle": self.idle_s,
        }

    @property
    def whole_s(self) -> tuple[float, ...]:
        """Each step."""
        return tuple(map(sum, zip(*self.parts.values(), strict=True)))

    @property
    def busy_s(self) -> tuple[float, ...]:
        """The rank's own time for each step: a slow rank shows here, while all others wait for it in
        ``idle_s``."""
        own = (self.input_s, self.forward_s, self.backward_s, self.update_s)
        return tuple(map(sum, zip(*own, strict=True)))

    def after(self, steps: int) -> StepTimes:
        """Without the first ``steps``, as those of a warm-up."""
        return StepTimes(self.rank, self.host, *(part[steps:] for part in self.parts.values()))


@dataclass(frozen=True)
class Marks:
    """The borders of one step's parts, ns of ``time.perf_counter_ns``, in ascending order.

    Attributes:
        start, read: between them, waiting for the batch.
        forward: when the forward pass was over; None where one function computes both passes.
        computed: when the gradients were there.
        waited: ``computed`` and the time in the mean that was spent waiting for the slowest rank. That lies at the
            beginning of the call, or nearly so.
        averaged: when the means were there.
        end: when the optimizer had made its update.
    """

    start: int
    read: int
    forward: int | None
    computed: int
    waited: int
    averaged: int
    end: int

    @property
    def parts(self) -> tuple[str, ...]:
        """Names of what lies between the borders."""
        return FUSED if self.forward is None else PARTS

    @property
    def borders(self) -> tuple[int, ...]:
        """One more than there are parts."""
        known = (self.start, self.read, self.forward, self.computed, self.waited, self.averaged)
        return (*(at for at in known if at is not None), self.end)

    def seconds(self, apart: int) -> tuple[float, ...]:
        """The parts as :class:`StepTimes` has them, to the microsecond.

        Args:
            apart: ns of a forward pass that was measured apart; used if this step does not show its own.
        """
        forward = min(self.read + apart, self.computed) if self.forward is None else self.forward
        parts = (
            self.read - self.start, forward - self.read, self.computed - forward,
            self.averaged - self.waited, self.end - self.averaged, self.waited - self.computed,
        )  # fmt: skip
        return tuple(round(ns / 1e9, 6) for ns in parts)


def step_times(marks: Sequence[Marks], rank: int, host: str, forward_s: float) -> StepTimes:
    """A rank's steps of one launch, as it reports them; ``forward_s`` is of a forward pass measured apart."""
    steps = [mark.seconds(round(forward_s * 1e9)) for mark in marks]
    return StepTimes(rank, host, *(zip(*steps, strict=True) if steps else [()] * 6))


@dataclass(frozen=True)
class LossPoint:
    """The mean loss over ranks of one step, ``seconds`` after the first step began."""

    step: int
    epoch: int
    seconds: float
    loss: float


@dataclass(frozen=True)
class Evaluation:
    """The scores on held-out samples.

    Attributes:
        samples: how many, over all ranks.
        scores: by name, as the model's task has them.
        loss: the mean.
        roc: (background kept, signal kept) pairs, 0 to 1; empty where there are no two classes.
        seconds: wall time.
    """

    samples: int
    scores: dict[str, float]
    loss: float
    roc: tuple[tuple[float, float], ...]
    seconds: float


@dataclass(frozen=True)
class CheckpointTime:
    """One checkpoint that was written.

    Attributes:
        step: steps that were over.
        bytes: of its arrays.
        seconds: until it was on the disk, in the background.
        held_s: for how long the training was paused.
    """

    step: int
    bytes: int
    seconds: float
    held_s: float


@dataclass(frozen=True)
class RankWeights:
    """sha256 of one rank's weights: as initialised, after the broadcast, after training."""

    rank: int
    host: str
    initial: str
    broadcast: str
    final: str


@dataclass(frozen=True)
class WorkerResult:
    """The result that rank 0 writes.

    Attributes:
        model, backend, precision: as asked for.
        batch: samples a rank and step.
        train_samples: of all ranks.
        mpi: first line of ``MPI_Get_library_version``, or ``none (one process)``.
        versions: of what computed: ``python``, the framework, ``keras``, ``numpy``, ``mpi4py``.
        speed: None where a training had no more steps than its warm-up, as may be left after a checkpoint.
        weights: one per rank; ``final`` is the same on all of them.
        evaluation: None when only speed was measured.
        stopped_by: ``epochs``, ``max_steps`` or ``max_seconds``, whichever came first.
        steps: each rank's step times, from the first step of this launch on.
        warmup: number of first steps that are not measured.
        checkpoints: those that this launch wrote.
        resumed_from: steps that an earlier launch took; 0 for none.
        inherited: arrays that it began with, of another training's checkpoint.
        damaged: files that were left out because they could not be read.
        unreadable: checkpoints that were skipped for an older one, or none, and why.
    """

    model: str
    backend: str
    precision: str
    ranks: int
    batch: int
    threads: int
    parameters: int
    train_samples: int
    seed: int
    mpi: str
    versions: dict[str, str]
    speed: Speed | None
    loss: tuple[LossPoint, ...]
    weights: tuple[RankWeights, ...]
    train_seconds: float
    epochs_done: float
    evaluation: Evaluation | None = None
    stopped_by: str = "epochs"
    steps: tuple[StepTimes, ...] = ()
    checkpoints: tuple[CheckpointTime, ...] = ()
    resumed_from: int = 0
    inherited: int = 0
    damaged: tuple[str, ...] = ()
    unreadable: tuple[str, ...] = ()
    warmup: int = 0
