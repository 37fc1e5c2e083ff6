"""The search itself: keeps as many trials running as fit, and tells the study how each has ended."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from fairlead.base.errors import FairleadError, fail
from fairlead.tune import passing
from fairlead.tune.artifacts import Artifacts
from fairlead.tune.figures import OUTPUT, REPORTS, Reports, values_of
from fairlead.tune.jobs import JOB
from fairlead.tune.launcher import OUTCOME, Order, Outcome, outcome_of
from fairlead.tune.places import Place, Places
from fairlead.tune.study import Claim, Study
from fairlead.tune.target import Target, TrialOf
from fairlead.tune.workers import Worker

_LOOK_S = 0.1
_HOPELESS = 5  # failures with which a search may begin
_LOST = "node-lost"
_ROOM_BYTES = 1 << 16


class Launches(Protocol):
    """What starts trials: see :class:`fairlead.tune.launcher.Launcher` and :class:`fairlead.tune.jobs.Jobs`."""

    def start(self, order: Order) -> None:
        """Starts a trial."""

    def left(self, folder: Path) -> bool:
        """Whether an earlier attempt of the trial in a folder goes on, or has come to its end."""

    def end(self, number: int) -> None:
        """Ends a trial early."""

    def seconds(self, number: int) -> float:
        """For how long a trial has run."""

    def wait(self, seconds: float) -> list[int]:
        """The trials that are over."""

    def close(self, keep: bool = False) -> None:
        """Ends all trials, or leaves them to another tuner."""


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
class Means:
    """By what trials run.

    Attributes:
        launches: makes what starts them.
        ranks: of each.
        artifacts: what keeps their files at a URL, too.
    """

    launches: Callable[[], Launches]
    places: Places
    ranks: int = 1
    limits: Limits = field(default_factory=Limits)
    artifacts: Artifacts | None = None


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
    place: Place
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
        on_lost: called with what is lost, and why, in words.
    """

    def __init__(
        self, study: Study, target: Target, means: Means, worker: Worker,
        on_ended: Callable[[Ended], None] = lambda ended: None,
        on_lost: Callable[[str], None] = lambda words: None,
    ):  # fmt: skip
        self._study, self._target, self._means = study, target, means
        self._places, self._worker = means.places, worker
        self._on_ended, self._on_lost = on_ended, on_lost
        self._again: list[Claim] = []
        self._running: dict[int, _Running] = {}
        self._leaving: dict[int, tuple[Future[None], Ended, str]] = {}  # with their proofs
        self._failed: list[str] = []
        self._any_well = any(t.state in ("complete", "pruned") for t in study.trials())

    def run(self) -> None:
        """Works until all trials have ended, this process's own and those of others that died.

        Raises:
            FairleadError: the storage failed; no node is left, or the job that trials run in has ended; or no trial has come to a value, so that others need not try.
        """
        with _closing(self._means.launches()) as launcher:
            self._study.goes_on = lambda number: self._goes_on(launcher, self._folder(number))
            while self._fill(launcher) or self._running or self._leaving or self._study.waits:
                self._worker.touch()
                try:
                    over = launcher.wait(_LOOK_S)
                except ChildProcessError as exc:
                    raise fail("tune-launcher-gone", reason=exc) from None
                self._look(launcher)
                for number in over:
                    self._over(number)
                self._settle()

    def _fill(self, launcher: Launches) -> bool:
        """Starts trials while there is room; False when there is none left to start."""
        while (place := self._places.take()) is not None:
            claim = self._again.pop(0) if self._again else self._study.claim()
            if claim is None:
                self._places.give(place)
                return False
            self._start(launcher, claim, place)
        if self._places.exhausted and not self._running:
            raise fail("tune-no-node", gone=", ".join(self._places.gone))
        return True

    def _start(self, launcher: Launches, claim: Claim, place: Place) -> None:
        folder = self._folder(claim.number)
        folder.mkdir(parents=True, exist_ok=True)
        running = _Running(claim, place, folder, Reports(folder / REPORTS))
        self._running[claim.number] = running
        before = claim.attempt > 1 or (folder / JOB).exists()  # of a tuner that has died
        if before and launcher.left(folder) and outcome_of(folder) is not None:
            self._over(claim.number)
            return
        passing.write(folder, claim.parameters)
        trial = TrialOf(claim.number, claim.seed, folder, self._checkpoint(claim))
        work = self._target.work(trial, claim.parameters)
        launcher.start(
            Order(
                number=claim.number,
                folder=str(folder),
                command=work.command,
                ranks=self._means.ranks,
                env={**work.env, **place.env},
                binds=work.binds,
                cores=place.cores,
                hosts=place.hosts,
                again=bool(self._places.gone),
                watchdog=self._means.limits.watchdog,
            )
        )

    @staticmethod
    def _goes_on(launcher: Launches, folder: Path) -> bool:
        """Whether the job of a trial outlived its tuner."""
        return (folder / JOB).exists() and launcher.left(folder)

    def _folder(self, number: int) -> Path:
        return self._study.folder / "trials" / f"{number:05}"

    def _checkpoint(self, claim: Claim) -> Path | None:
        return None if claim.source is None else self._folder(claim.source)

    def _look(self, launcher: Launches) -> None:
        """Passes reports on; ends trials that are worse than others, or take too long."""
        for number, running in self._running.items():
            prune = self._reported(running)
            if running.ended_for:
                continue
            limit = self._means.limits.seconds
            if prune:
                running.pruned, running.ended_for = True, "worse than others at this step"
            elif limit and launcher.seconds(number) > limit:
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
        self._places.give(running.place)
        outcome = outcome_of(running.folder)
        seconds = outcome.seconds if outcome else time.monotonic() - running.begun
        values, why = self._judged(running, outcome)
        if values is None:
            _check_room(running.folder)
        lost = "" if values else self._lost(running, outcome, why)
        if lost and self._repeated(running, lost):
            return
        pruned = running.pruned and values is None
        ended = Ended(running.claim, values, why, pruned, seconds)
        proof = outcome.proof if outcome else ""
        if self._means.artifacts:
            self._leaving[number] = (self._means.artifacts.sent(number), ended, proof)
        else:
            self._conclude(ended, proof)

    def _settle(self) -> None:
        """Tells the study of trials whose files are at their URL now."""
        for number, (sent, ended, proof) in list(self._leaving.items()):
            if not sent.done():
                continue
            del self._leaving[number]
            exc = sent.exception()
            if isinstance(exc, FairleadError):
                why = exc.findings[0].sentence
                self._on_lost(f"trial {number} is not at the URL yet, and is sent again: {why}")
            elif exc is not None:
                raise exc
            self._conclude(ended, proof)
            if self._means.artifacts:
                self._means.artifacts.study_changed()

    def _conclude(self, ended: Ended, proof: str) -> None:
        number, values, why = ended.claim.number, ended.values, ended.why
        self._study.tell(number, values, why, ended.seconds, proof, pruned=ended.pruned)
        if self._study.inherits:
            self._study.discard(self._discard)
        self._on_ended(ended)
        if values is not None or ended.pruned:
            self._any_well = True
        elif not self._any_well:
            self._failed.append(why)
            if len(self._failed) >= min(_HOPELESS, self._study.trials_wanted):
                raise fail(
                    "tune-nothing-works", count=len(self._failed), why=self._failed[0],
                    log=self._folder(number) / OUTPUT,
                )  # fmt: skip

    def _discard(self, number: int) -> None:
        """Removes what no other trial goes on from any more."""
        self._target.discard(self._folder(number))
        if self._means.artifacts:
            self._means.artifacts.discard(number)

    def _lost(self, running: _Running, outcome: Outcome | None, why: str) -> str:
        """Why a trial without a value is to be repeated elsewhere: what it ran on is lost; empty where it is not."""
        if running.ended_for:
            return ""
        if outcome is None:
            return "its job ended without a result" if (running.folder / JOB).exists() else ""
        if job := self._places.over:
            raise fail("tune-job-over", job=job)
        gone = self._places.look(outcome.host if outcome.check == _LOST else "")
        for host in gone:
            self._on_lost(f"{host} is lost; the search goes on without it")
        since = [host for host, at in self._places.gone.items() if at >= running.begun]
        if outcome.check != _LOST and not since:
            return ""
        return f"{', '.join(since) or outcome.host or 'a node'} is lost: {why}"

    def _repeated(self, running: _Running, why: str) -> bool:
        """Whether a trial that was lost is to run again; what is left of it then gives way."""
        claim = self._study.again(running.claim.number, why)
        if claim is None:
            return False
        for name in (OUTCOME, JOB):
            (running.folder / name).unlink(missing_ok=True)
        self._again.append(claim)
        self._on_lost(f"trial {claim.number} is lost, and runs again: {why}")
        return True

    def _judged(
        self, running: _Running, outcome: Outcome | None
    ) -> tuple[tuple[float, ...] | None, str]:
        """A trial's values, or why it has none."""
        if outcome is None or (outcome.code and running.ended_for):
            return None, running.ended_for or "the process that had launched it was killed"
        if outcome.code:
            last = _last_line(running.folder / OUTPUT)
            return None, "; ".join(filter(None, (outcome.why or f"exit code {outcome.code}", last)))
        objectives = self._study.space.wanted
        measured = values_of(running.folder, objectives, running.reports.last)
        if absent := [name for name, value in measured.items() if value is None]:
            return None, f"no value of {', '.join(absent)} came: {_how(self._study, absent[0])}"
        values = tuple(value for value in measured.values() if value is not None)
        if wrong := [n for n, v in measured.items() if v is not None and not math.isfinite(v)]:
            return None, f"{wrong[0]} is {measured[wrong[0]]}"
        return values, ""


def _check_room(folder: Path) -> None:
    """Raises where nothing can be written any more, so that no trial fails by that."""
    probe = folder / ".room"
    try:
        probe.write_bytes(bytes(_ROOM_BYTES))
        probe.unlink()
    except OSError as exc:
        with suppress(OSError):
            probe.unlink(missing_ok=True)
        raise fail("tune-storage", storage=folder, reason=exc.strerror or exc) from None


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
def _closing(launches: Launches) -> Iterator[Launches]:
    try:
        yield launches
    except KeyboardInterrupt:
        launches.close(keep=True)
        raise
    except BaseException:
        launches.close()
        raise
    launches.close()
