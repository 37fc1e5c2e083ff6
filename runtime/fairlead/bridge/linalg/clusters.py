"""k-means on block rows: k-means|| (Bahmani et al., VLDB 2012) and Lloyd's iterations.

What is drawn for a row depends on its number in the matrix, not on the rank that has it; so the ranks' number changes
nothing but the order of sums.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from fairlead.bridge.linalg.matrix import Matrix, agreed, total

_LOCAL_STEPS = 30  # Lloyd's iterations on the candidates
_FAR = 100.0  # times the variance: where the squared mean is above, differences are taken before squares


@dataclass(frozen=True)
class Clusters:
    """
    Attributes:
        centers: (k, columns), on every rank.
        labels: the nearest centre of each of this rank's rows.
        history: the inertia before each step, and at the end.
        sizes: rows of each cluster.
    """

    centers: Any
    labels: Any
    history: list[float]
    sizes: list[int]
    converged: bool

    @property
    def inertia(self) -> float:
        return self.history[-1]


class Points:
    """The rows of a matrix, and their squared lengths. Rows far from zero are taken relative to their mean."""

    def __init__(self, matrix: Matrix):
        self.matrix, self.comm = matrix, matrix.comm
        mean = matrix.column_means()
        spread = (matrix.norm() ** 2) / max(matrix.shape[0], 1) - mean @ mean
        self.far = not matrix.sparse and agreed(matrix.comm, bool(mean @ mean > _FAR * spread))
        self.origin = mean if self.far else np.zeros_like(mean)
        self.squares = np.empty(matrix.rows, matrix.dtype)
        for begin, panel in self.panels():
            values = panel.multiply(panel).sum(1) if matrix.sparse else _squares(panel)
            self.squares[begin : begin + panel.shape[0]] = values

    def panels(self) -> Iterator[tuple[int, Any]]:
        for begin, panel in self.matrix.panels():
            if self.far:
                yield begin, (panel - self.origin).astype(panel.dtype, copy=False)
            else:
                yield begin, panel

    def nearest(self, centers: Any) -> Iterator[tuple[int, Any, Any, Any]]:
        """For each panel its first row, its rows, the nearest centre of each and the squared distance to it."""
        factor, squares = np.ascontiguousarray(-2 * centers.T), _squares(centers)
        for begin, panel in self.panels():
            products = panel @ factor
            products += squares
            labels = np.argmin(products, axis=1)
            best = products[np.arange(len(labels)), labels]
            best += self.squares[begin : begin + len(labels)]
            yield begin, panel, labels, np.maximum(best, 0, out=best)

    def at(self, numbers: Any) -> Any:
        """Rows by their numbers in the matrix, relative to the origin, on every rank."""
        rows = np.zeros((len(numbers), self.matrix.shape[1]))
        local = np.asarray(numbers) - self.matrix.block.offset
        mine = (local >= 0) & (local < self.matrix.rows)
        picked = self.matrix.block.local[local[mine]]
        rows[mine] = picked.toarray() if self.matrix.sparse else picked
        rows[mine] -= self.origin
        return self.comm.sum(rows).astype(self.matrix.dtype)

    def chosen(self, numbers: Any) -> Any:
        """Rows by their numbers on this rank; of all ranks, in order."""
        picked = self.matrix.block.local[numbers]
        picked = picked.toarray() if self.matrix.sparse else picked
        return self.comm.stacked((picked - self.origin).astype(self.matrix.dtype))


def kmeans(
    matrix: Matrix, k: int, *, iterations: int, init: str, init_steps: int, tol: float, seed: int
) -> Clusters:
    """Clusters by Lloyd's iterations, until no centre moves by more than ``tol``."""
    points, comm = Points(matrix), matrix.comm
    if init == "random":
        random = np.random.default_rng(seed)
        centers = points.at(np.sort(random.choice(matrix.shape[0], k, replace=False)))
    else:
        centers = _parallel_start(points, k, init_steps, seed)
    labels = np.empty(matrix.rows, np.int32)
    history: list[float] = []
    converged, counts = False, np.zeros(k)
    while True:
        sums, counts, inertia = _assign(points, centers, labels)
        history.append(inertia)
        if converged or len(history) > iterations:
            break
        filled = counts > 0  # an empty cluster stays where it is
        moved = centers.copy()
        moved[filled] = (sums[filled] / counts[filled, None]).astype(matrix.dtype)
        distance = float(np.sqrt(_squares(moved - centers).max()))
        converged, centers = agreed(comm, distance <= tol), moved
    sizes = [int(n) for n in counts]
    return Clusters(
        (centers + points.origin).astype(matrix.dtype), labels, history, sizes, converged
    )


