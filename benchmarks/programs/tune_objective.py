"""What three tools search: a small network on two spirals, about a second of one core."""

import argparse
import os

os.environ["OPENBLAS_NUM_THREADS"] = "1"

import numpy as np


def train(rate: float, width: int, steps: int = 1500) -> float:
    """The loss after so many steps of descent."""
    random = np.random.default_rng(1)
    angle = random.uniform(0.5, 3 * np.pi, 400)
    side = np.repeat([1.0, -1.0], 200)[:, None]
    points = np.stack([np.cos(angle), np.sin(angle)], axis=1) * angle[:, None] * side / 9
    inputs = np.c_[points, np.ones(len(points))]
    first, second = random.normal(size=(3, width)), random.normal(size=(width, 1)) / width**0.5
    loss = 0.0
    for _ in range(steps):
        hidden = np.tanh(inputs @ first)
        error = hidden @ second - side
        loss = float(np.mean(error**2))
        back = error @ second.T * (1 - hidden**2)
        second -= rate * hidden.T @ error / len(points)
        first -= rate * inputs.T @ back / len(points)
    return loss


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--rate", type=float)
    parser.add_argument("--width", type=int)
    given = parser.parse_args()
    print("FoM:", train(given.rate, given.width))
