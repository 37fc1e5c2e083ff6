"""Does choosing the next simulations by the model pay? The committee's choice against a random one, over seeds.

    $ fairlead run -n 2 tensorflow -- python3 examples/universe/active.py -o active.json --seeds 8

Both begin with the same few universes and weights, and get as many more each round from one pool. Each rank is a member;
the error is that of the members' mean on universes with random parameters, which no member has seen.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import surrogate
import tensorflow as tf
from choose import disagreement, drawn, spread
from cosmos import Cosmology, linear, simulate
from mpi4py import MPI
from slabs import Slabs
from train import Samples, fit
from whole import whole

WORLD = MPI.COMM_WORLD
WIDTH, DEPTH, CELL = 8, 3, 2.0


def universes(number: int, seed: int, cells: int) -> Samples:
    """Simulated universes with random parameters, which the ranks share: all of them, on each."""
    slabs, parameters = Slabs(MPI.COMM_SELF, cells), drawn(number, seed)
    mine = {}
    for i in range(WORLD.rank, number, WORLD.size):
        cosmology = Cosmology(*parameters[i])
        start = linear(slabs, cosmology, CELL * cells, 1000 * seed + i)
        end = simulate(slabs, cosmology, start, 20)
        mine[i] = np.concatenate([start, end], axis=-1).astype(np.float32)
    every = {i: x for part in WORLD.allgather(mine) for i, x in part.items()}
    return np.stack([every[i] for i in range(number)]), surrogate.unit(parameters).astype("float32")


def errors(model: Any, test: Samples) -> np.ndarray:
    """Of the members' mean, for each universe: the root mean square in cells."""
    found = []
    for x, y in zip(*test, strict=True):
        said = model(
            surrogate.channels(surrogate.wrapped(x[None, ..., :3], DEPTH), y[None])
        ).numpy()
        mean = np.empty_like(said)
        WORLD.Allreduce(said, mean)
        wrong = surrogate.SCALE * mean[0] / WORLD.size - (x[..., 3:] - x[..., :3])
        found.append(float(np.sqrt(np.mean(wrong**2))))
    return np.array(found)


def search(by: str, pool: Samples, test: Samples, seed: int, given: argparse.Namespace) -> list[list[float]]:  # fmt: skip
    """The mean and the largest error after each round."""
    random = np.random.default_rng(seed)
    own = np.random.default_rng([seed, WORLD.rank])
    have = list(random.permutation(len(pool[0]))[: given.number])
    tf.keras.utils.set_random_seed(1000 * seed + WORLD.rank)
    model = surrogate.network(WIDTH, DEPTH)
    reached = []
    for number in range(given.rounds):
        rows = np.array(have)[own.integers(len(have), size=len(have))]
        for _ in fit(model, (pool[0][rows], pool[1][rows]), DEPTH, given.steps, 0.004, seed + number, together=False):  # fmt: skip
            pass
        wrong = errors(model, test)
        reached.append([float(wrong.mean()), float(wrong.max())])
        left = np.setdiff1d(np.arange(len(pool[0])), have)
        if by == "random":
            have += list(random.permutation(left)[: given.number])
        else:
            scores = disagreement(model, pool[0][left][..., :3], pool[1][left], DEPTH)
            have += [left[i] for i in spread(scores, pool[1][left], pool[1][have], given.number)]
    return reached


def main() -> None:
    """Takes the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--seed", type=int, default=21, help="of the pool")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--number", type=int, default=4, help="universes more each round")
    parser.add_argument("--steps", type=int, default=100, help="of each round's training")
    parser.add_argument("--pool", type=int, default=48)
    parser.add_argument("--held-out", type=int, default=16)
    parser.add_argument("--cells", type=int, default=32)
    given = parser.parse_args()
    surrogate.threads(1)
    sizes = ((given.pool, given.seed), (given.held_out, given.seed + 1))
    pool, test = (universes(number, seed, given.cells) for number, seed in sizes)
    found: dict[str, list[list[list[float]]]] = {"committee": [], "random": []}
    for seed in range(given.seeds):
        for by, rows in found.items():
            rows.append(search(by, pool, test, seed, given))
            if WORLD.rank == 0:
                print(by, seed, " ".join(f"{mean:.4f}" for mean, _ in rows[-1]), flush=True)
    if WORLD.rank == 0:
        with whole(given.output) as stream:
            json.dump({"arguments": vars(given) | {"output": ""}, "errors": found}, stream)


if __name__ == "__main__":
    main()