def _squares(rows: Any) -> Any:
    return np.einsum("ij,ij->i", rows, rows)


def _assign(points: Points, centers: Any, labels: Any) -> tuple[Any, Any, float]:
    """Labels of this rank's rows; sums, rows and inertia of the clusters over all ranks."""
    from scipy.sparse import csr_array

    k, columns = centers.shape
    packed = np.zeros((k, columns + 1))
    inertia = 0.0
    for begin, panel, nearest, distances in points.nearest(centers):
        count = len(nearest)
        labels[begin : begin + count] = nearest
        inertia += float(distances.sum(dtype=np.float64))
        sizes = np.bincount(nearest, minlength=k)
        ends = np.concatenate([[0], np.cumsum(sizes)])
        # A row of ones for each cluster: adding rows one by one would take longer than the distances.
        ones, order = np.ones(count, panel.dtype), np.argsort(nearest, kind="stable")
        product = csr_array((ones, order, ends), shape=(k, count)) @ panel
        packed[:, :columns] += product.toarray() if points.matrix.sparse else product
        packed[:, columns] += sizes
    points.comm.sum(packed)
    return packed[:, :columns], packed[:, columns], total(points.comm, inertia)[0]


def _uniform(matrix: Matrix, seed: int, step: int) -> Any:
    """A number in [0, 1) for each of this rank's rows, the same whichever rank has the row."""
    stream = np.random.Philox(key=np.array([seed, step], np.uint64))
    stream.advance(matrix.block.offset // 4)  # four numbers a block
    skip = matrix.block.offset % 4
    return np.random.Generator(stream).random(skip + matrix.rows)[skip:]


def _parallel_start(points: Points, k: int, steps: int, seed: int) -> Any:
    """k centres out of about ``2 k steps`` candidates, each drawn by its distance from those before."""
    matrix, comm = points.matrix, points.comm
    random = np.random.default_rng(seed)
    candidates = points.at([int(random.integers(matrix.shape[0]))])
    new, base = candidates, 0
    distances = np.full(matrix.rows, np.inf, matrix.dtype)
    nearest = np.zeros(matrix.rows, np.int64)
    for step in range(steps + 1):
        for begin, _, label, distance in points.nearest(new):
            part = slice(begin, begin + len(label))
            closer = distance < distances[part]
            distances[part][closer] = distance[closer]
            nearest[part][closer] = label[closer] + base
        (cost,) = total(comm, float(distances.sum(dtype=np.float64)))
        if step == steps or not agreed(comm, cost > 0):
            break
        drawn = _uniform(matrix, seed, step + 1) < 2.0 * k * distances / cost
        base = len(candidates)
        new = points.chosen(np.flatnonzero(drawn))
        if not len(new):
            new = candidates[:1]
        candidates = np.vstack([candidates, new])
    weights = comm.sum(np.bincount(nearest, minlength=len(candidates)).astype(np.float64))
    if len(candidates) <= k:
        spare = np.sort(random.choice(matrix.shape[0], k - len(candidates), replace=False))
        return np.vstack([candidates, points.at(spare)])
    chosen = np.empty((k, matrix.shape[1]), matrix.dtype)
    return comm.on(0, lambda: _weighted(candidates, weights, k, random), chosen)


def _weighted(candidates: Any, weights: Any, k: int, random: np.random.Generator) -> Any:
    """k-means++ and some of Lloyd's iterations on weighted points, which one rank has."""
    centers = candidates[_draw(weights, random)][None]
    squares = _squares(candidates)
    distances = np.full(len(candidates), np.inf)
    while len(centers) < k:
        newest = centers[-1]
        distance = squares - 2 * candidates @ newest + newest @ newest
        distances = np.minimum(distances, np.maximum(distance, 0))
        shares = weights * distances
        number = _draw(shares if shares.sum() > 0 else weights, random)
        centers = np.vstack([centers, candidates[number][None]])
    labels = None
    for _ in range(_LOCAL_STEPS):
        before = labels
        labels = np.argmin(_squares(centers) - 2 * candidates @ centers.T, axis=1)
        if before is not None and np.array_equal(labels, before):
            break
        member = np.equal.outer(np.arange(k), labels) * weights
        mass = member.sum(1)
        centers = np.where(
            mass[:, None] > 0, member @ candidates / np.maximum(mass, 1)[:, None], centers
        )
    return centers


def _draw(shares: Any, random: np.random.Generator) -> int:
    return int(random.choice(len(shares), p=shares / shares.sum()))
