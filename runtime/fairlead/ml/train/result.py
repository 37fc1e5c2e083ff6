"""What came out of a training, and what a person should know of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fairlead.base.errors import Finding, error, warning
from fairlead.ml import registry
from fairlead.ml.task import Gate, Task
from fairlead.ml.train.model import WorkerResult


@dataclass(frozen=True)
class Baseline:
    """The linear model's scores on the same held-out samples (see :mod:`fairlead.ml.data.baseline`)."""

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


def score_name(metric: str) -> str:
    """A score's name as it is shown: ``AUC``, ``accuracy``."""
    return "AUC" if metric == "auc" else metric


def judge(result: TrainResult) -> Iterator[Finding]:
    """What a finished training shows: an error where the linear model was not beaten, a warning where a gate was
    missed, or where files or checkpoints were left out."""
    task, training = result.task, result.all
    held_out = f"{result.baseline.val} held-out {task.sample}s"
    how_long = f"{training.epochs_done:.2f} epochs in {training.train_seconds:.0f} s"
    for gate in result.gates:
        score, linear = result.scores[gate.metric], result.baseline.scores[gate.metric]
        name = score_name(gate.metric)
        if not gate.better(score, linear):
            yield error(
                "train-not-learnt", task_title=task.title, score_name=name, score=score, linear=linear,
                held_out=held_out, how_long=how_long,
            )  # fmt: skip
        elif not gate.passed(score):
            yield warning(
                "train-below-gate", score_name=name, score=score, gate=gate, held_out=held_out,
                training=training, how_long=how_long,
            )  # fmt: skip
    if training.damaged:
        yield warning(
            "train-skipped-unreadable",
            damaged_count=len(training.damaged),
            damaged=training.damaged[0],
        )
    if training.unreadable:
        yield warning(
            "checkpoint-damaged-resumed" if training.resumed_from else "checkpoint-damaged-all",
            unreadable_count=len(training.unreadable),
            unreadable="; ".join(training.unreadable),
            resumed_from=training.resumed_from,
        )
