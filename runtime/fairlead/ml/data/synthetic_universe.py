"""Synthetic universes for CosmoFlow: counts of matter whose statistics determine three parameters, or four.

A universe is a log-normal field with a power spectrum P(k) = k^(1 + .3 p3) / (1 + (k / keq)^2)^2, keq = 4 (1 + .4 p1),
of strength .8 (1 + .25 p2), and Poisson counts in it, 4 a voxel expected, whatever the parameters. So p1 turns the
spectrum, p2 makes the field stronger, p3 tilts it; no sum and no histogram position separates p1 from p3, their power
spectra do. The second parameter leaks into the mean of log(1 + counts): a linear model finds it, and no gate counts it.

The form follows Mathuriya et al., arXiv:1808.04728: sub-volumes of a matter distribution, three parameters.

MLPerf HPC's form (mlcommons/hpc 2c627d4) has four channels, a universe at four redshifts, and four parameters.
:func:`redshifts` makes its like: the same field in every channel, the first one today's, each of the others weaker than
the one before by the growth D = .75 (1 + .2 p4), and counts of its own. So p4 is in what changes from channel to channel.
It leaks into the means as the second does, and no gate counts it either. NumPy only.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from fairlead.ml.data.example import Feature
from fairlead.ml.data.formats import HDF5, TFRECORD, BadSample, Form, floats, numbers, only, root
from fairlead.ml.data.samples import Array, Draw, Samples, stream

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]

PARAMETERS = ("turnover", "strength", "tilt")
ALL_PARAMETERS = (*PARAMETERS, "growth")  # of universes at several redshifts
REDSHIFTS = 4


def shard(seed: int, split: str, index: int, volumes: int, size: int = 32) -> Samples:
    """The volumes of one shard; they depend on these arguments alone, which :func:`stream` describes.

    Returns:
        Counts, int16 (volumes, size, size, size, 1); parameters, float32 (volumes, 3), uniform in [-1, 1].
    """
    return universes(stream(seed, split, index), volumes, size, len(PARAMETERS), 1)


def redshifts(seed: int, split: str, index: int, volumes: int, size: int = 128) -> Samples:
    """As :func:`shard`, of universes at four redshifts, the channels, with four parameters: MLPerf's form, and its size."""
    return universes(stream(seed, split, index), volumes, size, len(ALL_PARAMETERS), REDSHIFTS)


def universes(
    rng: np.random.Generator, volumes: int, size: int, parameters: int, channels: int
) -> Samples:
    """Universes from any source of random numbers, with so many parameters, at so many redshifts."""
    drawn = rng.uniform(-1, 1, (volumes, parameters)).astype(np.float32)
    counts = np.empty((volumes, size, size, size, channels), np.int16)
    k = wave_numbers(size)
    for place, its in zip(counts, drawn, strict=True):
        universe = field(rng, its, k)
        growth = 0.75 * (1 + 0.2 * float(its[3])) if channels > 1 else 1.0
        for channel in range(channels):
            place[..., channel] = observed(rng, universe, strength(its) * growth**channel)
    return Samples(counts, drawn)


def wave_numbers(size: int) -> Doubles:
    """|k| of each coefficient of ``numpy.fft.rfftn`` of a cube, in waves a side; that of the mean counts as 1."""
    axis = np.fft.fftfreq(size, 1 / size)
    half = np.fft.rfftfreq(size, 1 / size)
    k: Doubles = np.sqrt(axis[:, None, None] ** 2 + axis[:, None] ** 2 + half**2)
    k[0, 0, 0] = 1.0
    return k


def power(parameters: Floats, k: Doubles) -> Doubles:
    """P(k) of a universe, without its strength; 0 for the mean."""
    turnover, _, tilt = (float(value) for value in parameters[:3])
    spectrum = k ** (1 + 0.3 * tilt) / (1 + (k / (4 * (1 + 0.4 * turnover))) ** 2) ** 2
    spectrum[0, 0, 0] = 0.0
    return spectrum


def field(rng: np.random.Generator, parameters: Floats, k: Doubles) -> Doubles:
    """A Gaussian field of unit deviation with the spectrum of :func:`power`, (size, size, size)."""
    size = k.shape[0]
    white = np.fft.rfftn(rng.standard_normal((size,) * 3))
    made: Doubles = np.fft.irfftn(
        white * np.sqrt(power(parameters, k)), (size,) * 3, axes=(0, 1, 2)
    )
    made /= made.std()
    return made


def strength(parameters: Floats) -> float:
    """The deviation of the logarithm of what is expected."""
    return 0.8 * (1 + 0.25 * float(parameters[1]))


def observed(rng: np.random.Generator, universe: Doubles, sigma: float) -> npt.NDArray[np.int64]:
    """Counts in a field that is ``sigma`` strong; 4 a voxel are expected."""
    # The mean of exp(sigma field) is exp(sigma^2 / 2).
    return rng.poisson(4 * np.exp(sigma * universe - sigma**2 / 2))


_CHANNELS = (1, 4)  # of volumes of which only the number of voxels is known
_LABELS = range(1, 17)


def _mlperf(features: Mapping[str, Feature], _: Draw) -> tuple[Array, Array]:
    voxels = numbers(features, "x", "<i2")
    for channels in _CHANNELS:
        if side := root(len(voxels), channels, 3):
            return voxels.reshape(side, side, side, channels), floats(features, "y")
    raise BadSample(f"`x` has {len(voxels)} voxels, neither a cube nor four")


def _sc18(features: Mapping[str, Feature], _: Draw) -> tuple[Array, Array]:
    size = len(only(features, "data_raw"))
    for dtype in ("<f4", "<f8"):
        side = 0 if size % int(dtype[-1]) else root(size // int(dtype[-1]), 1, 3)
        if side:
            voxels, labels = (numbers(features, n, dtype) for n in ("data_raw", "label_raw"))
            if len(labels) not in _LABELS:
                raise BadSample(f"`label_raw` has {len(labels)} parameters for one volume")
            shape = (side, side, side, 1)
            return voxels.astype(np.float32, copy=False).reshape(shape), labels.astype(np.float32)
    raise BadSample(f"`data_raw` has {size} bytes, a cube of neither float32 nor float64")


def forms() -> tuple[Form, ...]:
    """This package's form, then those of MLPerf and SC18."""
    return (
        Form("cosmo", "CosmoFlow", HDF5, "x", "y", "float32"),
        Form("cosmo", "CosmoFlow", HDF5, "full", "unitPar", "float32", single=True),
        Form("cosmo", "CosmoFlow", TFRECORD, "x", "y", "float32", _mlperf),
        Form("cosmo", "CosmoFlow", TFRECORD, "data_raw", "label_raw", "float32", _sc18),
    )
