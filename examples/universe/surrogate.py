"""What stands in for the time steps: a network from the displacements of linear theory to those of the simulation.

Convolutions without padding see only what is near, so that each rank applies it to its own planes and a few of its
neighbours'. Parameters enter as two constant channels. After D3M (He et al., arXiv:1811.06533), much smaller.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
import keras
import numpy as np
import tensorflow as tf
from cosmos import HIGH, LOW
from whole import whole

SCALE = 2.0  # cells; displacements are a few


def threads(number: int) -> None:
    """Limits the cores of this rank; before anything is computed."""
    tf.config.threading.set_intra_op_parallelism_threads(number)
    tf.config.threading.set_inter_op_parallelism_threads(1)


def network(width: int, depth: int) -> Any:
    """A ``keras.Model`` from ``(batch, S, S, S, 5)`` to ``(batch, S - 2 depth, ..., 3)``, which begins as zero."""
    fields = keras.Input((None, None, None, 5))
    x = fields
    for _ in range(depth - 1):
        x = keras.layers.Conv3D(width, 3, activation="leaky_relu")(x)
    x = keras.layers.Conv3D(3, 3, kernel_initializer="zeros")(x)
    return keras.Model(fields, x)


def save(path: Path, model: Any, width: int, depth: int, **said: Any) -> None:
    """Writes a model in one piece."""
    shape = json.dumps({"width": width, "depth": depth, **said})
    with whole(path, "wb") as stream:
        np.savez(stream, *model.get_weights(), shape=shape)


def load(path: Path) -> tuple[Any, dict[str, Any]]:
    """A model, and what was said of it when it was saved."""
    with np.load(path) as kept:
        said = json.loads(str(kept["shape"]))
        model = network(said["width"], said["depth"])
        model.set_weights([kept[f"arr_{i}"] for i in range(len(kept.files) - 1)])
    return model, said


def unit(parameters: np.ndarray) -> np.ndarray:
    """omega_m and sigma_8 as numbers from -1 to 1."""
    return 2 * (np.asarray(parameters) - LOW) / (HIGH - LOW) - 1


def channels(displacements: np.ndarray, units: np.ndarray) -> np.ndarray:
    """The network's input ``(batch, ..., 5)`` of displacements ``(batch, ..., 3)`` and parameters ``(batch, 2)``."""
    constant = np.broadcast_to(
        units[:, None, None, None, :], (*displacements.shape[:4], units.shape[1])
    )
    return np.concatenate([displacements / SCALE, constant], axis=-1, dtype=np.float32)


def wrapped(fields: np.ndarray, depth: int, axes: tuple[int, ...] = (1, 2, 3)) -> np.ndarray:
    """Periodic fields with what a network of that depth sees around them."""
    pad = [(depth, depth) if axis in axes else (0, 0) for axis in range(fields.ndim)]
    return np.pad(fields, pad, mode="wrap")


class StandIn:
    """A trained network in the place of :func:`cosmos.simulate`, on the planes of each rank."""

    def __init__(self, path: Path):
        self.model, self.said = load(path)
        self.apply = tf.function(lambda x: self.model(x, training=False), reduce_retracing=True)

    def __call__(self, slabs: Any, parameters: np.ndarray, displacements: np.ndarray) -> np.ndarray:
        """The displacements today, as ``(planes, N, N, 3)``, in cells."""
        depth = self.said["depth"]
        planes = slabs.padded(displacements.astype(np.float32), depth, depth)
        fields = wrapped(planes[None], depth, axes=(2, 3))
        added = self.apply(channels(fields, unit(parameters)[None]))
        return displacements + SCALE * added.numpy()[0]
