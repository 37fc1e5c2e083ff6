"""Asynchronous SGD whose workers are out of step by at most a bound (stale-synchronous parallel).

    links = comm.init().point_to_point()
    sgd = StaleSGD(links, weights, rate=0.1, bound=3)
    while sgd.steps < STEPS:
        sgd.step(gradients_of(sgd.weights))
    weights = sgd.finish()

Each worker sends its gradients to the others and goes on; it waits only for one that is more than ``bound`` steps behind.
There is no server: every worker holds the weights. A step that all workers have made is settled: the mean of its gradients,
added up in the order of ranks, is applied, in the order of steps. A second copy of the weights, to compute with, is ahead:
it has all gradients that have come. So all workers end with the same bits, and with a bound of 0 these are the bits of one
process that adds up the same gradients in the same order.

Source: Q. Ho et al., "More Effective Distributed ML via a Stale Synchronous Parallel Parameter Server", NIPS 2013.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from fairlead.base.errors import fail

if TYPE_CHECKING:
    from fairlead.comm.core import Array
    from fairlead.comm.point_to_point import PointToPoint


class StaleSGD:
    """One worker. It holds weights and velocity twice, and the gradients of steps that are not settled.

    Attributes:
        weights: to compute the next gradients with; new arrays after each step.
        steps: that this worker has made.
        total: that all workers are known to have made together.
        staleness: of each step and other worker: how many of that worker's earlier steps the weights were without, and how
            often.
    """

    def __init__(
        self,
        links: PointToPoint,
        weights: Sequence[Array],
        rate: float,
        momentum: float = 0.0,
        bound: int | None = 0,
    ):
        """Collective in its meaning: each worker makes one over ``links``, which it uses alone.

        Args:
            weights: the same on all workers; of one dtype.
            rate: of the mean gradient.
            bound: in steps; 0 is synchronous, None is none.
        Raises:
            FairleadError: the bound is negative.
        """
        if bound is not None and bound < 0:
            raise fail("comm-stale-bound", bound=bound)
        self._links, self._rate, self._momentum, self._bound = links, rate, momentum, bound
        self._shapes = [array.shape for array in weights]
        self._settled = _flat(weights)
        self._velocity = np.zeros_like(self._settled)
        self._ahead, self._ahead_velocity = self._settled, self._velocity
        # Of each worker: the gradients of its steps that are not settled, and how many have come.
        self._waiting: list[deque[Array]] = [deque() for _ in range(links.size)]
        self._come = [0] * links.size
        self._ended = [False] * links.size
        self._others = [rank for rank in range(links.size) if rank != links.rank]
        self.staleness: Counter[int] = Counter()
        self.weights = self._split(self._settled)

    @property
    def steps(self) -> int:
        return self._come[self._links.rank]

    @property
    def total(self) -> int:
        return sum(self._come)

    def step(self, gradients: Sequence[Array]) -> None:
        """Sends the gradients of this worker's samples, and renews :attr:`weights` from what has come.

        Raises:
            FairleadError: the gradients do not have the weights' shapes; a worker that is needed has ended, or sent
                nothing within the limit of ``links``.
        """
        for other in self._others:
            self.staleness[max(0, self.steps - self._come[other])] += not self._ended[other]
        flat = _flat(gradients).astype(self._settled.dtype, copy=False)
        if flat.size != self._settled.size:
            raise fail("comm-stale-shapes", given=flat.size, expected=self._settled.size)
        for other in self._others:
            self._links.isend(flat, other)
        self._take(self._links.rank, flat)
        for other in self._others:
            self._catch_up(other)
        self._settle()
        self.weights = self._split(self._ahead)

    def finish(self) -> list[Array]:
        """The weights with the steps of all workers, the same bits on each. Every worker calls it, once.

        Raises:
            FairleadError: as :meth:`step`.
        """
        for other in self._others:
            self._links.isend(self._settled[:0], other)  # no gradients: the last message
        self._ended[self._links.rank] = True
        for other in self._others:
            while not self._ended[other]:
                self._receive(other)
        self._settle()
        self._links.flush()
        self.weights = self._split(self._settled)
        return self.weights

    def _catch_up(self, other: int) -> None:
        """Takes what has come of a worker, and waits for what the bound requires; it holds for steps ahead as well."""
        bound = float("inf") if self._bound is None else self._bound
        while not self._ended[other] and self._come[other] < self.steps + bound:
            behind = self._come[other] < self.steps - bound
            if not behind and not self._links.arrived(other):
                return
            self._receive(other)

    def _receive(self, other: int) -> None:
        gradients = self._links.recv(other)
        if gradients.size:
            self._take(other, gradients)
        else:
            self._ended[other] = True

    def _take(self, rank: int, gradients: Array) -> None:
        """Keeps the gradients of a worker's next step, and adds them to the weights that are ahead.

        Those are as many steps ahead as the foremost worker. Late gradients count as if they had come in time, which is a
        matter of two factors, since SGD is linear in them.
        """
        late = max(self._come) - 1 - self._come[rank]
        self._waiting[rank].append(gradients)
        self._come[rank] += 1
        own, momentum = gradients / self._links.size, self._momentum
        if late < 0:
            self._ahead_velocity = momentum * self._ahead_velocity + own
            self._ahead = self._ahead - self._rate * self._ahead_velocity
        else:
            self._ahead_velocity = self._ahead_velocity + momentum**late * own
            factor = sum(momentum**n for n in range(late + 1))
            self._ahead = self._ahead - self._rate * factor * own

    def _settle(self) -> None:
        """Applies the means of the steps that every worker has made; one that has ended counts as zero."""
        while any(self._waiting) and all(
            waiting or ended for waiting, ended in zip(self._waiting, self._ended, strict=True)
        ):
            mean = _sum([waiting.popleft() for waiting in self._waiting if waiting])
            mean /= self._links.size
            self._velocity = self._momentum * self._velocity + mean
            self._settled = self._settled - self._rate * self._velocity
        if not any(self._waiting):  # the same steps, without the rounding of another order
            self._ahead, self._ahead_velocity = self._settled, self._velocity

    def _split(self, flat: Array) -> list[Array]:
        ends = np.cumsum([int(np.prod(shape)) for shape in self._shapes])
        parts = np.split(flat, ends[:-1])
        return [part.reshape(shape) for part, shape in zip(parts, self._shapes, strict=True)]


def _flat(arrays: Sequence[Array]) -> Array:
    return np.concatenate([np.asarray(array).reshape(-1) for array in arrays])


def _sum(arrays: Sequence[Array]) -> Array:
    total = arrays[0].copy()
    for array in arrays[1:]:
        total += array
    return total
