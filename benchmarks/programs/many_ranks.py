"""A rank of many on few cores: ``many_ranks.py SOCKET``. It reduces, and trains, and says how far off it is.

``train`` is least squares by gradients, in NumPy: each rank has samples of its own, and rank 0 does the same
on the samples of all, by itself.
"""

import hashlib
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"

import turns

turns.pin(turns.rank_of())

import numpy as np

from fairlead import comm
from fairlead.comm.delayed import Delayed, Schedule

SAMPLES, OUT, RATE = 16, 64, 0.05


def samples_of(rank, inputs):
    source = np.random.default_rng(1000 + rank)
    x = source.standard_normal((SAMPLES, inputs), np.float32) / np.float32(np.sqrt(inputs))
    return x, source.standard_normal((SAMPLES, OUT), np.float32)


def gradient(weights, x, y):
    return (x.T @ (x @ weights - y)) / np.float32(len(x))


def alone(ranks, inputs, steps, delayed):
    """One process with the samples of all, in double precision."""
    pairs = [samples_of(rank, inputs) for rank in range(ranks)]
    x, y = (np.concatenate(parts).astype(np.float64) for parts in zip(*pairs, strict=True))
    weights, late = np.zeros((inputs, OUT)), None
    for step in range(steps):
        now = x.T @ (x @ weights - y) / len(x)
        if not delayed or step == 0:
            weights -= RATE * now
        else:
            if late is not None:
                weights -= RATE * late
            late = now
    return weights - (RATE * late if late is not None else 0)


def main(path):
    ranks = comm.init()

    def reduce(count, repeats):
        given = np.arange(count, dtype=np.float32) % 251 + ranks.rank
        out, seconds = np.full(count, -1, np.float32), []
        for _ in range(repeats):
            ranks.barrier()
            begun = time.perf_counter()
            ranks.aggregate([given], out=[out])
            seconds.append(time.perf_counter() - begun)
        true = np.arange(count) % 251 + (ranks.size - 1) / 2
        off = float(np.max(np.abs(out - true) / np.maximum(true, 1)))
        return {"seconds": seconds, "off": off}

    def train(inputs, steps, mode):
        x, y = samples_of(ranks.rank, inputs)
        weights = np.zeros((inputs, OUT), np.float32)
        late = Delayed(ranks, Schedule(steps, 1), momentum=0.0, tested=True)
        seconds, compute = [], []
        for _ in range(steps):
            begun = time.perf_counter()
            own = gradient(weights, x, y)
            compute.append(time.perf_counter() - begun)
            if mode == "none":
                means = [[own]]
            elif mode == "sync":
                means = [ranks.aggregate([own])]
            else:
                means = late.step([own])
            for (mean,) in means:
                weights -= np.float32(RATE) * mean
            seconds.append(time.perf_counter() - begun)
        for (mean,) in late.flush():
            weights -= np.float32(RATE) * mean
        off = 0.0
        if mode != "none" and ranks.rank == 0:
            true = alone(ranks.size, inputs, steps, mode == "delayed")
            off = float(np.max(np.abs(weights - true)) / np.max(np.abs(true)))
        digest = hashlib.sha256(weights.tobytes()).hexdigest()
        return {"seconds": seconds, "digest": digest, "off": off}

    turns.serve(path, {"reduce": reduce, "train": train})
    comm.finalize()


main(sys.argv[1])
