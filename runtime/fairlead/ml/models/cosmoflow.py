"""CosmoFlow: cosmological parameters from the distribution of matter, in two published forms.

``sc18``: Mathuriya et al., arXiv:1808.04728, as of github.com/NERSC/CosmoFlow, branch 128cube, `CosmoNet_128256.py`.
Convolutions without padding, leaky ReLU of slope .01, average pooling; Glorot weights, biases of .1; dropout with keep
probability .5 before each dense layer. It needs 128^3 voxels. Three later branches move a stride and reshape the map
into 64 rows a sample, which the label then meets by broadcasting: the parameters are as many, the network is another.

``mlperf``: github.com/mlcommons/hpc, commit 2c627d4. SAME convolutions, leaky ReLU of Keras's slope .3, max pooling, a
head that ends in 1.2 tanh. Of kernel size 3; 2 was the builder's default until May 2021. Smaller volumes, and fewer units,
make the variants here that learn on two cores.
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
    absolute_error,
    adam,
    momentum,
    optimizer,
    squared_error,
    warmed_cosine,
)  # fmt: skip

if TYPE_CHECKING:
    import numpy as np

    from fairlead.ml.data.samples import Array

SC18, MLPERF = "github.com/NERSC/CosmoFlow 128cube", "github.com/mlcommons/hpc 2c627d4"
FILTERS = (32, 64, 128, 256, 512)

_SC18 = {3: 7_041_443, 2: 7_041_186}
# By kernel, size, channels and outputs, with the published filters.
_MLPERF = {(3, 128, 4, 4): 8_907_556, (2, 128, 4, 4): 5_597_604, (3, 32, 1, 3): 4_776_131}


def sc18_network(outputs: int = 3) -> Network:
    """SC18's network for 3 parameters, or the 2 of March 2018."""
    return Network(
        "cosmoflow-sc18", (128, 128, 128, 1), outputs, _SC18.get(outputs), (2, 2, 2, 256), SC18
    )


def mlperf_network(
    size: int = 128,
    channels: int = 4,
    outputs: int = 4,
    kernel: int = 3,
    filters: tuple[int, ...] = FILTERS,
) -> Network:
    """MLPerf's network on ``size``^3 voxels."""
    side = size >> len(filters)
    key = (kernel, size, channels, outputs)
    count = _MLPERF.get(key) if filters == FILTERS else None
    shape = (size, size, size, channels)
    return Network(
        "cosmoflow-mlperf", shape, outputs, count, (side, side, side, filters[-1]), MLPERF
    )


def build_sc18(outputs: int = 3, dropout: float = 0.5) -> Any:
    """SC18's network as a ``keras.Model``: ``(batch, 128, 128, 128, 1)`` to standardised parameters, float32
    ``(batch, outputs)``. ``dropout`` is the fraction dropped before each dense layer."""
    from keras import Input, Model, initializers, layers

    bias = initializers.Constant(0.1)

    def conv(x: Any, filters: int, kernel: int, stride: int = 1) -> Any:
        made = layers.Conv3D(
            filters, kernel, stride, kernel_initializer="glorot_uniform", bias_initializer=bias
        )
        return layers.LeakyReLU(0.01)(made(x))

    def dense(x: Any, units: int, name: str) -> Any:
        x = layers.Dropout(dropout)(x)
        return layers.Dense(units, kernel_initializer="glorot_uniform", bias_initializer=bias, name=name, dtype="float32")(x)  # fmt: skip

    volumes = Input((128, 128, 128, 1), name="volumes")
    x = volumes
    for filters, kernel in ((16, 3), (32, 4), (64, 4)):
        x = layers.AveragePooling3D(2)(conv(x, filters, kernel))
    x = conv(x, 128, 3, 2)
    for filters, kernel in ((256, 3), (256, 2), (256, 2)):
        x = conv(x, filters, kernel)
    x = layers.Flatten(name="flatten")(features(x))
    for units, name in ((2048, "dense1"), (256, "dense2")):
        x = layers.LeakyReLU(0.01)(dense(x, units, name))
    return checked(
        Model(volumes, dense(x, outputs, "parameters"), name="cosmoflow"), sc18_network(outputs)
    )


def build_mlperf(
    size: int = 128,
    channels: int = 4,
    outputs: int = 4,
    kernel: int = 3,
    filters: tuple[int, ...] = FILTERS,
    dropout: float = 0.5,
) -> Any:
    """MLPerf's network as a ``keras.Model``: ``(batch, size, size, size, channels)`` to parameters in [-1.2, 1.2], float32
    ``(batch, outputs)``.

    Args:
        size: voxels of a side, a multiple of 2 to the number of filters.
        channels: of a voxel: redshifts in MLPerf's data.
        kernel: voxels of a convolution's side; 3, or 2 as until v0.7.
        filters: of each convolution, each before a pooling.
        dropout: fraction dropped after each hidden dense layer.
    """
    from keras import Input, Model, layers

    volumes = Input((size, size, size, channels), name="volumes")
    x = volumes
    for count in filters:
        x = layers.LeakyReLU(0.3)(layers.Conv3D(count, kernel, padding="same")(x))
        x = layers.MaxPooling3D(2)(x)
    x = layers.Flatten(name="flatten")(features(x))
    for units in (128, 64):
        x = layers.LeakyReLU(0.3)(layers.Dense(units, dtype="float32")(x))
        x = layers.Dropout(dropout)(x)
    x = layers.Dense(outputs, activation="tanh", dtype="float32", name="parameters")(x)
    x = layers.Rescaling(1.2, dtype="float32", name="scaled")(x)
    return checked(
        Model(volumes, x, name="cosmoflow"),
        mlperf_network(size, channels, outputs, kernel, filters),
    )


