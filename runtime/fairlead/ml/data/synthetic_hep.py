"""Synthetic detector images for HEP-CNN: signal differs from background in shape only.

An event is a handful of energy clusters on a cylinder, unrolled: x is the angle (periodic), y the
pseudorapidity. Signal has more clusters; the total energy has one distribution for both, so neither
a sum nor a linear model separates them (AUC near .55), while counting clusters does (.95).
:mod:`fairlead.ml.data.shards` writes them to files, :mod:`fairlead.ml.data.generate` is the program that
does so in parallel, and :mod:`fairlead.ml.data.baseline` is the linear model.

NumPy only. The sums over clusters are matrix products, as Gaussians factor into x and y, and the
sum of Poisson counts over clusters is one Poisson count of the summed energy.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from fairlead.ml.data.example import Feature
from fairlead.ml.data.formats import HDF5, TFRECORD, BadSample, Form, label, numbers, root
from fairlead.ml.data.samples import Array, Draw, Samples, stream

Floats = npt.NDArray[np.float32]

CHANNELS = ("energy", "electromagnetic", "tracks")

_CALIBRATION_SEED = 20_180_408
_CALIBRATION_EVENTS = 1024
_BLOCK = 64  # events in flight: about 10 MB, which stays in a core's cache


def shard(seed: int, split: str, index: int, events: int, size: int = 64) -> Samples:
    """The events of one shard; they depend on these arguments alone, which :func:`stream` describes.

    Returns:
        float32 (events, 3, size, size), in units of each channel's calibrated maximum; int32 labels, 1 for signal.
    """
    images, labels = _raw(stream(seed, split, index), events, size)
    images /= channel_maxima(size)[:, None, None]
    return Samples(images, labels)


@lru_cache(maxsize=4)
def channel_maxima(size: int = 64) -> Floats:
    """The largest pixel of each channel, float32 (3,), over a sample that every shard shares.

    The published preprocessing divides by the maximum over the training sample. Taken from each
    shard, it would give every shard another unit.
    """
    rng = np.random.default_rng(_CALIBRATION_SEED)
    images, _ = _raw(rng, _CALIBRATION_EVENTS, size)
    maxima: Floats = images.max(axis=(0, 2, 3))
    return maxima


def _raw(rng: np.random.Generator, events: int, size: int) -> tuple[Floats, npt.NDArray[np.int32]]:
    """Images before normalisation, and labels."""
    labels = rng.integers(0, 2, events, dtype=np.int32)
    clusters = np.where(labels == 1, 3 + rng.poisson(7, events), 2 + rng.poisson(2, events))
    energy = rng.gamma(4, 250, events)
    images = np.empty((events, len(CHANNELS), size, size), np.float32)
    for start in range(0, events, _BLOCK):
        block = slice(start, min(start + _BLOCK, events))
        images[block] = _draw(rng, clusters[block], energy[block], size)
    return images, labels


def _draw(
    rng: np.random.Generator,
    clusters: npt.NDArray[np.int64],
    energy: npt.NDArray[np.float64],
    size: int,
) -> Floats:
    """Images (events, 3, size, size) of events with so many clusters and so much energy."""
    events, most = len(clusters), int(clusters.max())
    there = np.arange(most) < clusters[:, None]
    # Dirichlet(1.5, ...) over the clusters that are there: normalised Gamma(1.5)
    share = rng.gamma(1.5, size=(events, most)) * there
    deposit = energy[:, None] * share / share.sum(1, keepdims=True)
    electromagnetic = deposit * rng.beta(2, 2, (events, most))
    centre_x = rng.uniform(0, size, (events, most))
    centre_y = np.clip(rng.normal(size / 2, size / 6, (events, most)), 3, size - 3)
    width = rng.uniform(1.2, 2.2, (events, most)) * size / 64

    pixels = np.arange(size)
    away_x = np.abs(pixels - centre_x[..., None])
    along_x = _profile(np.minimum(away_x, size - away_x), width)
    along_y = _profile(pixels - centre_y[..., None], width)

    out = np.empty((events, len(CHANNELS), size, size), np.float32)
    rows = along_y.transpose(0, 2, 1)
    out[:, 0] = (rows * deposit[:, None].astype(np.float32)) @ along_x
    out[:, 1] = (rows * electromagnetic[:, None].astype(np.float32)) @ along_x
    out[:, 2] = rng.poisson(0.05 * out[:, 0])
    out[:, 0] += 0.02 * rng.standard_exponential(out[:, 0].shape, np.float32)
    return out


def _profile(away: npt.NDArray[np.float64], width: npt.NDArray[np.float64]) -> Floats:
    """Gaussians (events, clusters, size) over pixels, each of sum 1."""
    values = np.exp((-0.5 * (away / width[..., None]) ** 2).astype(np.float32))
    normalised: Floats = values / values.sum(-1, keepdims=True)
    return normalised


def _sample(features: Mapping[str, Feature], _: Draw) -> tuple[Array, Array]:
    pixels = numbers(features, "data", "<f4")
    side = root(len(pixels), 3, 2)
    if not side:
        raise BadSample(f"`data` has {len(pixels)} pixels, not three squares")
    return pixels.reshape(3, side, side), label(features, "label")


# The published loader asks for weights and `psr` as well.
_CONSTANTS = (("normweight", 1.0), ("weight", 1.0), ("psr", 0.0))


def forms() -> tuple[Form, ...]:
    """The published form, and this package's."""
    return (
        Form("hep", "HEP-CNN", HDF5, "data", "label", "int32", constants=_CONSTANTS),
        Form("hep", "HEP-CNN", TFRECORD, "data", "label", "int32", _sample, constants=_CONSTANTS),
    )
