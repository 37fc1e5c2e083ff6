"""Small universes whose parameters must be learnt: Poisson counts of a log-normal field with a power spectrum.

p1 sets where the spectrum turns, p2 how strong the field is, p3 its tilt; all have the same expected count,
so that no sum tells them apart. After the fields of A. Mathuriya et al., CosmoFlow (arXiv:1808.04728), in form.
"""

import numpy as np


def volumes(seed, count, size=32):
    """``(count, size, size, size, 1)`` float32, ``log(1 + counts)``; parameters ``(count, 3)`` in [-1, 1]."""
    source = np.random.default_rng(seed)
    axis = np.fft.fftfreq(size, 1 / size)
    k = np.sqrt(
        axis[:, None, None] ** 2 + axis[:, None] ** 2 + np.fft.rfftfreq(size, 1 / size) ** 2
    )
    k[0, 0, 0] = 1.0
    x = np.empty((count, size, size, size, 1), np.float32)
    y = source.uniform(-1, 1, (count, 3)).astype(np.float32)
    for i, (p1, p2, p3) in enumerate(y):
        power = k ** (1 + 0.3 * p3) / (1 + (k / (4 * (1 + 0.4 * p1))) ** 2) ** 2
        power[0, 0, 0] = 0.0
        white = np.fft.rfftn(source.standard_normal((size,) * 3))
        field = np.fft.irfftn(white * np.sqrt(power), (size,) * 3, axes=(0, 1, 2))
        field /= field.std()
        sigma = 0.8 * (1 + 0.25 * p2)
        x[i, ..., 0] = np.log1p(source.poisson(4 * np.exp(sigma * field - sigma**2 / 2)))
    return x, y
