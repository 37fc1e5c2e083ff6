"""The published ways in which samples lie in files, each told by the names in a file.

| data set | file | input | target | source |
| --- | --- | --- | --- | --- |
| hep | HDF5 | ``data`` float32 (N, 3, S, S) | ``label`` (N,) | sparticlesteve/hep_cnn_benchmark |
| hep | TFRecord | ``data`` float32 bytes (3, S, S) | ``label`` int64 | this package |
| cosmo | TFRecord | ``x`` int16 bytes (S, S, S, C) | ``y`` floats | mlcommons/hpc 2c627d4 |
| cosmo | TFRecord | ``data_raw`` bytes (S, S, S) | ``label_raw`` bytes | NERSC/CosmoFlow |
| cosmo | HDF5 | ``x`` (N, S, S, S, C) | ``y`` (N, P) | this package |
| cosmo | HDF5 | ``full`` (S, S, S, C) | ``unitPar`` (P,) | what mlcommons/hpc converts |
| gratings | HDF5, TFRecord | ``image`` float32 (S, S, 3) | ``label`` | this package |
| imagenet | TFRecord | ``image/encoded`` JPEG | ``image/class/label`` int64 | tensorflow/models |

Bytes are little-endian and in C order. A message has no shapes, so they follow from the number of bytes, where
they can in one way only: a cube is not also four cubes. SC18's voxels are float32 or float64 by the same rule.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fairlead.ml.data import images
from fairlead.ml.data.example import Feature
from fairlead.ml.data.samples import Array, Draw

TITLES = {
    "hep": "HEP-CNN",
    "cosmo": "CosmoFlow",
    "gratings": "gratings",
    "imagenet": "ImageNet",
}
CLASSES = ("hep", "gratings", "imagenet")  # their targets are int32; others' are float32
HDF5, TFRECORD = "HDF5", "TFRecord"
_CHANNELS = (1, 4)  # of CosmoFlow's volumes, where only the number of voxels is known
_PARAMETERS = range(1, 17)


_BOXES = tuple(f"image/object/bbox/{side}" for side in ("ymin", "xmin", "ymax", "xmax"))


class BadSample(ValueError):
    """A record is no sample of its data set."""


@dataclass(frozen=True)
class Form:
    """One way of keeping samples in files.

    Attributes:
        data_set: a key of :data:`TITLES`.
        container: :data:`HDF5` or :data:`TFRECORD`.
        input, target: names of the HDF5 datasets, or of the features of a tf.train.Example.
        sample: input and target of an Example; raises :class:`BadSample`. None for HDF5.
        single: the file is one sample, its datasets have no dimension for many.
    """

    data_set: str
    container: str
    input: str
    target: str
    sample: Callable[[Mapping[str, Feature], Draw], tuple[Array, Array]] | None = None
    single: bool = False

    @property
    def names(self) -> frozenset[str]:
        """The features that :attr:`sample` looks at."""
        boxes = _BOXES if self.data_set == "imagenet" else ()
        return frozenset((self.input, self.target, *boxes))

    @property
    def title(self) -> str:
        return TITLES[self.data_set]

    @property
    def target_dtype(self) -> str:
        return "int32" if self.data_set in CLASSES else "float32"

    def __str__(self) -> str:
        return f"`{self.input}` and `{self.target}` ({self.title})"


def recognised(container: str, names: Collection[str]) -> Form | None:
    """The form of a file with these names in it; None when it is none of :data:`FORMS`, or several."""
    found = [
        form
        for form in FORMS
        if form.container == container and {form.input, form.target} <= set(names)
    ]
    return found[0] if len(found) == 1 else None


def looked_for(container: str) -> str:
    """What the files of a container may have, as a list to read."""
    return ", or ".join(str(form) for form in FORMS if form.container == container)


def stored_dtype(dtype: np.dtype[Any]) -> str:
    """What inputs of a file become in memory: float64 is more than any network takes."""
    return "float32" if dtype == np.float64 else dtype.newbyteorder("=").name


def _hep(features: Mapping[str, Feature], _: Draw) -> tuple[Array, Array]:
    pixels = _numbers(features, "data", "<f4")
    side = _root(len(pixels), 3, 2)
    if not side:
        raise BadSample(f"`data` has {len(pixels)} pixels, not three squares")
    return pixels.reshape(3, side, side), _label(features, "label")


def _grating(features: Mapping[str, Feature], _: Draw) -> tuple[Array, Array]:
    pixels = _numbers(features, "image", "<f4")
    side = _root(len(pixels), 3, 2)
    if not side:
        raise BadSample(f"`image` has {len(pixels)} values, not a square of three")
    return pixels.reshape(side, side, 3), _label(features, "label")


def _mlperf(features: Mapping[str, Feature], _: Draw) -> tuple[Array, Array]:
    voxels = _numbers(features, "x", "<i2")
    for channels in _CHANNELS:
        if side := _root(len(voxels), channels, 3):
            return voxels.reshape(side, side, side, channels), _floats(features, "y")
    raise BadSample(f"`x` has {len(voxels)} voxels, neither a cube nor four")


def _sc18(features: Mapping[str, Feature], _: Draw) -> tuple[Array, Array]:
    size = len(_only(features, "data_raw"))
    for dtype in ("<f4", "<f8"):
        side = 0 if size % int(dtype[-1]) else _root(size // int(dtype[-1]), 1, 3)
        if side:
            voxels, labels = (_numbers(features, n, dtype) for n in ("data_raw", "label_raw"))
            if len(labels) not in _PARAMETERS:
                raise BadSample(f"`label_raw` has {len(labels)} parameters for one volume")
            shape = (side, side, side, 1)
            return voxels.astype(np.float32, copy=False).reshape(shape), labels.astype(np.float32)
    raise BadSample(f"`data_raw` has {size} bytes, a cube of neither float32 nor float64")


def _picture(features: Mapping[str, Feature], draw: Draw) -> tuple[Array, Array]:
    label = _label(features, "image/class/label")
    sides = [features.get(side) for side in _BOXES]
    known = [side for side in sides if isinstance(side, np.ndarray)]
    if len({len(side) for side in known}) > 1:
        raise BadSample("its boxes have sides of different numbers")
    boxes = np.empty((0, 4), np.float32)
    if len(known) == 4:
        boxes = np.stack(known, 1).astype(np.float32)
    try:
        pixels = images.decoded(bytes(_only(features, "image/encoded")))
    except images.BadImage as exc:
        raise BadSample(f"`image/encoded`: {exc}") from exc
    if draw.training:
        return images.for_training(pixels, boxes, draw.generator()), label
    return images.for_evaluation(pixels), label


FORMS = (
    Form("hep", HDF5, "data", "label"),
    Form("cosmo", HDF5, "x", "y"),
    Form("cosmo", HDF5, "full", "unitPar", single=True),
    Form("gratings", HDF5, "image", "label"),
    Form("hep", TFRECORD, "data", "label", _hep),
    Form("cosmo", TFRECORD, "x", "y", _mlperf),
    Form("cosmo", TFRECORD, "data_raw", "label_raw", _sc18),
    Form("gratings", TFRECORD, "image", "label", _grating),
    Form("imagenet", TFRECORD, "image/encoded", "image/class/label", _picture),
)


def _only(features: Mapping[str, Feature], name: str) -> memoryview:
    """The one byte string of a feature."""
    value = features.get(name)
    if not isinstance(value, tuple) or len(value) != 1:
        raise BadSample(f"`{name}` is not one byte string")
    return value[0]


def _numbers(features: Mapping[str, Feature], name: str, dtype: str) -> Array:
    raw = _only(features, name)
    if not len(raw) or len(raw) % np.dtype(dtype).itemsize:
        raise BadSample(f"`{name}` has {len(raw)} bytes, which is no number of {np.dtype(dtype)}")
    return np.frombuffer(raw, dtype)


def _floats(features: Mapping[str, Feature], name: str) -> Array:
    value = features.get(name)
    if not isinstance(value, np.ndarray) or value.dtype != np.float32 or not len(value):
        raise BadSample(f"`{name}` is no list of floats")
    return value


def _label(features: Mapping[str, Feature], name: str) -> Array:
    value = features.get(name)
    if not isinstance(value, np.ndarray) or value.dtype != np.int64 or len(value) != 1:
        raise BadSample(f"`{name}` is not one integer")
    if not -(2**31) <= int(value[0]) < 2**31:
        raise BadSample(f"`{name}` is {value[0]}, no class")
    return value.astype(np.int32).reshape(())


def _root(count: int, channels: int, dimensions: int) -> int:
    """The side of a square or cube of ``count`` / ``channels``; 0 when there is none."""
    if count % channels:
        return 0
    side = round((count // channels) ** (1 / dimensions))
    return side if math.prod([side] * dimensions) == count // channels else 0
