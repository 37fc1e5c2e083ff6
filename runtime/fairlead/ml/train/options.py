"""The options of a training."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fairlead.ml import registry
from fairlead.ml.task import Recipe, Task


@dataclass(frozen=True)
class TrainOptions:
    """What to train and how long.

    Attributes:
        run_dir: folder for configuration, progress and results; made if absent.
        model: a name of :mod:`fairlead.ml.registry`.
        published: use the published recipe instead of the quick one.
        backend, precision: of Keras; see :class:`fairlead.ml.train.model.WorkerConfig`.
        ranks: processes of the training.
        data_dir: folder of the user's files; None generates synthetic ones in the cache.
        data_format: of generated files: ``hdf5``, ``tfrecord`` or ``tfrecord-gzip``.
        train_samples, val_samples: how many to generate; None for as many as the quick recipe needs.
        batch: samples a rank and step, on 1 rank and on all, so that scaling is weak; None for the recipe's.
        epochs: None for the recipe's.
        measure_steps, measure_seconds: timed steps of a measurement, at most, and their time limit.
        measure_least: number of those steps that are timed whatever they take.
        forward_apart: see :class:`fairlead.ml.train.model.WorkerConfig`.
        checkpoints: folder of checkpoints; None for none.
        every_seconds, every_steps: between two checkpoints.
        resume: continue from the last whole checkpoint.
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
    measure_seconds: float = 90.0
    measure_least: int = 1
    forward_apart: bool = True
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
