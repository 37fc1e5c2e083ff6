"""The weights behind gradients that are averaged: whether the ranks hold the same, early in a training and at its end.

A front that only sees gradients calls :meth:`Watched.step` whenever it averages them. The weights are compared at
the second step: Horovod's own scripts for TensorFlow 2 broadcast after the first. A broadcast that is missing, or that
left variables out, is an error there; what made weights differ later is one at the end, before MPI ends.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fairlead import comm
from fairlead.base.errors import FairleadError
from fairlead.comm.core import Array, Comm
from fairlead.comm.frameworks import common

# Names of weights and what they hold; empty where there are none any more.
Read = Callable[[], tuple[Sequence[str], Sequence[Array]]]


class Watched:
    """The weights of one optimizer, or of one list of gradients."""

    def __init__(self, ranks: Callable[[], Comm], broadcast: str = "", read: Read | None = None):
        """
        Args:
            ranks: those that hold the weights.
            broadcast: the call that a training lacks whose weights differ from the beginning.
            read: without it, only what is given to :meth:`compare` and :meth:`finish` is known.
        """
        self._ranks, self._broadcast, self._read = ranks, broadcast, read
        self._steps = self._compared = 0

    def step(self) -> None:
        """Gradients are about to be averaged. Collective.

        Raises:
            FairleadError: it is the second time, and the ranks hold other weights.
        """
        if self.due() and self._read is not None:
            self.compare(*self._read())

    def due(self) -> bool:
        """Counts a step; whether the weights are to be compared in it."""
        self._steps += 1
        if self._steps == 1:
            common.end_together()
            comm.init().before_end(self.end)
        return self._steps == 2 and self._ranks().size > 1

    def compare(self, names: Sequence[str], arrays: Sequence[Array]) -> None:
        """Compares what is given over ranks. Collective.

        Raises:
            FairleadError: it differs.
        """
        remedy = f"call `{self._broadcast}` on every rank before training"
        when = "before the second step"
        common.require_equal(self._ranks(), arrays, names, when, remedy)

    def pending(self) -> bool:
        """Whether steps were made since the weights were last compared at an end."""
        return self._steps != self._compared and self._ranks().size > 1

    def finish(self, names: Sequence[str], arrays: Sequence[Array]) -> None:
        """A training has ended with these weights. Collective.

        Raises:
            FairleadError: the ranks hold others.
        """
        self._compared = self._steps
        when = "at the end of the training"
        common.require_equal(self._ranks(), arrays, names, when, common.UNEQUAL_AT_END)
        if self._ranks().rank == 0 and arrays:
            count = f"{len(arrays)} array{'s' if len(arrays) > 1 else ''}"
            common.say(f"weights are bit-identical on {self._ranks().size} ranks ({count})")

    def end(self) -> None:
        """MPI is about to end. Collective; :meth:`finish` with what the weights are now.

        Raises:
            FairleadError: as :meth:`finish`.
        """
        try:
            self._ranks()
        except FairleadError:
            if self._steps != self._compared:
                common.say(common.NOT_COMPARED)
            return
        if self.pending() and self._read is not None:
            self.finish(*self._read())
        elif self.pending() and self._ranks().rank == 0:
            common.say("weights were not compared at the end: only the script knows them")
