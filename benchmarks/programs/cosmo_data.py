"""The universes of :mod:`fairlead.ml.data.synthetic_universe`, as many as a benchmark wants."""

import numpy as np

from fairlead.ml.data import synthetic_universe


def volumes(seed, count, size=32):
    """``(count, size, size, size, 1)`` float32, ``log(1 + counts)``; parameters ``(count, 3)`` in [-1, 1]."""
    source, k = np.random.default_rng(seed), synthetic_universe.wave_numbers(size)
    y = source.uniform(-1, 1, (count, 3)).astype(np.float32)
    counts = [synthetic_universe.draw(source, parameters, k) for parameters in y]
    return np.log1p(np.stack(counts)[..., None].astype(np.float32)), y
