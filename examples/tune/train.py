"""A small network on two spirals, whose learning rate, width and depth `fairlead tune` searches for.

$ fairlead tune examples/tune/train.py --space examples/tune/space.toml --trials 12 --image mpi-base
$ fairlead train --from fairlead-tune/best.toml
"""

import argparse
from itertools import pairwise

import numpy as np

from fairlead import tune

parser = argparse.ArgumentParser()
parser.add_argument("--rate", type=float, default=0.1)
parser.add_argument("--layers", type=int, default=1)
parser.add_argument("--units", default="16")  # of each layer: 16,8
parser.add_argument("--steps", type=int, default=200)
given = parser.parse_args()

random = np.random.default_rng(1)
angle = random.uniform(0.5, 3 * np.pi, 400)
side = np.repeat([1.0, -1.0], 200)
points = np.stack([np.cos(angle), np.sin(angle)], axis=1) * (angle * side / 9)[:, None]
sizes = [2, *map(int, given.units.split(",")), 1]
weights = [random.normal(size=(a + 1, b)) / np.sqrt(a) for a, b in pairwise(sizes)]
for step in range(1, given.steps + 1):
    layers = [points]
    for matrix in weights:
        layers.append(np.tanh(np.c_[layers[-1], np.ones(len(points))] @ matrix))
    error = layers[-1] - side[:, None]
    loss = float(np.mean(error**2))
    for i in reversed(range(len(weights))):
        error = error * (1 - layers[i + 1] ** 2)
        gradient = np.c_[layers[i], np.ones(len(points))].T @ error / len(points)
        error = error @ weights[i][:-1].T
        weights[i] -= given.rate * gradient
    if step % 20 == 0:
        tune.report(step, loss)
print(f"loss {loss:.4f} with {given.layers} layers")
