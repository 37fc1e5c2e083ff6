"""The search itself: keeps as many trials running as fit, and tells the study how each has ended."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from fairlead.base.errors import fail
from fairlead.session.model import Prepared
from fairlead.tune import passing
from fairlead.tune.figures import OUTPUT, REPORTS, Reports, values_of
from fairlead.tune.launcher import Launcher, Order, Outcome, outcome_of, settled
from fairlead.tune.study import Claim, Study
from fairlead.tune.target import Target, TrialOf
from fairlead.tune.workers import Worker

_LOOK_S = 0.1
_HOPELESS = 5  # failures with which a search may begin


@dataclass(frozen=True)
class Slots:
    """Where trials run.

    Attributes:
        cores: of this machine, a group for each trial that runs at once; empty groups leave a trial where it likes.
        gpus: as many groups, of what ``CUDA_VISIBLE_DEVICES`` has of each trial; none where trials ask for none.
    """

    cores: tuple[tuple[int, ...], ...]
    gpus: tuple[tuple[str, ...], ...] = ()

    def env(self, slot: int) -> dict[str, str]:
        """The variables of a trial that runs there."""
        return {"CUDA_VISIBLE_DEVICES": ",".join(self.gpus[slot])} if self.gpus else {}


def slots(
    each: int, at_once: int | None, of_job: int = 0, gpus: int = 0, there: Sequence[str] = ()
) -> Slots:
    """As many trials as fit on this machine, or in a job of several nodes.

    Args:
        each: cores of a trial.
        at_once: how many the user wants; None for as many as fit.
        of_job: cores of a job whose scheduler places its steps; 0 on this machine.
        gpus: of a trial, out of those that are ``there``.
    Raises:
        FairleadError: exit code 2; a trial wants more GPUs than there are.
    """
    if of_job:
        return Slots(((),) * (at_once or max(of_job // each, 1)))
    if gpus > len(there):
        raise fail("tune-gpus", wanted=gpus, count=len(there))
    mine = sorted(os.sched_getaffinity(0))
    fits = max(len(mine) // each, 1)
    count = at_once or fits
    if gpus:
        count = min(count, len(there) // gpus)
    devices = tuple(tuple(there[i * gpus : (i + 1) * gpus]) for i in range(count)) if gpus else ()
    if count > fits:  # they share cores
        return Slots(((),) * count, devices)
    return Slots(tuple(tuple(mine[i * each : (i + 1) * each]) for i in range(count)), devices)


def visible_gpus(environ: Mapping[str, str] = os.environ) -> list[str]:
    """The GPUs of this machine that this process may use, as ``CUDA_VISIBLE_DEVICES`` names them."""
    if (named := environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        return [name for name in named.split(",") if name]
    return sorted(
        (p.name.removeprefix("nvidia") for p in Path("/dev").glob("nvidia[0-9]*")), key=int
    )


@dataclass(frozen=True)
class Limits:
    """What ends a trial early.

    Attributes:
        seconds: that a trial may take; None for any time.
        watchdog: seconds that its start may take.
    """

    seconds: float | None = None
    watchdog: float | None = None


@dataclass(frozen=True)
class Ended:
    """A trial that is over, for those who look on.

    Attributes:
        values: in the order of the objectives; None where it failed or was ended early.
        why: of a failure; empty otherwise.
    """

    claim: Claim
    values: tuple[float, ...] | None
    why: str
    pruned: bool
    seconds: float


@dataclass
class _Running:
    claim: Claim
    slot: int
    folder: Path
    reports: Reports
    begun: float = field(default_factory=time.monotonic)
    ended_for: str = ""
    pruned: bool = False
    count: int = 0


class Tuner:
    """One process that works on a study.

    Args:
        on_ended: called with each trial that is over.
    """

    def __init__(
        self, study: Study, target: Target, prepared: Prepared, slots: Slots, limits: Limits, worker: Worker,
        on_ended: Callable[[Ended], None] = lambda ended: None,
    ):  # fmt: skip
        self._study, self._target, self._prepared = study, target, prepared
        self._limits, self._worker = limits, worker
        self._on_ended = on_ended
        self._free = list(reversed(range(len(slots.cores))))
        self._slots = slots
        self._running: dict[int, _Running] = {}
        self._failed: list[str] = []
        self._any_well = any(t.state in ("complete", "pruned") for t in study.trials())

    def run(self) -> None:
        """Works until all trials have ended, this process's own and those of others that died.

        Raises:
            FairleadError: the storage failed; or no trial has come to a value, so that others need not try.
        """
        with _launcher(self._prepared) as launcher:
            while self._fill(launcher) or self._running or self._study.waits:
                self._worker.touch()
                try:
                    over = launcher.wait(_LOOK_S)
                except ChildProcessError as exc:
                    raise fail("tune-launcher-gone", reason=exc) from None
                self._look(launcher)
                for number in over:
                    self._over(number)

    def _fill(self, launcher: Launcher) -> bool:
        """Starts trials while there is room; False when there is none left to start."""
        while self._free:
            claim = self._study.claim()
            if claim is None:
                return False
            self._start(launcher, claim)
        return True

    def _start(self, launcher: Launcher, claim: Claim) -> None:
        folder = self._folder(claim.number)
        folder.mkdir(parents=True, exist_ok=True)
        if claim.attempt > 1 and settled(folder):  # it had come to its end when its tuner died
            self._running[claim.number] = _Running(
                claim, self._free.pop(), folder, Reports(folder / REPORTS)
            )
            self._over(claim.number)
            return
        passing.write(folder, claim.parameters)
        trial = TrialOf(claim.number, claim.seed, folder, self._checkpoint(claim))
        work = self._target.work(trial, claim.parameters)
        slot = self._free.pop()
        self._running[claim.number] = _Running(claim, slot, folder, Reports(folder / REPORTS))
        launcher.start(
            Order(
                number=claim.number,
                folder=str(folder),
                command=work.command,
                ranks=self._prepared.plan.request.shape.ranks or 1,
                env={**work.env, **self._slots.env(slot)},
                binds=work.binds,
                cores=self._slots.cores[slot],
                watchdog=self._limits.watchdog,
            )
        )

    def _folder(self, number: int) -> Path:
        return self._study.folder / "trials" / f"{number:05}"

    def _checkpoint(self, claim: Claim) -> Path | None:
        return None if claim.source is None else self._folder(claim.source)

    def _look(self, launcher: Launcher) -> None:
        """Passes reports on; ends trials that are worse than others, or take too long."""
        for number, running in self._running.items():
            prune = self._reported(running)
            if running.ended_for:
                continue
            limit = self._limits.seconds
            if prune:
                running.pruned, running.ended_for = True, "worse than others at this step"
            elif limit and time.monotonic() - running.begun > limit:
                running.ended_for = f"time limit of {limit:g} s"
            if running.ended_for:
                launcher.end(number)

    def _reported(self, running: _Running) -> bool:
        """Whether a trial is to be ended early, by what it has newly reported."""
        prune = False
        only = self._study.objectives[0]
        for step, values in [*running.reports.read(), *self._target.reports(running.folder)]:
            running.count += 1
            if not _kept(running.count):
                continue
            if (value := values.get("", values.get(only))) is not None:
                prune = self._study.report(running.claim.number, step, value) or prune
        return prune

    def _over(self, number: int) -> None:
        running = self._running.pop(number)
        self._reported(running)
        self._free.append(running.slot)
        outcome = outcome_of(running.folder)
        seconds = outcome.seconds if outcome else time.monotonic() - running.begun
        values, why = self._judged(running, outcome)
        pruned = running.pruned and values is None
        self._study.tell(
            number, values, why, seconds, outcome.proof if outcome else "", pruned=pruned
        )
        self._on_ended(Ended(running.claim, values, why, pruned, seconds))
        if values is not None or pruned:
            self._any_well = True
        elif not self._any_well:
            self._failed.append(why)
            if len(self._failed) >= min(_HOPELESS, self._study.trials_wanted):
                raise fail(
                    "tune-nothing-works", count=len(self._failed), why=self._failed[0],
                    log=running.folder / OUTPUT,
                )  # fmt: skip

    def _judged(
        self, running: _Running, outcome: Outcome | None
    ) -> tuple[tuple[float, ...] | None, str]:
        """A trial's values, or why it has none."""
        if outcome is None:
            return None, running.ended_for or "the process that had launched it was killed"
        if outcome.code:
            last = _last_line(running.folder / OUTPUT)
            return None, "; ".join(filter(None, (outcome.why or f"exit code {outcome.code}", last)))
        objectives = self._study.space.wanted
        found = values_of(running.folder, objectives, running.reports.last)
        if absent := [name for name, value in found.items() if value is None]:
            return None, f"no value of {', '.join(absent)} came: {_how(self._study, absent[0])}"
        values = tuple(value for value in found.values() if value is not None)
        if wrong := [n for n, v in found.items() if v is not None and not math.isfinite(v)]:
            return None, f"{wrong[0]} is {found[wrong[0]]}"
        return values, ""


def _kept(count: int) -> bool:
    """Whether the study gets a report, by how many came before: each costs it a write that is waited for."""
    return count <= 200 or (count % 10 == 0 and count <= 2000) or count % 100 == 0


def _how(study: Study, name: str) -> str:
    """How a value was to come."""
    wanted = study.space.wanted[name]
    if wanted.written:
        return f"{wanted.written} in the trial's folder" + (f", {wanted.key}" if wanted.key else "")
    if wanted.printed:
        return f"no line that {wanted.printed!r} matches"
    return "neither fairlead.tune.report() nor a line `FoM: VALUE`"


def _last_line(path: Path) -> str:
    """The last line that a trial printed itself."""
    try:
        with path.open("rb") as stream:
            stream.seek(max(path.stat().st_size - 4096, 0))
            lines = stream.read().decode(errors="replace").splitlines()
    except OSError:
        return ""
    own = [line.strip() for line in lines if line.strip() and not line.startswith("fairlead: ")]
    return own[-1][:300] if own else ""


@contextmanager
def _launcher(prepared: Prepared) -> Iterator[Launcher]:
    launcher = Launcher(prepared)
    try:
        yield launcher
    finally:
        launcher.close()
