"""A model in stages, one a rank, and a batch in microbatches that follow each other through them.

    links = comm.init().point_to_point()
    pipeline = Pipeline(links, stage, one_forward_one_backward)
    for batch in batches:
        pipeline.step(microbatches=8)

A schedule is a pure function: the order in which one stage passes microbatches forward and backward. :func:`gpipe` passes
all forward, then all backward (Y. Huang et al., "GPipe", NeurIPS 2019); :func:`one_forward_one_backward` passes one
backward as soon as there is one, so that a stage keeps at most as many microbatches as there are stages (D. Narayanan et
al., "PipeDream", SOSP 2019; its synchronous form). Both pass microbatches backward in ascending order, so that gradients are
added up in the same order, whatever the schedule and the number of stages.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

from fairlead.base.errors import fail

if TYPE_CHECKING:
    from fairlead.comm.core import Array
    from fairlead.comm.point_to_point import PointToPoint


class Move(NamedTuple):
    """One pass of one microbatch through one stage."""

    backward: bool
    microbatch: int


Schedule: TypeAlias = Callable[[int, int, int], tuple[Move, ...]]


def gpipe(stage: int, stages: int, microbatches: int) -> tuple[Move, ...]:
    """All forward, then all backward.

    Raises:
        FairleadError: there is no such stage, or no microbatch.

    >>> " ".join(f"{'FB'[m.backward]}{m.microbatch}" for m in gpipe(0, 2, 2))
    'F0 F1 B0 B1'
    """
    _check(stage, stages, microbatches)
    return tuple(Move(back, at) for back in (False, True) for at in range(microbatches))


def one_forward_one_backward(stage: int, stages: int, microbatches: int) -> tuple[Move, ...]:
    """As many forward as there are stages behind this one, then one forward and one backward in turn.

    Raises:
        FairleadError: there is no such stage, or no microbatch.

    >>> " ".join(f"{'FB'[m.backward]}{m.microbatch}" for m in one_forward_one_backward(0, 2, 3))
    'F0 F1 B0 F2 B1 B2'
    """
    _check(stage, stages, microbatches)
    ahead = min(stages - stage - 1, microbatches)
    moves = [Move(False, at) for at in range(ahead)]
    for at in range(microbatches):
        if ahead + at < microbatches:
            moves.append(Move(False, ahead + at))
        moves.append(Move(True, at))
    return tuple(moves)


SCHEDULES: dict[str, Schedule] = {"gpipe": gpipe, "1f1b": one_forward_one_backward}


def bubble(stages: int, microbatches: int) -> float:
    """The share of a step in which a stage has nothing to do, where all stages take equally long.

    >>> bubble(2, 3)
    0.25
    """
    return (stages - 1) / (microbatches + stages - 1)


def most_kept(moves: Sequence[Move]) -> int:
    """How many microbatches a stage keeps at once: passed forward, not yet backward.

    >>> most_kept(gpipe(0, 2, 8)), most_kept(one_forward_one_backward(0, 2, 8))
    (8, 2)
    """
    kept = most = 0
    for move in moves:
        kept += -1 if move.backward else 1
        most = max(most, kept)
    return most


def step_time(
    schedule: Schedule, stages: int, microbatches: int, seconds: Callable[[int, Move], float]
) -> float:
    """Seconds of a step whose messages take no time.

    Args:
        seconds: of a stage's pass.
    Raises:
        ValueError: the stages wait for each other forever.

    >>> step_time(gpipe, 2, 3, lambda stage, move: 2 if move.backward else 1)
    12
    """
    left = [list(schedule(stage, stages, microbatches)) for stage in range(stages)]
    free: list[float] = [0] * stages
    done: dict[tuple[int, Move], float] = {}
    while any(left):
        moved = False
        for stage, moves in enumerate(left):
            while moves and (needs := _needs(stage, stages, moves[0])) <= done.keys():
                move = moves.pop(0)
                begun = max([free[stage], *(done[n] for n in needs)])
                free[stage] = done[stage, move] = begun + seconds(stage, move)
                moved = True
        if not moved:
            raise ValueError(f"stages wait for each other: {left}")
    return max(free)


def _needs(stage: int, stages: int, move: Move) -> set[tuple[int, Move]]:
    """What comes before a move."""
    if not move.backward:
        return {(stage - 1, move)} if stage else set()
    own = (stage, Move(False, move.microbatch))
    return {own} if stage == stages - 1 else {own, (stage + 1, move)}


def _check(stage: int, stages: int, microbatches: int) -> None:
    if not 0 <= stage < stages or microbatches < 1:
        raise fail("comm-pipeline", stage=stage, stages=stages, microbatches=microbatches)


class Stage(Protocol):
    """The layers of one rank. What :meth:`forward` computes for a microbatch, :meth:`backward` may need: keep it."""

    def forward(self, microbatch: int, inputs: Array | None) -> Array | None:
        """Activations of a microbatch, which must not change during the step.

        Args:
            inputs: activations of the stage before; None at the first, which has the samples.
        Returns:
            Activations for the next stage; at the last stage it is ignored.
        """

    def backward(self, microbatch: int, gradient: Array | None) -> Array | None:
        """Adds up the gradients of the stage's weights.

        Args:
            gradient: of the loss, with respect to what :meth:`forward` returned; None at the last stage.
        Returns:
            The gradient with respect to ``inputs``; at the first stage it is ignored.
        """


class Pipeline:
    """One rank of a pipeline, whose stages are the ranks of ``links`` in order.

    Attributes:
        waited_s: seconds of the last step in which this stage waited for others.
        step_s: seconds of the last step.
    """

    def __init__(
        self, links: PointToPoint, stage: Stage, schedule: Schedule = one_forward_one_backward
    ):
        self._links, self._stage, self._schedule = links, stage, schedule
        self.waited_s = self.step_s = 0.0

    def step(self, microbatches: int) -> None:
        """Passes as many microbatches forward and backward. Every stage calls it with the same number.

        A message of microbatch N has the tag 2 N (activations) or 2 N + 1 (gradients).

        Raises:
            FairleadError: as :meth:`~fairlead.comm.point_to_point.PointToPoint.recv`; there is no microbatch.
        """
        links, begun, waited = self._links, time.perf_counter(), self._links.waited_s
        for move in self._schedule(links.rank, links.size, microbatches):
            (self._backward if move.backward else self._forward)(move.microbatch)
        links.flush()
        self.step_s, self.waited_s = time.perf_counter() - begun, links.waited_s - waited

    def _forward(self, microbatch: int) -> None:
        links, inputs = self._links, None
        if links.rank > 0:
            inputs = links.recv(links.rank - 1, 2 * microbatch)
        outputs = self._stage.forward(microbatch, inputs)
        if links.rank < links.size - 1:
            assert outputs is not None, "only the last stage returns no activations"
            links.isend(outputs, links.rank + 1, 2 * microbatch)

    def _backward(self, microbatch: int) -> None:
        links, gradient = self._links, None
        if links.rank < links.size - 1:
            gradient = links.recv(links.rank + 1, 2 * microbatch + 1)
        gradient = self._stage.backward(microbatch, gradient)
        if links.rank > 0:
            assert gradient is not None, "only the first stage returns no gradient"
            links.isend(gradient, links.rank - 1, 2 * microbatch + 1)
