"""What a bundled model is trained for: network, data, loss, scores, and the gate that shows that it learnt.

One definition serves both backends of Keras: what touches tensors is written in ``keras.ops``. A module of
:mod:`fairlead.ml.models` declares its tasks as ``TASKS``; :mod:`fairlead.ml.registry` finds them by name.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from fairlead.ml.data.kind import DataKind
from fairlead.ml.network import Network

if TYPE_CHECKING:
    # A login node asks for names and gates without NumPy.
    import numpy as np

    from fairlead.ml.data.samples import Array

    Augment = Callable[[np.random.Generator, Array], Array]
    Scores = Callable[[Array, Array], Mapping[str, float]]


@dataclass(frozen=True)
class Gate:
    """The value that a held-out score must reach for a training to count as successful.

    Attributes:
        metric: its name among the scores.
        value: to be reached.
        at_least: larger is better; otherwise smaller is.
    """

    metric: str
    value: float
    at_least: bool = True

    def passed(self, score: float) -> bool:
        """Whether ``score`` is good enough; NaN is not."""
        return bool(score >= self.value if self.at_least else score <= self.value)

    def better(self, score: float, other: float) -> bool:
        """Whether ``score`` is better than ``other``."""
        return bool(score > other if self.at_least else score < other)

    @property
    def words(self) -> str:
        """``at least 0.9``."""
        return f"at {'least' if self.at_least else 'most'} {self.value:g}"


@dataclass(frozen=True)
class Course:
    """The length of a training, for learning rates that depend on it.

    Attributes:
        batch: samples a step, of all ranks.
        steps: in all.
        per_epoch: steps of an epoch.
        ranks: how many.
    """

    batch: int
    steps: int
    per_epoch: int
    ranks: int


@dataclass(frozen=True)
class Recipe:
    """How a network is trained.

    Attributes:
        optimizer: makes a Keras optimizer for a course; its rate is set before each step.
        rate: the learning rate of a step, from 0.
        batch: samples a rank and step; with ``together``, a step of all ranks.
        epochs: passes over the training data.
        dropout: fraction dropped.
        source: where it is from.
        moving: the momentum of BatchNorm's moving statistics; short trainings need a smaller one than is published.
        l2: weight of half the squares of all weights except normalisation's, added to the loss.
        augment: transforms a batch of inputs into an equivalent one: ``augment(rng, inputs)``.
        together: the ranks share a batch; otherwise each has its own.
        structure: parts of the network that differ from the published one, by name: those of ``Task.structure``.
    """

    optimizer: Callable[[Course], Any]
    rate: Callable[[Course, int], float]
    batch: int
    epochs: int
    dropout: float
    source: str
    moving: float = 0.997
    l2: float = 0.0
    augment: Augment | None = None
    together: bool = False
    structure: Mapping[str, Any] = field(default_factory=dict)

    def each(self, ranks: int) -> int:
        """Samples of one of ``ranks`` in a step; at least one, of which a published batch of 8 had none on 9 ranks."""
        return max(self.batch // ranks, 1) if self.together else self.batch


@dataclass(frozen=True)
class Task:
    """A network and all that its training needs.

    Attributes:
        name: as `fairlead train` takes it.
        title: as a person reads it.
        network: its published size.
        build: the ``keras.Model``, for a recipe, the shape of a stored sample and a number of outputs.
        data: the samples that are generated for it.
        size: pixels or voxels of a side that are generated.
        prepare: stored inputs as the network wants them; tensors in and out, within the graph.
        loss: of targets and outputs, the mean over the batch.
        scores: of all held-out targets and outputs, as NumPy arrays.
        gates: all must be passed.
        penalty: of the linear model to beat, :mod:`fairlead.ml.data.baseline`.
        quick: the recipe that learns in minutes on two cores.
        published: the recipe of the publication.
        train, val: samples that the quick recipe needs.
        sample: what one is called.
        validated: `fairlead validate` trains it unless other models are named.
        position: in lists; models of other packages come last.
        structure: names of what ``build`` can make otherwise than published, for :mod:`fairlead.tune`.
    """

    name: str
    title: str
    network: Network
    build: Callable[[Recipe, tuple[int, ...], int], Any]
    data: DataKind
    size: int
    prepare: Callable[[Any], Any]
    loss: Callable[[Any, Any], Any]
    scores: Scores
    gates: tuple[Gate, ...]
    penalty: float
    quick: Recipe
    published: Recipe
    train: int
    val: int
    sample: str
    validated: bool = False
    position: int = 1000
    structure: tuple[str, ...] = ()


def varied(recipe: Recipe, parameters: Mapping[str, Any]) -> Recipe:
    """A recipe with other values of ``rate`` (the highest one), ``l2`` and ``moving``; other names are of the network."""
    known: dict[str, Any] = {n: float(parameters[n]) for n in ("l2", "moving") if n in parameters}
    if "rate" in parameters:
        known["rate"] = _highest(recipe.rate, float(parameters["rate"]))
    structure = {n: v for n, v in parameters.items() if n not in TUNED}
    return replace(recipe, structure=structure, **known)


TUNED = ("rate", "l2", "moving")


def _highest(rate: Callable[[Course, int], float], value: float) -> Callable[[Course, int], float]:
    """The same curve with another highest rate."""
    peak = cache(lambda course: max(rate(course, step) for step in range(course.steps)))
    return lambda course, step: rate(course, step) * (value / peak(course))


def cross_entropy(labels: Any, logits: Any) -> Any:
    """Softmax cross-entropy of int ``labels`` (batch,) and ``logits`` (batch, classes): the mean."""
    from keras import ops

    return ops.mean(ops.sparse_categorical_crossentropy(labels, logits, from_logits=True))


def squared_error(wanted: Any, outputs: Any) -> Any:
    """Mean over batch and parameters of the squared difference."""
    from keras import ops

    return ops.mean(ops.square(outputs - wanted))


def absolute_error(wanted: Any, outputs: Any) -> Any:
    """Mean over batch and parameters of the absolute difference."""
    from keras import ops

    return ops.mean(ops.absolute(outputs - wanted))


def constant(rate: float) -> Callable[[Course, int], float]:
    """The same rate in each step."""
    return lambda course, step: rate


def warmed_cosine(peak: float) -> Callable[[Course, int], float]:
    """Linear from 0 to ``peak`` for a tenth of the steps, then down a cosine to 0.

    >>> [round(warmed_cosine(1.0)(Course(1, 100, 10, 1), step), 3) for step in (0, 5, 10, 55, 99)]
    [0.1, 0.6, 1.0, 0.5, 0.0]
    """

    def rate(course: Course, step: int) -> float:
        warm = max(course.steps // 10, 1)
        if step < warm:
            return peak * (step + 1) / warm
        done = (step - warm) / max(course.steps - warm, 1)
        return peak * 0.5 * (1 + math.cos(math.pi * done))

    return rate


def optimizer(module: str, name: str, **options: float) -> Callable[[Course], Any]:
    """The optimizer class ``name`` of ``module``, imported when it is made, for any course."""
    return lambda course: getattr(import_module(module), name)(**options)


adam = optimizer("keras.optimizers", "Adam")
momentum = optimizer("keras.optimizers", "SGD", momentum=0.9)