def prepare(counts: Any) -> Any:
    """Counts as stored, any number type, as the network wants them: ``log(1 + counts)`` in float32."""
    from keras import ops

    return ops.log1p(ops.cast(counts, "float32"))


def scores(wanted: Array, outputs: Array) -> dict[str, float]:
    """Mean absolute error of each parameter over that of always predicting the mean: ``turnover``, ``strength``, ``tilt`` and,
    where there are four, ``growth``.

    1 is as good as the mean, 0 is exact. ``error`` is the mean absolute error over all.
    """
    import numpy as np

    from fairlead.ml.data import synthetic_universe

    wanted = wanted.astype(np.float64)
    alone = np.abs(wanted - wanted.mean(0)).mean(0)
    error = np.abs(wanted - outputs).mean(0)
    each = (error / np.maximum(alone, 1e-12)).tolist()
    names = synthetic_universe.ALL_PARAMETERS
    return {**dict(zip(names, each, strict=False)), "error": float(error.mean())}


def turned(rng: np.random.Generator, volumes: Array) -> Array:
    """Volumes (batch, size, size, size, channels) mirrored, turned and rolled around, each its own way.

    A generated universe has no preferred direction and no edge, so all these are as likely. SC18 augmented its training by
    mirrors and permutations; rolling is for periodic volumes, which sub-volumes of a simulation are not.
    """
    import numpy as np

    out = np.empty_like(volumes)
    size = volumes.shape[1]
    for place, volume in zip(out, volumes, strict=True):
        moved = volume.transpose(*rng.permutation(3), 3)
        moved = moved[tuple(slice(None, None, int(way)) for way in rng.choice((-1, 1), 3))]
        place[...] = np.roll(moved, rng.integers(0, size, 3), (0, 1, 2))
    return out


def _mlperf_rate(course: Course, step: int) -> float:
    """MLPerf's published rate, for SGD with momentum .9; the same throughout an epoch, of which the first is 0.

    Linear from .001 to the peak, .001 times the global batch over 64, in 4 epochs; a quarter of the peak after
    epoch 32, an eighth after epoch 64.
    """
    epoch, peak = step // course.per_epoch, 0.001 * course.batch / 64
    if epoch < 4:
        return 0.001 + (peak - 0.001) * epoch / 4
    return peak * (1 if epoch <= 32 else 0.25 if epoch <= 64 else 0.125)


def _sc18_rate(course: Course, step: int) -> float:
    """From 1e-3 to 1e-4, linear over all steps, as its polynomial mode of power 1."""
    return 1e-3 + (1e-4 - 1e-3) * step / max(course.steps, 1)


_QUICK_FILTERS = (16, 32, 64, 128, 256)
_GATES = (Gate("turnover", 0.60, False), Gate("tilt", 0.90, False))
_QUICK = Recipe(adam, warmed_cosine(1e-3), 8, 4, 0.0, "this module", augment=turned)
_MLPERF_RECIPE = Recipe(momentum, _mlperf_rate, 4, 128, 0.5, MLPERF)


def _mlperf(
    recipe: Recipe, sample: tuple[int, ...], outputs: int, filters: tuple[int, ...] = FILTERS
) -> Any:
    other = recipe.structure
    filters = tuple(map(int, other.get("filters", filters)))[
        : int(other.get("units", len(filters)))
    ]
    kernel = int(other.get("kernel", 3))
    return build_mlperf(sample[0], sample[-1], outputs, kernel, filters, recipe.dropout)


_DATA = "fairlead.ml.data.synthetic_universe"
UNIVERSES = DataKind("cosmo", 1, 32, later(_DATA, "shard"), "cosmo", later(_DATA, "forms"))
# A sample of 128 voxels a side is 17 MB.
REDSHIFTS = DataKind("cosmo-mlperf", 1, 128, later(_DATA, "redshifts"), "cosmo", per_shard=16)

_COMMON = partial(
    Task, prepare=prepare, scores=scores, gates=_GATES, penalty=1e5, quick=_QUICK, train=4000, val=2000,
    sample="universe",
)  # fmt: skip
TASKS = (
    _COMMON(
        name="cosmoflow",
        title="CosmoFlow",
        network=mlperf_network(32, 1, 3, filters=_QUICK_FILTERS),
        build=partial(_mlperf, filters=_QUICK_FILTERS),
        structure=("units", "filters", "kernel"),
        data=UNIVERSES,
        size=32,
        loss=squared_error,
        published=_MLPERF_RECIPE,
        validated=True,
        position=6,
    ),
    _COMMON(
        name="cosmoflow-mlperf",
        title="CosmoFlow MLPerf",
        network=mlperf_network(),
        build=_mlperf,
        data=REDSHIFTS,
        size=128,
        loss=squared_error,
        published=_MLPERF_RECIPE,
        position=7,
    ),
    _COMMON(
        name="cosmoflow-sc18",
        title="CosmoFlow SC18",
        network=sc18_network(3),
        build=lambda recipe, sample, outputs: build_sc18(outputs, recipe.dropout),
        data=UNIVERSES,
        size=128,
        loss=absolute_error,
        published=Recipe(
            optimizer("fairlead.ml.optimizers", "AdamLarc"), _sc18_rate, 1, 100, 0.5, SC18
        ),
        position=8,
    ),
)
