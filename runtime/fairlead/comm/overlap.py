"""Whether means should move in the background, by measurement: that pays where a core is idle, and costs where none is.

The first steps take turns, a block in the foreground, a block in the background. Then all ranks decide alike, once.
The values of the means are the same either way.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from fairlead.comm.core import Comm

BLOCK = 3  # steps; the first still waits for what the last of the block before has started
BLOCKS = 6


class Overlap:
    """The turns of one training, and what they showed.

    Attributes:
        background: how the means of the step that begins are to move.
        decided: ``background`` stays as it is.
    """

    def __init__(self, say: Callable[[str], None], clock: Callable[[], float] = time.perf_counter):
        """
        Args:
            say: called with a sentence on the decision.
            clock: seconds.
        """
        self.background, self.decided = False, False
        self._say, self._clock = say, clock
        self._seconds: tuple[list[float], list[float]] = [], []
        self._step, self._begun = 0, 0.0

    def begin_step(self) -> bool:
        """The means of another step are about to move. Returns whether that was the last turn."""
        now = self._clock()
        if self._step and (self._step - 1) % BLOCK:  # not the first of a block
            self._seconds[self.background].append(now - self._begun)
        self._begun = now
        over = self._step == BLOCK * BLOCKS
        if not over:
            self.background = bool(self._step // BLOCK % 2)
            self._step += 1
        return over

    @property
    def medians(self) -> tuple[float, float]:
        """Seconds of a step with means in the foreground and in the background, of this rank."""
        foreground, background = map(median, self._seconds)
        return foreground, background

    def settle(self, ranks: Comm) -> None:
        """:meth:`decide` by the :attr:`medians` of all. Collective."""
        (seconds,) = ranks.aggregate([np.array(self.medians)])
        self.decide(*map(float, seconds))

    def decide(self, foreground: float, background: float) -> None:
        """By the means of all ranks' :attr:`medians`."""
        self.decided = True
        self.background = background < foreground
        chosen, other = (
            ("background", "foreground") if self.background else ("foreground", "background")
        )
        self._say(
            f"fairlead.comm: means move in the {chosen}: a step takes {min(foreground, background):.3g} s so,"
            f" {max(foreground, background):.3g} s with means in the {other}"
        )
