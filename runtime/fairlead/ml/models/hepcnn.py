"""HEP-CNN on detector images, of 64x64 or 224x224 pixels: classifies events as signal or background.

Source: github.com/sparticlesteve/hep_cnn_benchmark, the 64x64 configuration and the 224x224 one; the networks of
Kurth et al., "Deep Learning at 15PF" (arXiv:1708.05256), on R-parity-violating supersymmetry
against the Standard Model background. Events come from :mod:`fairlead.ml.data.synthetic_hep`, training is in
:mod:`fairlead.ml.train.worker`.

As published: three units of [3x3 convolution, 128 filters, SAME, ReLU; 2x2 max-pooling; dropout
with keep probability .5], flatten, dense 512 + ReLU + dropout, dense 2. He-normal weights, zero
biases; softmax cross-entropy, which the published loop leaves unweighted; Adam at 1e-5, 726,016
samples, 200 epochs.

The quick recipe deviates from it, so that a minute on two cores is enough to learn: Adam at 1e-3
with a warm-up and a decay, no dropout. Both take the input ``log(1 + 100 x)``, for most pixels of a
generated event lie near 1/100 of the channel's maximum.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from fairlead.ml.data.kind import DataKind, later
from fairlead.ml.network import Network, checked, features
from fairlead.ml.task import Gate, Recipe, Task, adam, constant, cross_entropy, warmed_cosine

if TYPE_CHECKING:
    from fairlead.ml.data.samples import Array

SIZE = 64
CHANNELS = 3
NETWORK = Network(
    "hepcnn-64", (SIZE, SIZE, CHANNELS), 2, 4_494_594, (8, 8, 128),
    "github.com/sparticlesteve/hep_cnn_benchmark",
)  # fmt: skip
TRAINABLE = NETWORK.trainable or 0


def network_224(size: int = 224) -> Network:
    """The 224 network, whose head does not depend on the size of the image."""
    side = size
    for _ in range(4):
        side = -(-side // 2)
    return Network(
        "hepcnn-224", (size, size, CHANNELS), 2, 594_178, (side, side, 128),
        "github.com/sparticlesteve/hep_cnn_benchmark",
    )  # fmt: skip


def build(network: Network, dropout: float) -> Any:
    """A network as a ``keras.Model``: ``(batch, size, size, 3)``, of :func:`prepare`, to float32 logits ``(batch, 2)``:
    background, signal.

    :data:`NETWORK` has three units and a dense layer; :func:`network_224` ("scaling improvements") four units, a
    convolution and the mean of each map, of images of at least 16 pixels a side.

    Args:
        dropout: fraction dropped after each unit and in the dense head; 0.5 as published.
    """
    from keras import Input, Model, layers

    def conv(x: Any, number: int) -> Any:
        return layers.Conv2D(
            128, 3, padding="same", activation="relu", kernel_initializer="he_normal", name=f"conv{number}",
        )(x)  # fmt: skip

    images = Input(network.image, name="images")
    x = images
    for unit in range(1, 4 if network is NETWORK else 5):
        x = layers.MaxPooling2D(2, padding="same", name=f"pool{unit}")(conv(x, unit))
        x = layers.Dropout(dropout, name=f"drop{unit}")(x)
    if network is NETWORK:
        x = layers.Flatten(name="flatten")(features(x))
        x = layers.Dense(512, activation="relu", kernel_initializer="he_normal", name="dense")(x)
        x = layers.Dropout(dropout, name="drop4")(x)
    else:
        x = layers.GlobalAveragePooling2D(name="mean")(features(conv(x, 5)))
    head = layers.Dense(2, kernel_initializer="he_normal", dtype="float32", name="logits")
    return checked(Model(images, head(x), name="hepcnn"), network)


# What :func:`build_varied` knows.
STRUCTURE = ("units", "filters", "kernel", "dense", "activation", "normalize")


def build_varied(recipe: Recipe, sample: tuple[int, ...], structure: Mapping[str, Any]) -> Any:
    """A network of the same kind with other parts: units of [convolution, pooling, dropout], and a dense head.

    Args:
        structure: ``filters`` of each of the ``units``, ``kernel`` (a side), width of the
            ``dense`` layer (0: the mean of each map instead), ``activation``, and whether to ``normalize`` batches.
    """
    from keras import Input, Model, layers

    images = Input((sample[-1], sample[-1], CHANNELS), name="images")
    kernel, activation = int(structure.get("kernel", 3)), structure.get("activation", "relu")
    x = images
    units = int(structure.get("units", 3))
    for unit, filters in enumerate(structure.get("filters", [128] * units), 1):
        x = layers.Conv2D(
            int(filters), kernel, padding="same", kernel_initializer="he_normal", name=f"conv{unit}"
        )(x)
        if structure.get("normalize"):
            x = layers.BatchNormalization(momentum=recipe.moving, name=f"normal{unit}")(x)
        x = layers.Activation(activation, name=f"act{unit}")(x)
        x = layers.MaxPooling2D(2, padding="same", name=f"pool{unit}")(x)
        x = layers.Dropout(recipe.dropout, name=f"drop{unit}")(x)
    if dense := int(structure.get("dense", 512)):
        x = layers.Flatten(name="flatten")(x)
        x = layers.Dense(
            dense, activation=activation, kernel_initializer="he_normal", name="dense"
        )(x)
        x = layers.Dropout(recipe.dropout, name="drop")(x)
    else:
        x = layers.GlobalAveragePooling2D(name="mean")(x)
    head = layers.Dense(2, kernel_initializer="he_normal", dtype="float32", name="logits")
    return Model(images, head(features(x)), name="hepcnn")


def _built(network: Network) -> Callable[[Recipe, tuple[int, ...], int], Any]:
    def made(recipe: Recipe, sample: tuple[int, ...], outputs: int) -> Any:
        if recipe.structure:
            return build_varied(recipe, sample, recipe.structure)
        return build(network if network is NETWORK else network_224(sample[-1]), recipe.dropout)

    return made


def prepare(images: Any) -> Any:
    """Events as stored, float32 ``(batch, 3, size, size)`` in units of the channel's maximum, as the
    network wants them: ``log(1 + 100 x)``, ``(batch, size, size, 3)``. Tensors in and out."""
    from keras import ops

    return ops.log1p(100.0 * ops.transpose(images, (0, 2, 3, 1)))


def scores(labels: Array, logits: Array) -> dict[str, float]:
    """``auc`` of held-out events, and their ``accuracy``.

    Events are ordered by the difference of the logits, as by P(signal) without the ties of a saturated softmax.
    """
    from fairlead.ml.data.baseline import auc

    margin = logits[:, 1] - logits[:, 0]
    right = (margin > 0) == (labels == 1)
    return {"auc": auc(labels, margin), "accuracy": float(right.mean())}


_DATA = "fairlead.ml.data.synthetic_hep"
EVENTS = DataKind("hep", 1, SIZE, later(_DATA, "shard"), "hep", later(_DATA, "forms"))

_SOURCE = "github.com/sparticlesteve/hep_cnn_benchmark"


def _task(name: str, title: str, network: Network, published: Recipe) -> Task:
    return Task(
        name=name,
        title=title,
        network=network,
        build=_built(network),
        data=EVENTS,
        size=network.image[0],
        prepare=prepare,
        loss=cross_entropy,
        scores=scores,
        gates=(Gate("auc", 0.90),),  # a linear model is near .55, counting clusters gives .95
        penalty=1e4,
        quick=Recipe(adam, warmed_cosine(1e-3), 16, 1, 0.0, "this module"),
        published=published,
        train=6000,
        val=2000,
        sample="event",
        validated=name == "hepcnn",
        position=1 if name == "hepcnn" else 2,
        structure=STRUCTURE,
    )


TASKS = (
    _task(
        "hepcnn",
        "HEP-CNN",
        NETWORK,
        Recipe(adam, constant(1e-5), 8, 200, 0.5, f"{_SOURCE}, 64x64", together=True),
    ),
    _task(
        "hepcnn-224",
        "HEP-CNN 224",
        network_224(),
        Recipe(adam, constant(1e-3), 128, 32, 0.5, f"{_SOURCE}, scaling_improvements"),
    ),
)
