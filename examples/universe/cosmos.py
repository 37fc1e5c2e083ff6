"""A universe from two parameters: linear theory, and a particle-mesh simulation of what follows.

Flat, with a cosmological constant, h = 0.7 and n = 0.96; lengths in cells, a box of ``box`` Mpc/h.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from slabs import Array, Complex, Slabs

HUBBLE, TILT, START = 0.7, 0.96, 0.05
LOW, HIGH = np.array([0.1, 0.6]), np.array([0.5, 1.0])  # of omega_m and sigma_8


@dataclass(frozen=True)
class Cosmology:
    """The fraction of matter, and the variance of matter in spheres of 8 Mpc/h, in linear theory, today."""

    omega_m: float
    sigma_8: float

    def rate(self, a: Array) -> Array:
        """The rate of expansion at scale factor ``a``, relative to today's."""
        return np.sqrt(self.omega_m / a**3 + 1 - self.omega_m)

    def growth(self, a: float) -> tuple[float, float]:
        """Linear growth relative to today's, and its logarithmic derivative."""
        grown = [self._grown(x) for x in (a * 0.999, a, a * 1.001, 1.0)]
        slope = np.log(grown[2] / grown[0]) / np.log(1.001 / 0.999)
        return grown[1] / grown[3], float(slope)

    def _grown(self, end: float) -> float:
        a = np.linspace(1e-4, end, 4000)
        return float(self.rate(np.array(end)) * np.trapezoid((a * self.rate(a)) ** -3.0, a))

    def power(self, k: Array) -> Array:
        """The linear power spectrum at ``k`` in h/Mpc, in (Mpc/h)^3; the transfer function of BBKS."""
        fine = np.geomspace(1e-4, 50, 4000)
        x = fine * 8
        sphere = 3 * (np.sin(x) - x * np.cos(x)) / x**3
        square = np.trapezoid(self._shape(fine) * (sphere * fine) ** 2 / (2 * np.pi**2), fine)
        return self.sigma_8**2 / square * self._shape(k)

    def _shape(self, k: Array) -> Array:
        q = np.maximum(k, 1e-9) / (self.omega_m * HUBBLE)
        poly = 1 + 3.89 * q + (16.1 * q) ** 2 + (5.46 * q) ** 3 + (6.71 * q) ** 4
        return k**TILT * (np.log1p(2.34 * q) / (2.34 * q)) ** 2 / np.sqrt(poly)


def linear(slabs: Slabs, cosmology: Cosmology, box: float, seed: int) -> Array:
    """The displacements of linear theory (Zel'dovich) today, in cells: ``(planes, N, N, 3)``."""
    n = slabs.cells
    noise = np.stack(
        [
            np.random.Generator(np.random.Philox(key=[seed, x])).normal(size=(n, n))
            for x in range(slabs.low, slabs.high)
        ]
    )
    kx, ky, kz = slabs.waves()
    k = np.sqrt(kx**2 + ky**2 + kz**2) * n / box
    amplitude = np.sqrt(cosmology.power(k) * n**3 / box**3)
    return slabs.gradient(slabs.forward(noise) * amplitude)


def simulate(slabs: Slabs, cosmology: Cosmology, displacements: Array, steps: int) -> Array:
    """The displacements today by the particle-mesh method, from those of linear theory.

    Args:
        steps: from a = 0.05, equal in a, each kick, drift, kick.
    """
    grown, slope = cosmology.growth(START)
    momentum = START**2 * float(cosmology.rate(np.array(START))) * slope * grown
    moved = displacements.reshape(-1, 3)
    number = np.arange(slabs.low * slabs.cells**2, slabs.high * slabs.cells**2)
    lattice = _lattice(slabs, number)
    rows = np.concatenate([lattice + grown * moved, momentum * moved, number[:, None]], axis=1)
    edges = np.linspace(START, 1, steps + 1)
    rows = slabs.settle(rows)
    force = _force(slabs, rows)
    for low, high in pairwise(edges):
        middle = (low + high) / 2
        rows[:, 3:6] += _kick(cosmology, low, middle) * force
        rows[:, :3] += _integral(cosmology, low, high, 3) * rows[:, 3:6]
        rows = slabs.settle(rows)
        force = _force(slabs, rows)
        rows[:, 3:6] += _kick(cosmology, middle, high) * force
    rows = slabs.home(rows)
    half = slabs.cells / 2
    return ((rows[:, :3] - lattice + half) % slabs.cells - half).reshape(*slabs.shape, 3)


def _lattice(slabs: Slabs, number: np.ndarray) -> Array:
    n = slabs.cells
    return np.stack([number // n**2, number // n % n, number % n], axis=1).astype(float)


def _force(slabs: Slabs, rows: Array) -> Array:
    pull = slabs.gradient(slabs.forward(slabs.deposit(rows[:, :3])))
    return slabs.read(pull, rows[:, :3])


def _kick(cosmology: Cosmology, low: float, high: float) -> float:
    return 1.5 * cosmology.omega_m * _integral(cosmology, low, high, 2)


def _integral(cosmology: Cosmology, low: float, high: float, power: int) -> float:
    a = np.linspace(low, high, 33)
    return float(np.trapezoid(1 / (a**power * cosmology.rate(a)), a))


def density(slabs: Slabs, displacements: Array) -> Array:
    """The density contrast of displaced particles, as ``(planes, N, N)``."""
    number = np.arange(slabs.low * slabs.cells**2, slabs.high * slabs.cells**2)
    return slabs.deposit(slabs.settle(_lattice(slabs, number) + displacements.reshape(-1, 3)))


def spectra(slabs: Slabs, one: Array, two: Array) -> tuple[Array, Array, Array]:
    """Power of two fields and their cross power, by |k| in units of the fundamental: each ``(N // 2,)``, of all ranks."""
    spectrum, other = (slabs.forward(field) for field in (one, two))
    kx, ky, kz = slabs.waves()
    shell = np.rint(np.sqrt(kx**2 + ky**2 + kz**2) * slabs.cells / (2 * np.pi)).astype(int)
    twice = np.where((kz == 0) | np.isclose(kz, np.pi), 1.0, 2.0) * np.ones(shell.shape)

    def mean(product: Complex) -> Array:
        sums = np.stack(
            [
                np.bincount(shell.ravel(), (twice * part).ravel(), slabs.cells)[: slabs.cells]
                for part in (product.real, np.ones(shell.shape))
            ]
        )
        total = np.empty_like(sums)
        slabs.comm.Allreduce(sums, total)
        inner = slice(1, slabs.cells // 2 + 1)
        return total[0, inner] / total[1, inner]

    return (
        mean(np.abs(spectrum) ** 2 + 0j), mean(np.abs(other) ** 2 + 0j), mean(spectrum * other.conj()),
    )  # fmt: skip
