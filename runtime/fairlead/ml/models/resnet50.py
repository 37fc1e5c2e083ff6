"""ResNet-50, versions 1 and 2, on images of any size.

Source: github.com/NERSC/cray-bdc-deeplearning, commit a39eaf0, a fork of TensorFlow's official ResNet of 2018; He et al.,
arXiv:1512.03385 (v1) and arXiv:1603.05027 (v2). Both have the stride of a stage in the 3x3 convolution of its first
block. A strided convolution pads by its kernel less one, the larger half at the end, whatever the size of the image,
then without padding; all others are SAME. Convolutions have no biases.

That fork's own version 1 has no normalisation after its first convolution and keeps the last one of version 2
(25,561,000 parameters with 1000 classes); here version 1 is the standard one.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from fairlead.ml.data.kind import DataKind, later
from fairlead.ml.network import Network, checked, features
from fairlead.ml.task import (
    Course,
    Gate,
    Recipe,
    Task,
    adam,
    cross_entropy,
    momentum,
    optimizer,
    warmed_cosine,
)

if TYPE_CHECKING:
    from fairlead.ml.data.samples import Array

BLOCKS, WIDTHS, STRIDES = (3, 4, 6, 3), (64, 128, 256, 512), (1, 2, 2, 2)
MOMENTUM, EPSILON = 0.997, 1e-5
# Trainable parameters by version and classes; 1001 classes have one for the background.
TRAINABLE = {
    (1, 1000): 25_557_032,
    (1, 1001): 25_559_081,
    (2, 1000): 25_549_352,
    (2, 1001): 25_551_401,
    (2, 10): 23_520_842,
}


def network(version: int = 2, size: int = 224, classes: int = 1001) -> Network:
    """The network of that version on ``size`` x ``size`` pixels."""
    side = -(-size // 4)
    for stride in STRIDES:
        side = -(-side // stride)
    return Network(
        f"resnet50-v{version}", (size, size, 3), classes, TRAINABLE.get((version, classes)), (side, side, 2048),
        "github.com/NERSC/cray-bdc-deeplearning a39eaf0",
    )  # fmt: skip


def build(version: int = 2, size: int = 224, classes: int = 1001, moving: float = MOMENTUM) -> Any:
    """The network as a ``keras.Model``: ``(batch, size, size, 3)`` to float32 logits ``(batch, classes)``.

    Args:
        version: 1, or 2: pre-activation.
        size: pixels of a side, at least 32.
        moving: momentum of BatchNorm's moving statistics; published is .997.
    """
    from keras import Input, Model, layers

    normal = partial(_normal, moving)
    images = Input((size, size, 3), name="images")
    x = _conv(images, 64, 7, 2, "stem")
    if version == 1:
        x = normal(x, "stem")
    x = layers.MaxPooling2D(3, 2, padding="same", name="pool")(x)
    block = _plain if version == 1 else _preactivated
    for stage, (blocks, width, stride) in enumerate(zip(BLOCKS, WIDTHS, STRIDES, strict=True)):
        for number in range(blocks):
            name, first = f"s{stage + 1}b{number + 1}", number == 0
            x = block(normal, x, width, stride if first else 1, name, first)
    if version == 2:
        x = normal(x, "last")
    x = features(x)
    x = layers.GlobalAveragePooling2D(name="mean")(x)
    logits = layers.Dense(classes, dtype="float32", name="logits")(x)
    return checked(Model(images, logits, name="resnet50"), network(version, size, classes))


def _plain(normal: Any, x: Any, width: int, stride: int, name: str, first: bool) -> Any:
    from keras import layers

    short = x
    if first:
        short = normal(_conv(x, 4 * width, 1, stride, f"{name}_short"), f"{name}_short", relu=False)
    x = normal(_conv(x, width, 1, 1, f"{name}_1"), f"{name}_1")
    x = normal(_conv(x, width, 3, stride, f"{name}_2"), f"{name}_2")
    x = normal(_conv(x, 4 * width, 1, 1, f"{name}_3"), f"{name}_3", relu=False)
    return layers.ReLU(name=f"{name}_relu")(layers.Add(name=f"{name}_add")([short, x]))


def _preactivated(normal: Any, x: Any, width: int, stride: int, name: str, first: bool) -> Any:
    from keras import layers

    active = normal(x, f"{name}_1")
    short = _conv(active, 4 * width, 1, stride, f"{name}_short") if first else x
    x = _conv(active, width, 1, 1, f"{name}_1")
    x = _conv(normal(x, f"{name}_2"), width, 3, stride, f"{name}_2")
    x = _conv(normal(x, f"{name}_3"), 4 * width, 1, 1, f"{name}_3")
    return layers.Add(name=f"{name}_add")([short, x])


def _normal(moving: float, x: Any, name: str, relu: bool = True) -> Any:
    from keras import layers

    x = layers.BatchNormalization(momentum=moving, epsilon=EPSILON, name=f"{name}_normal")(x)
    return layers.ReLU(name=f"{name}_active")(x) if relu else x


def _conv(x: Any, filters: int, kernel: int, stride: int, name: str) -> Any:
    from keras import initializers, layers

    if stride > 1 and kernel > 1:
        before, after = (kernel - 1) // 2, kernel // 2
        x = layers.ZeroPadding2D(((before, after), (before, after)), name=f"{name}_pad")(x)
    return layers.Conv2D(
        filters, kernel, stride, padding="valid" if stride > 1 else "same", use_bias=False,
        kernel_initializer=initializers.VarianceScaling(), name=f"{name}_conv",
    )(x)  # fmt: skip


# The plugin's peak rates by global batch, for LARS; 40 is that of 32,768 images.
_LARS = ((256, 4.0), (512, 5.0), (1024, 9.0), (4096, 14.0), (32768, 40.0))


def scores(labels: Array, logits: Array) -> dict[str, float]:
    """``accuracy``: how many held-out images get the largest logit at their label."""
    return {"accuracy": float((logits.argmax(1) == labels).mean())}


_lars = optimizer("fairlead.ml.optimizers", "Lars")


def _optimizer(course: Course) -> Any:
    """Momentum for one rank, LARS for several, as published."""
    return momentum(course) if course.ranks == 1 else _lars(course)


def _rate(course: Course, step: int) -> float:
    """The published rates: of one process, with momentum .9 for 100 epochs; of several, with the plugin, by LARS.

    The latter is linear from .1 to the peak of the global batch (of the largest that is published and not larger) for 12
    of the 100 epochs, as its runit_tf_aprun.sh has it; then the peak times (1 - t) squared, t going from 0 to 1.
    """
    if course.ranks == 1:
        falls = sum(step >= epoch * course.per_epoch for epoch in (30, 60, 80, 90))
        return 0.1 * course.batch / 256 * 0.1**falls
    warmup = course.steps * 12 // 100
    peak = max((rate for size, rate in _LARS if size <= course.batch), default=_LARS[0][1])
    if step < warmup:
        return 0.1 + (peak - 0.1) * step / warmup
    return peak * (1 - min((step - warmup) / max(course.steps - warmup, 1), 1)) ** 2


_SOURCE = "github.com/NERSC/cray-bdc-deeplearning a39eaf0"
_QUICK = Recipe(adam, warmed_cosine(1e-3), 16, 2, 0.0, "this module", moving=0.9, l2=1e-4)
_PUBLISHED = Recipe(_optimizer, _rate, 32, 100, 0.0, _SOURCE, l2=1e-4)


_DATA = "fairlead.ml.data.synthetic_images"
GRATINGS = DataKind("gratings", 1, 64, later(_DATA, "shard"), "gratings", later(_DATA, "forms"))


def _task(name: str, title: str, version: int, size: int, classes: int) -> Task:
    return Task(
        name=name,
        title=title,
        network=network(version, size, classes),
        build=lambda recipe, sample, outputs: build(version, sample[0], outputs, recipe.moving),
        data=GRATINGS,
        size=size,
        prepare=lambda images: images,
        loss=cross_entropy,
        scores=scores,
        gates=(Gate("accuracy", 0.95),),
        penalty=1e4,
        quick=_QUICK,
        published=_PUBLISHED,
        train=2500,
        val=2000,
        sample="image",
        validated=name == "resnet50",
        position=3 if name == "resnet50" else 4 if version == 1 else 5,
    )


TASKS = (
    _task("resnet50", "ResNet-50 v2", 2, 64, 10),
    _task("resnet50-v1", "ResNet-50 v1", 1, 64, 10),
    _task("resnet50-224", "ResNet-50 v2 224", 2, 224, 1001),
)
