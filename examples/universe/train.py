"""Trains the surrogate on shards, data-parallel; from an earlier model, or from nothing.

    $ fairlead run -n 2 tensorflow -- python3 examples/universe/train.py -o model.npz shards/0

`fairlead tune` searches its options: `space.toml`.
"""

from __future__ import annotations

import argparse
import math
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import surrogate
import tensorflow as tf

from fairlead import comm, tune
from fairlead.comm.tensorflow import DistributedGradientTape, average, broadcast
from fairlead.ml.data.manifest import read_manifest
from fairlead.ml.data.shards import Rows

Samples = tuple[np.ndarray, np.ndarray]


def samples(folders: list[Path], split: str, alone: bool = False) -> Samples:
    """This rank's share of each folder's samples, or all: x ``(n, S, S, S, 6)`` and y ``(n, 2)``."""
    team = comm.init()
    share = (0, 1) if alone else (team.rank, team.size)
    inputs, targets = [], []
    for folder in folders:
        if split == "val" and not any(folder.glob("val-*")):
            continue  # only the first round has some
        manifest = read_manifest(folder, split, together=team)
        for batch in Rows(manifest, split, *share).in_order(16):
            inputs.append(batch.inputs)
            targets.append(batch.targets)
    return np.concatenate(inputs), np.concatenate(targets)


def turned(x: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """A universe in one of the 48 ways in which its axes can lie: as probable as it was."""
    axes, signs = random.permutation(3), random.choice([-1, 1], 3)
    x = x.transpose(*axes, 3)[..., [*axes, *(axes + 3)]]
    flipped = tuple(int(i) for i in np.flatnonzero(signs < 0))
    # What stands at q moves to -q, cell 0 stays.
    x = np.roll(np.flip(x, flipped), 1, flipped) if flipped else x
    return x * np.tile(signs, 2).astype(np.float32)


def pair(x: np.ndarray, y: np.ndarray, depth: int) -> Samples:
    """What the network takes of a batch, and what it should give."""
    fields = surrogate.wrapped(x[..., :3], depth)
    return surrogate.channels(fields, y), (x[..., 3:] - x[..., :3]) / surrogate.SCALE


def loss_of(model: Any, inputs: Any, wanted: Any) -> Any:
    """The mean square of the residual displacement's error, in cells."""
    return tf.reduce_mean(tf.square(model(inputs) - wanted)) * surrogate.SCALE**2


def error(model: Any, data: Samples, depth: int) -> float:
    """The root mean square error of all ranks' displacements, in cells."""
    losses = [
        float(loss_of(model, *pair(data[0][i : i + 1], data[1][i : i + 1], depth)))
        for i in range(len(data[0]))
    ]
    square, number = average(float(np.sum(losses))), average(float(len(losses)))
    return math.sqrt(float(square) / float(number))


def fit(
    model: Any, data: Samples, depth: int, steps: int, rate: float, seed: int, together: bool = True
) -> Iterator[int]:
    """Trains, and yields the number of steps after each; ``together`` on all ranks, or this rank's own model."""
    optimizer = tf.keras.optimizers.Adam(tf.keras.optimizers.schedules.CosineDecay(rate, steps))
    optimizer.build(model.trainable_variables)
    if together:
        broadcast([*model.variables, *optimizer.variables])
    tape_of = DistributedGradientTape if together else tf.GradientTape
    random = np.random.default_rng([seed, comm.rank()])

    @tf.function
    def step(inputs: Any, wanted: Any) -> None:
        with tape_of() as tape:
            loss = loss_of(model, inputs, wanted)
        variables = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))

    for number in range(1, steps + 1):
        chosen = random.integers(len(data[0]))
        x = turned(data[0][chosen], random)[None]
        step(*map(tf.constant, pair(x, data[1][chosen : chosen + 1], depth)))
        yield number


def main() -> None:
    """Takes the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("shards", type=Path, nargs="+")
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--start", type=Path, help="an earlier model, to go on from")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--rate", type=float, default=0.003)
    parser.add_argument("--width", type=int, default=12)
    parser.add_argument("--depth", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--best", type=Path, help="best.toml of a search, for rate, width and depth"
    )
    given = parser.parse_args()
    if given.best:
        parser.set_defaults(**tomllib.loads(given.best.read_text())["parameters"])
        given = parser.parse_args()
    surrogate.threads(1)
    tf.keras.utils.set_random_seed(given.seed)
    training, held_out = samples(given.shards, "train"), samples(given.shards, "val")
    width, depth = given.width, given.depth
    model = surrogate.network(width, depth)
    if given.start:
        model, said = surrogate.load(given.start)
        width, depth = said["width"], said["depth"]
    before = error(model, held_out, depth)
    for number in fit(model, training, depth, given.steps, given.rate, given.seed):
        if number % 50 == 0 or number == given.steps:
            reached = error(model, held_out, depth)
            tune.report(number, error=reached)
    if comm.rank() == 0:
        if given.output:
            surrogate.save(given.output, model, width, depth, error=reached)
        print(f"error {before:.4f} -> {reached:.4f} cells")


if __name__ == "__main__":
    main()
