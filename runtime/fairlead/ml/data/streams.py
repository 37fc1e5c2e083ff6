"""Random numbers of generated data: one stream per shard, whichever process writes it."""

from __future__ import annotations

import numpy as np

_SPLITS = {"train": 0, "val": 1}


def stream(seed: int, split: str, index: int) -> np.random.Generator:
    """The generator of one shard, which no other shard, split or seed shares.

    Args:
        seed: of the whole data set.
        split: ``train`` or ``val``.
        index: the shard's number in its split, from 0.
    """
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(_SPLITS[split], index)))
