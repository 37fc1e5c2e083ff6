"""Chooses the parameters of the next universes: where a committee of surrogates disagrees most.

    $ fairlead run -n 2 tensorflow -- python3 examples/universe/choose.py --model model.npz -o next.json shards/0

Each rank is a member: it trains the model on, on universes drawn from all with repetition. What members are then asked
needs linear theory only, so a candidate costs much less than its simulation. Without a model, parameters are random.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from cosmos import HIGH, LOW, Cosmology, linear
from mpi4py import MPI
from slabs import Slabs
from whole import whole

FIRST_SEED = {"train": 1, "val": 1_000_000}


def drawn(number: int, seed: int) -> np.ndarray:
    """Random parameters ``(number, 2)``."""
    return np.random.default_rng([seed, 7]).uniform(LOW, HIGH, (number, 2))


def spread(scores: np.ndarray, units: np.ndarray, have: np.ndarray, number: int) -> list[int]:
    """The candidates with the highest scores times the distance to the next that is chosen or simulated already.

    Args:
        units: of each candidate, its parameters ``(n, 2)``; ``have`` are those of what is simulated.
    """
    chosen: list[int] = []
    far = np.linalg.norm(units[:, None] - have[None], axis=2).min(axis=1)
    for _ in range(number):
        chosen.append(int(np.argmax(scores * far)))
        far = np.minimum(far, np.linalg.norm(units - units[chosen[-1]], axis=1))
    return chosen


def disagreement(model: Any, inputs: np.ndarray, units: np.ndarray, depth: int) -> np.ndarray:
    """The deviation of the members' displacements, for each input ``(n, S, S, S, 3)``; the same on all ranks."""
    import surrogate

    world, scores = MPI.COMM_WORLD, []
    for field, unit in zip(inputs, units, strict=True):
        fields = surrogate.wrapped(field[None], depth)
        said = model(surrogate.channels(fields, unit[None])).numpy()
        mean, square = np.empty_like(said), np.empty_like(said)
        world.Allreduce(said, mean)
        world.Allreduce(said**2, square)
        scores.append(float(np.sqrt(np.mean(square / world.size - (mean / world.size) ** 2))))
    return np.array(scores)


def chosen_by_committee(given: argparse.Namespace) -> np.ndarray:
    """The parameters ``(number, 2)``."""
    import surrogate
    from train import fit, samples

    surrogate.threads(1)
    x, y = samples(given.shards, "train", alone=True)
    random = np.random.default_rng([given.seed, MPI.COMM_WORLD.rank])
    drawn_again = random.integers(len(x), size=len(x))
    model, said = surrogate.load(given.model)
    for _ in fit(model, (x[drawn_again], y[drawn_again]), said["depth"], given.steps, 0.002, given.seed, False):  # fmt: skip
        pass
    candidates = drawn(given.candidates, given.seed)
    slabs = Slabs(MPI.COMM_SELF, x.shape[1])
    fields = [
        linear(slabs, Cosmology(*pair), given.cell * slabs.cells, 2_000_000 + i)
        for i, pair in enumerate(candidates)
    ]
    units = surrogate.unit(candidates)
    scores = disagreement(model, np.stack(fields), units, said["depth"])
    return candidates[spread(scores, units, y, given.number)]


def main() -> None:
    """Takes the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("shards", type=Path, nargs="*")
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--number", type=int, default=8)
    parser.add_argument(
        "--held-out", type=int, default=0, help="random ones more, to measure errors"
    )
    parser.add_argument("--candidates", type=int, default=32)
    parser.add_argument("--cell", type=float, default=2.0, help="Mpc/h")
    parser.add_argument("--steps", type=int, default=60, help="of each member's training")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    pairs = chosen_by_committee(given) if given.model else drawn(given.number, given.seed)
    rows = [
        [split, *map(float, pair), FIRST_SEED[split] + 1000 * given.seed + number]
        for split, part in (("train", pairs), ("val", drawn(given.held_out, given.seed + 500)))
        for number, pair in enumerate(part)
    ]
    if MPI.COMM_WORLD.rank == 0:
        with whole(given.output) as stream:
            json.dump(rows, stream)


if __name__ == "__main__":
    main()
