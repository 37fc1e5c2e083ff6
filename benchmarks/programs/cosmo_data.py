"""The universes of :mod:`fairlead.data.cosmo`, as many as a benchmark wants."""

import numpy as np

from fairlead.data import cosmo


def volumes(seed, count, size=32):
    """``(count, size, size, size, 1)`` float32, ``log(1 + counts)``; parameters ``(count, 3)`` in [-1, 1]."""
    source, k = np.random.default_rng(seed), cosmo.wave_numbers(size)
    y = source.uniform(-1, 1, (count, 3)).astype(np.float32)
    counts = [cosmo.draw(source, parameters, k) for parameters in y]
    return cosmo.prepare(np.stack(counts)[..., None]), y
