"""The state behind ``ml_comm`` and ``dl_comm``: teams that average gradients, in NumPy.

A team is synchronous until ``config_team`` says otherwise. In the delayed mode, means come one step
late by :class:`fairlead.comm.delayed.Delayed`. A graph makes an update in every step, so a step without
a mean gets zeros, and one with two means their sum: what is handed out adds up to what was averaged.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from fairlead import comm
from fairlead.base.errors import fail
from fairlead.comm.core import Array, Comm
from fairlead.comm.delayed import Delayed, Schedule, largest_stable
from fairlead.comm.dropin.variables import MOST_THREADS, Variables, read
from fairlead.comm.frameworks.watched import Watched

MOMENTUM = "FAIRLEAD_COMM_DELAY_MOMENTUM"
_ASSUMED_MOMENTUM = 0.9
_NARROW = ("float16", "bfloat16", "float32")

Say = Callable[[str], None]
# The calls of this process that made weights equal on all ranks, or showed that they are.
made_equal: set[str] = set()


def say_on_rank_0(text: str) -> None:
    if comm.rank() == 0:
        sys.stderr.write(f"fairlead: {text}\n")
        sys.stderr.flush()


class Team:
    """One team: a communicator, how it is configured, and what it has done.

    Attributes:
        max_steps, verbosity: as for :meth:`configure`; 0 before it.
        calls, waited_s: aggregations, and the seconds that this rank stood in them.
        size: elements of the gradients, as seen in the first step; None before it.
    """

    def __init__(self, number: int, ranks: Comm, *, double: bool = False, say: Say = say_on_rank_0):
        self.number, self.ranks, self._double, self._say = number, ranks, double, say
        # A session may run two aggregations of one team in two threads.
        self._lock = threading.Lock()
        self._late: _Late | None = None
        self._shapes: list[tuple[tuple[int, ...], str]] | None = None
        self.max_steps, self.verbosity, self._freq = 0, 0, 0
        self._reported_s = 0.0
        self._undelivered = False
        self.calls, self.waited_s = 0, 0.0
        self.size: int | None = None

    def configure(
        self, ksteps: int, max_steps: int, verbosity: int, perf_freq: int, momentum: float | None
    ) -> None:
        """See :func:`fairlead.comm.dropin.cray.config_team`."""
        self.max_steps, self.verbosity, self._freq = max_steps, verbosity, perf_freq
        schedule = schedule_of(ksteps, max_steps)
        if schedule is None or not schedule.late:
            self._late = None
            self._say(f"team {self.number}: gradients are synchronous throughout")
            return
        self._late = _Late(self, self.ranks, schedule, momentum)
        self._say(
            f"team {self.number}: of {max_steps} steps of each rank, those from {schedule.late[0]} to"
            f" {schedule.late[-1]} get their gradients one step late, the others are synchronous"
        )

    def gradients(self, arrays: Sequence[Array]) -> list[Array]:
        """What to apply in this step, in new arrays."""
        with self._lock:
            begun = time.perf_counter()
            if self.size is None:
                self.size = sum(array.size for array in arrays)
            wide = [
                a.astype(np.float64) if self._double and a.dtype.name in _NARROW else a
                for a in arrays
            ]
            means = self.ranks.aggregate(wide) if self._late is None else self._delayed(wide)
            result = [
                mean if mean.dtype == array.dtype else mean.astype(array.dtype)
                for mean, array in zip(means, arrays, strict=True)
            ]
            self.calls += 1
            self.waited_s += time.perf_counter() - begun
            self._report()
            return result

    def flush(self) -> None:
        """Receives the pending means, which are no longer applied, and reports that. Collective."""
        if self._late is not None and self._late.flush():
            self._say(
                f"team {self.number}: the program ended after {self.calls} of {self.max_steps} steps,"
                " so the mean of its last step was not applied; end it at max_steps, whose last step"
                " gets both"
            )

    def _delayed(self, arrays: Sequence[Array]) -> list[Array]:
        assert self._late is not None
        shapes = [(array.shape, array.dtype.str) for array in arrays]
        if self._shapes is not None and self._shapes != shapes:
            raise fail("comm-dropin-team", number=self.number)
        self._shapes = shapes
        given = self._late.step(arrays)
        if not given:
            if not self._undelivered:
                self._undelivered = True
                self._say(
                    f"team {self.number}: step {self.calls}, the first with a delay, has no mean yet, and"
                    " gets zeros; momentum, weight decay and Adam still move the weights in it"
                )
            return [np.zeros_like(array) for array in arrays]
        # They are kept and filled again, while a graph takes over what it is given.
        first, *others = given
        means = [mean.copy() for mean in first]
        for other in others:
            for mean, more in zip(means, other, strict=True):
                mean += more
        if self._late.scale != 1.0:
            for mean in means:
                mean *= mean.dtype.type(self._late.scale)
        return means

    def _report(self) -> None:
        if self._late is not None and self.calls == self.max_steps + 1:
            self._say(
                f"team {self.number} makes more steps than its max_steps, {self.max_steps}; ksteps and"
                " max_steps count the steps of one rank, so divide by the number of ranks once;"
                " synchronous from here"
            )
        if self.verbosity and self._freq and self.calls % self._freq == 0:
            each = (self.waited_s - self._reported_s) / self._freq
            self._reported_s = self.waited_s
            self._say(
                f"team {self.number}: step {self.calls}: waited {1000 * each:.1f} ms a step, of the"
                f" last {self._freq}"
            )


class _Late(Delayed):
    """Delayed gradients of a program that gives neither its momentum nor its learning rate."""

    def __init__(self, team: Team, ranks: Comm, schedule: Schedule, momentum: float | None):
        super().__init__(
            ranks,
            schedule,
            momentum=_ASSUMED_MOMENTUM if momentum is None else momentum,
            tested=momentum is None,  # what is not known is not scaled by
            say=team._say,
        )
        self._team = team

    def _announce(self) -> None:
        ratio = largest_stable(self._momentum, 1) / largest_stable(self._momentum, 0)
        what = f"at momentum {self._momentum:g} the largest stable learning rate is {ratio:.3g} of the synchronous one"
        if not self._tested:
            then = "the means are multiplied by that meanwhile, which is as good as a lower rate for SGD"
        else:
            then = (
                "the momentum of the program is unknown and its learning rate stays as it is: see that it"
                f" bears the delay, or set {MOMENTUM} to its momentum (0 for plain SGD) and it is lowered"
            )
        self._say(
            f"team {self._team.number}: step {self._step}: gradients come one step late from here;"
            f" {what}; {then}; divergence goes unnoticed, since the losses are unknown"
        )


def schedule_of(ksteps: int, max_steps: int) -> Schedule | None:
    """Which steps are synchronous; None: all.

    The last step is, so that it hands out what is outstanding: of a program that ends at ``max_steps``
    nothing is lost.

    Raises:
        FairleadError: 0 steps.

    >>> [schedule_of(1, 5).delayed(step) for step in range(6)]
    [False, True, True, True, False, False]
    >>> [schedule_of(-2, 5).delayed(step) for step in range(6)]
    [True, True, True, False, False, False]
    """
    if ksteps == 0 or max_steps < 1:
        raise fail("comm-dropin-schedule", ksteps=ksteps, max_steps=max_steps)
    if ksteps > 0:
        return Schedule(max_steps - 1, ksteps) if ksteps < max_steps - 1 else None
    return Schedule(max_steps, ksteps)


class Plugin:
    """What ``init`` makes: the teams of this process, and their end."""

    def __init__(
        self,
        threads: int,
        teams: int,
        model_size: int,
        wanted: Sequence[int] = (),
        environ: Mapping[str, str] = os.environ,
    ):
        """Collective.

        Args:
            wanted: teams that a graph names already.
        Raises:
            FairleadError: a variable of the environment has a bad value, on any rank's own.
        """
        self._ranks = comm.init()
        self._variables: Variables = read(environ)
        self._momentum = _momentum(environ)
        self._model_size, self._made = model_size, teams
        self._threads = min(max(threads, 1), MOST_THREADS)
        self._compared = False
        self._unknown = Watched(comm.init)  # the weights
        self._lock = threading.Lock()
        self.teams: dict[int, Team] = {}
        for number in sorted({*range(teams), *wanted}):
            self.team(number)
        if self._variables.ignored:
            say_on_rank_0(f"set, and without meaning here: {', '.join(self._variables.ignored)}")

    def team(self, number: int) -> Team:
        """Collective where ``init`` has not made it."""
        with self._lock:
            if number not in self.teams:
                by_init = number < self._made
                threads = self._threads if by_init else self._variables.threads
                self.teams[number] = Team(
                    number,
                    self._ranks.team(threads, f"team {number} of the plugin"),
                    double=self._variables.double,
                )
            return self.teams[number]

    def configure(
        self, number: int, ksteps: int, max_steps: int, verbosity: int, perf_freq: int
    ) -> None:
        team = self.team(number)
        team.configure(ksteps, max_steps, verbosity, perf_freq, self._momentum)

    def require_broadcast(self, number: int) -> None:
        """A team is about to average gradients of weights that only the script knows.

        Raises:
            FairleadError: it is the second time, and nothing has made the weights equal.
        """
        self._unknown.step()
        if self.team(number).calls == 1 and self._ranks.size > 1 and not made_equal:
            raise fail("comm-dropin-not-broadcast", number=number)

    def gradients(self, arrays: Sequence[Array], number: int) -> list[Array]:
        result = self.team(number).gradients(arrays)
        if not self._compared:
            self._compare_size()
        return result

    def close(self) -> None:
        """Collective."""
        for team in self.teams.values():
            team.flush()
        idle = [team.number for team in self.teams.values() if team.max_steps and not team.calls]
        if idle and any(team.calls for team in self.teams.values()):
            say_on_rank_0(
                f"team {', '.join(map(str, idle))} was configured, and averaged nothing: config_team and"
                " gradients have to name the same team"
            )
        for team in self.teams.values():
            if self._ranks.rank == 0 or team.verbosity >= 2:
                sys.stderr.write(
                    f"fairlead: rank {self._ranks.rank}: waited {team.waited_s:.3f} s in team"
                    f" {team.number}, {team.calls} calls\n"
                )
        sys.stderr.flush()

    def _compare_size(self) -> None:
        """Says so where ``model_size`` is not that of the gradients; all of them are averaged anyway."""
        sizes = [team.size for team in self.teams.values()]
        known = [size for size in sizes if size is not None]
        if len(known) < len(sizes) and sum(known) <= self._model_size:
            return
        self._compared = True
        # Networks with a team each: some programs give the size of all, some that of the largest.
        if self._model_size not in (sum(known), max(known)):
            say_on_rank_0(
                f"init got a model_size of {self._model_size}, but the gradients have {sum(known)}"
                " elements; all of them are averaged. Count the variables, as in"
                " sum(v.shape.num_elements() for v in tf.trainable_variables())"
            )


def _momentum(environ: Mapping[str, str]) -> float | None:
    text = environ.get(MOMENTUM, "")
    if not text:
        return None
    try:
        value = float(text)
        if not 0 <= value < 1:
            raise ValueError
    except ValueError:
        raise fail("comm-dropin-variable-momentum", momentum=MOMENTUM, text=text) from None
    return value
