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

from collections.abc import Callable
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


def _task(
    name: str, title: str, network: Network, build: Callable[..., Any], published: Recipe
) -> Task:
    return Task(
        name=name,
        title=title,
        network=network,
        build=build,
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
    )


TASKS = (
    _task(
        "hepcnn",
        "HEP-CNN",
        NETWORK,
        lambda recipe, sample, outputs: build(NETWORK, recipe.dropout),
        Recipe(adam, constant(1e-5), 8, 200, 0.5, f"{_SOURCE}, 64x64", together=True),
    ),
    _task(
        "hepcnn-224",
        "HEP-CNN 224",
        network_224(),
        lambda recipe, sample, outputs: build(network_224(sample[-1]), recipe.dropout),
        Recipe(adam, constant(1e-3), 128, 32, 0.5, f"{_SOURCE}, scaling_improvements"),
    ),
)
