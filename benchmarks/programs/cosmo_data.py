"""The universes of :mod:`fairlead.ml.data.synthetic_universe`, as many as a benchmark wants."""

import numpy as np

from fairlead.ml.data import synthetic_universe


def volumes(seed, count, size=32):
    """``(count, size, size, size, 1)`` float32, ``log(1 + counts)``; parameters ``(count, 3)`` in [-1, 1]."""
    made = synthetic_universe.universes(np.random.default_rng(seed), count, size, 3, 1)
    return np.log1p(made.inputs.astype(np.float32)), made.targets
