"""Delayed synchronous gradients: the mean of one step is applied in the next, and may move meanwhile.

    delayed = Delayed(comm.init(), Schedule(max_steps=1000, synchronous_steps=100), momentum=0.9)
    for step in range(1000):
        for gradients in delayed.step(gradients_of(batch), loss):
            apply(gradients, learning_rate * delayed.scale)
    for gradients in delayed.flush():
        apply(gradients, learning_rate * delayed.scale)

Every mean is handed out exactly once: the first delayed step has none, a step that returns to
synchronous has two. The delay lowers the largest learning rate that is stable, a lot; :attr:`Delayed.scale`
makes up for it, and a run that diverges goes back to synchronous steps.

Sources: the Cray PE ML Plugin's pipelined mode (T. Kurth et al., *Exascale Deep Learning for Climate
Analytics*, SC18, section V-B4, "gradient lag"; A. Mathuriya et al., *CosmoFlow*, SC18); the bounds are
those of the recurrence in :func:`largest_stable`.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from fairlead.base.errors import fail
from fairlead.comm.core import Array, Comm, Pending
from fairlead.comm.overlap import Overlap

MOST_MOMENTUM = 0.95
_DIVERGED = 3.0  # times the least loss so far


def largest_stable(momentum: float, delay: int) -> float:
    """The largest learning rate times curvature at which a quadratic does not diverge.

    Heavy ball with a gradient that is ``delay`` steps old: v' = mu v + k w(t-delay), w' = w - lr v'.
    The characteristic polynomial z^(delay-1) (z-1) (z-mu) + lr k = 0 leaves the unit circle there.
    Adam's first moment is the same recurrence with mu = beta1, where its second moment has settled
    (J. Cohen et al., *Adaptive Gradient Methods at the Edge of Stability*, 2022), so the ratio of
    two delays holds for it as well.

    Args:
        momentum: mu, 0 to below 1.
        delay: steps, 0 to 2.

    >>> largest_stable(0.9, 0), round(largest_stable(0.9, 1), 6)
    (3.8, 0.1)
    """
    if not 0 <= momentum < 1:
        raise ValueError(f"momentum {momentum} is not in [0, 1)")
    if delay == 0:
        return 2 * (1 + momentum)
    if delay == 1:
        return 1 - momentum
    if delay == 2:
        return (math.sqrt((1 + momentum) ** 2 + 4 * (1 - momentum)) - (1 + momentum)) / 2
    raise ValueError(f"delay {delay} is not 0, 1 or 2")


@dataclass(frozen=True)
class Schedule:
    """Which steps are synchronous.

    Attributes:
        max_steps: of this training.
        synchronous_steps: at least ``max_steps``: all are. Positive: so many at the beginning
            (warm-up). Negative: so many at the end (cool-down).
    """

    max_steps: int
    synchronous_steps: int

    def __post_init__(self) -> None:
        if self.max_steps < 1 or self.synchronous_steps == 0:
            raise fail(
                "comm-schedule-empty",
                max_steps=self.max_steps,
                synchronous_steps=self.synchronous_steps,
            )

    @classmethod
    def fractions(cls, max_steps: int, warmup: float = 0.0, cooldown: float = 0.0) -> Schedule:
        """By fractions of ``max_steps``, of which one is given."""
        if not (0 <= warmup <= 1 and 0 <= cooldown <= 1) or (warmup and cooldown):
            raise fail(
                "comm-schedule-contradictory",
                warmup=warmup,
                cooldown=cooldown,
            )
        if cooldown:
            return cls(max_steps, -max(round(cooldown * max_steps), 1))
        return cls(max_steps, max(round(warmup * max_steps), 1))

    @property
    def late(self) -> range:
        """The steps, from 0, whose mean is applied in the next one."""
        if self.synchronous_steps > 0:
            return range(self.synchronous_steps, self.max_steps)
        return range(self.max_steps + self.synchronous_steps)

    def delayed(self, step: int) -> bool:
        """Whether the mean of ``step`` (from 0) is applied in the next one."""
        return step in self.late


class Delayed:
    """Means of gradients, some of them a step late. Every method is collective but ``scale``.

    They move while the next step is computed, where the first steps show that this takes less time
    (:mod:`fairlead.comm.overlap`); the values do not depend on it.

    Attributes:
        diverged_at: the step at which it went back to synchronous steps for good; None.
    """

    def __init__(
        self,
        ranks: Comm,
        schedule: Schedule,
        *,
        momentum: float,
        tested: bool = False,
        steady: bool = False,
        say: Callable[[str], None] = lambda text: print(text, file=sys.stderr, flush=True),
    ):
        """
        Args:
            momentum: of the optimizer; Adam's beta1. 0 for plain SGD.
            tested: the learning rate is known to bear the delay; :attr:`scale` stays 1.
            steady: arrays that are handed in never change, so they are not copied; means are the caller's
                for as long as it holds them.
            say: called on rank 0 with a sentence on what the delay does, and when it ends.
        Raises:
            FairleadError: the momentum is above 0.95 and ``tested`` was not set: there the largest
                stable rate is below 1/78 of the synchronous one.
        """
        if momentum > MOST_MOMENTUM and not tested:
            raise fail(
                "comm-delay", momentum=momentum, ratio=_ratio(momentum), most_momentum=MOST_MOMENTUM
            )
        self._ranks, self._schedule = ranks, schedule
        self._momentum, self._tested = momentum, tested
        self._say = say if ranks.rank == 0 else lambda text: None
        self._step = 0
        self._pending: Pending | None = None
        # Two sets: while one is on its way, the means of the other are being applied.
        self._kept: list[list[Array]] = [[], []]
        self._steady = steady
        self._rooms: list[list[Array]] = []  # for means of steady ones; some are still others'
        self._under_way: list[Array] = []  # whose room is not to be used again
        self._least = math.inf
        self._was_delayed = False
        self._overlap = Overlap(self._say)
        self.diverged_at: int | None = None

    @property
    def scale(self) -> float:
        """What to multiply the learning rate by for what the last :meth:`step` gave."""
        return _ratio(self._momentum) if self._was_delayed and not self._tested else 1.0

    def step(self, arrays: Sequence[Array], loss: float = math.nan) -> tuple[list[Array], ...]:
        """Hands in this step's gradients.

        Args:
            arrays: as for :meth:`Comm.aggregate`; unless they are steady they may change as soon as this
                returns.
            loss: this rank's; its mean decides on divergence, on all ranks alike. NaN: not checked.
        Returns:
            The means to apply now, in this order: none, one or two. They hold until the next call
            but one.
        Raises:
            FairleadError: as :meth:`Comm.aggregate`.
        """
        delayed = self._schedule.delayed(self._step) and self.diverged_at is None
        if delayed and not self._was_delayed:
            self._announce()
        ready = self.flush()
        if ready and self.diverged_at is not None:
            delayed = False  # it was seen just now
        measured = (0.0, 0.0)
        if delayed and not self._overlap.decided and self._overlap.begin_step():
            measured = self._overlap.medians
        loss_and_count = [0.0, 0.0] if math.isnan(loss) else [loss, 1.0]
        handed = [*arrays, np.array([*loss_and_count, *measured])]
        room = self._room(handed) if self._steady else self._keep(handed)
        source = handed if self._steady else room
        if delayed and self._overlap.background:
            self._pending, self._under_way = self._ranks.start(source, out=room), list(room)
            given = ready
        elif delayed:
            means = self._ranks.aggregate(source, out=room)
            self._pending, self._under_way = Pending(lambda: means), list(room)
            given = ready
        else:
            given = (*ready, self._took(self._ranks.aggregate(source, out=room)))
        self._was_delayed = delayed
        self._step += 1
        return given

    def flush(self) -> tuple[list[Array], ...]:
        """The mean that is still on its way, if any; to be applied after the last step."""
        if self._pending is None:
            return ()
        pending, self._pending = self._pending, None
        means = pending.wait()
        self._under_way = []
        return (self._took(means),)

    def _took(self, means: list[Array]) -> list[Array]:
        *gradients, shared = means
        if shared[2] and not self._overlap.decided:
            self._overlap.decide(float(shared[2]), float(shared[3]))
        # NaN compares false: without a rank's loss, nothing is checked.
        loss = float(shared[0]) if shared[1] == 1.0 else math.nan
        if self._was_delayed and self.diverged_at is None and loss > _DIVERGED * self._least:
            self.diverged_at = self._step
            self._say(
                f"fairlead.comm: step {self._step}: the mean loss is {loss:.4g}, more than {_DIVERGED:g}"
                f" times its least ({self._least:.4g}): back to synchronous gradients, for good"
            )
        if loss < self._least:
            self._least = loss
        return gradients

    def _keep(self, arrays: Sequence[Array]) -> list[Array]:
        kept = self._kept[self._step % 2]
        if [(a.shape, a.dtype) for a in kept] != [(a.shape, a.dtype) for a in arrays]:
            kept = self._kept[self._step % 2] = [np.empty(a.shape, a.dtype) for a in arrays]
        for target, array in zip(kept, arrays, strict=True):
            np.copyto(target, array)
        return kept

    def _room(self, arrays: Sequence[Array]) -> list[Array]:
        """Buffers for means that the caller no longer holds."""
        like = [(a.shape, a.dtype) for a in arrays]
        for room in self._rooms:
            held = max(map(sys.getrefcount, room), default=0) > _UNHELD
            if [(a.shape, a.dtype) for a in room] == like and not held:
                return room
        room = [_aligned(a) for a in arrays]
        # Those of other shapes are of no more use.
        self._rooms = [room for room in self._rooms if [(a.shape, a.dtype) for a in room] == like]
        self._rooms.append(room)
        return room

    def _announce(self) -> None:
        ratio = _ratio(self._momentum)
        what = (
            "the learning rate stays as it is: it was marked as tested"
            if self._tested
            else f"the learning rate is to be multiplied by {ratio:.3g} meanwhile (Delayed.scale)"
        )
        self._say(
            f"fairlead.comm: step {self._step}: gradients are applied one step late from here; at momentum"
            f" {self._momentum:g} the largest stable learning rate is {ratio:.3g} of the synchronous"
            f" one; {what}"
        )


# What counts of an array that only its room holds, counted in the same way.
_UNHELD = max(map(sys.getrefcount, [np.empty(0)]))


def _aligned(like: Array) -> Array:
    """An empty array of that shape and dtype, where frameworks take it as it is."""
    raw = np.empty(like.nbytes + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + like.nbytes].view(like.dtype).reshape(like.shape)


def _ratio(momentum: float) -> float:
    """Largest stable learning rate, one step late over synchronous."""
    return largest_stable(momentum, 1) / largest_stable(momentum, 0)
