"""What :mod:`fairlead.train.host` asks of the ranks, and what they answer: plain frozen values."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class WorkerConfig:
    """One launch of :mod:`fairlead.train.worker`, as every rank reads it from ``config.json``.

    Attributes:
        data: folder of HEP-CNN files.
        result: JSON file that rank 0 writes at the end: a :class:`WorkerResult`.
        events: file that progress is appended to; None prints it on rank 0 instead.
        batch: samples a rank and step.
        epochs: passes over the training data, at most.
        max_seconds: training ends at the first step after so many seconds.
        max_steps: training ends after so many steps; None for no such limit.
        warmup: steps whose times count for no measurement.
        measure_only: stop after the steps: no evaluation.
        learning_rate: of Adam.
        dropout: see :func:`fairlead.models.hepcnn.build`.
        threads: of TensorFlow in each rank.
        seed: of shuffling and of initial weights; rank r starts from ``seed + r`` before the
            broadcast makes all ranks equal.
    """

    data: Path
    result: Path
    events: Path | None = None
    batch: int = 16
    epochs: int = 1
    max_seconds: float = 90.0
    max_steps: int | None = None
    warmup: int = 3
    measure_only: bool = False
    learning_rate: float = 1e-3
    dropout: float = 0.0
    threads: int = 1
    seed: int = 1


@dataclass(frozen=True)
class Speed:
    """How fast steps were, warm-up left out; times are rank 0's, seconds.

    Attributes:
        steps: how many were timed.
        samples_per_s: of all ranks together: batch x ranks / median step.
        step_median_s, step_p95_s: of a whole step.
        compute_s: median of forward, backward and update.
        communicate_s: median of packing, reducing and unpacking gradients.
        wait_s: median of waiting for the slowest rank.
        input_s: mean of reading and shuffling, which are done a file at a time.
    """

    steps: int
    samples_per_s: float
    step_median_s: float
    step_p95_s: float
    compute_s: float
    communicate_s: float
    wait_s: float
    input_s: float


@dataclass(frozen=True)
class LossPoint:
    """The mean loss over ranks of one step, ``seconds`` after the first step began."""

    step: int
    epoch: int
    seconds: float
    loss: float


@dataclass(frozen=True)
class Evaluation:
    """How well held-out events are told apart.

    Attributes:
        events: how many, over all ranks.
        auc: area under the ROC curve.
        loss: mean cross-entropy.
        roc: (background kept, signal kept) pairs, 0 to 1.
        seconds: wall time.
    """

    events: int
    auc: float
    loss: float
    roc: tuple[tuple[float, float], ...]
    seconds: float


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
    """What rank 0 writes.

    Attributes:
        mpi: first line of ``MPI_Get_library_version``, or ``none (one process)``.
        versions: of what computed: ``python``, ``tensorflow``, ``keras``, ``numpy``, ``mpi4py``.
        weights: one a rank; ``final`` is the same on all of them, or there is no result.
        evaluation: None when only speed was measured.
        stopped_by: ``epochs``, ``max_steps`` or ``max_seconds``, whichever came first.
    """

    ranks: int
    batch: int
    threads: int
    parameters: int
    train_events: int
    seed: int
    mpi: str
    versions: dict[str, str]
    speed: Speed
    loss: tuple[LossPoint, ...]
    weights: tuple[RankWeights, ...]
    train_seconds: float
    epochs_done: float
    evaluation: Evaluation | None = None
    stopped_by: str = "epochs"
