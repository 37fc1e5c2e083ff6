"""Synthetic images for ResNet-50: waves of ten kinds under noise.

A class is one of five directions and one of two wave lengths; phase, contrast of each colour and a little of direction and
length are drawn for each image, and noise of the wave's own height lies over it. A linear model recognises a third of
them right (chance: a tenth), the spectrum of an image nearly all. NumPy only.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from fairlead.ml.data import images
from fairlead.ml.data.example import Feature
from fairlead.ml.data.formats import HDF5, TFRECORD, BadSample, Form, label, numbers, root
from fairlead.ml.data.samples import Array, Draw, Samples, stream

CLASSES = 10
_DIRECTIONS, _WAVES = 5, (6.0, 12.0)
_BLOCK = 64  # images in flight: 3 MB at 64 pixels


def shard(seed: int, split: str, index: int, count: int, size: int = 64) -> Samples:
    """The images of one shard; they depend on these arguments alone, which :func:`stream` describes.

    Returns:
        float32 (count, size, size, 3) of mean 0; int32 labels, 0 to 9: direction, plus 5 for the shorter waves.
    """
    rng = stream(seed, split, index)
    labels = rng.integers(0, CLASSES, count, dtype=np.int32)
    pixels = np.empty((count, size, size, 3), np.float32)
    for start in range(0, count, _BLOCK):
        block = slice(start, min(start + _BLOCK, count))
        pixels[block] = _draw(rng, labels[block], size)
    return Samples(pixels, labels)


def _draw(
    rng: np.random.Generator, labels: npt.NDArray[np.int32], size: int
) -> npt.NDArray[np.float32]:
    count = len(labels)
    theta = np.pi * (labels % _DIRECTIONS) / _DIRECTIONS + rng.normal(0, 0.05, count)
    waves = np.take(_WAVES, labels // _DIRECTIONS) * (1 + rng.normal(0, 0.04, count))
    phase = rng.uniform(0, 2 * np.pi, count)
    at = np.arange(size) / size
    x = np.cos(theta)[:, None, None] * at
    y = np.sin(theta)[:, None, None] * at[:, None]
    wave = np.sin(2 * np.pi * waves[:, None, None] * (x + y) + phase[:, None, None])
    contrast = rng.uniform(0.5, 1.5, (count, 1, 1, 3)).astype(np.float32)
    pixels: npt.NDArray[np.float32] = wave[..., None].astype(np.float32) * contrast
    return pixels + rng.standard_normal(pixels.shape, np.float32)


def _sample(features: Mapping[str, Feature], _: Draw) -> tuple[Array, Array]:
    pixels = numbers(features, "image", "<f4")
    side = root(len(pixels), 3, 2)
    if not side:
        raise BadSample(f"`image` has {len(pixels)} values, not a square of three")
    return pixels.reshape(side, side, 3), label(features, "label")


def forms() -> tuple[Form, ...]:
    """The gratings' forms, and ImageNet's."""
    return (
        Form("gratings", "gratings", HDF5, "image", "label", "int32"),
        Form("gratings", "gratings", TFRECORD, "image", "label", "int32", _sample),
        images.IMAGENET,
    )
