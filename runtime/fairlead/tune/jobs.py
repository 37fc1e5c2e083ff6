"""Trials as jobs of the scheduler, which outlive the tuner: a tuner that comes after it finds them again by name."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from fairlead.base import bounded_json
from fairlead.base.errors import fail
from fairlead.base.paths import atomic_write
from fairlead.base.process import run
from fairlead.base.serde import from_json, to_json
from fairlead.schedulers.model import Scheduler
from fairlead.tune.launcher import LOCK, Order, outcome_of

ORDER, JOB, SCRIPT, LOG = "order.json", "job.json", "job.sh", "job.log"
_ASK_S = 3.0  # between two questions to the scheduler
_LATE_S = 10.0  # for a file that another node has written
_SUBMIT_S = 60.0


@dataclass
class _Waiting:
    name: str
    folder: Path
    begun: float | None = None
    missing: float | None = None


@dataclass
class Jobs:
    """What :class:`fairlead.tune.launcher.Launcher` is for trials on this machine or in this job.

    Attributes:
        script: the text of a job, by its name, its log, and the folder of its trial.
    """

    scheduler: Scheduler
    script: Callable[[str, Path, Path], str]
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    _jobs: dict[int, _Waiting] = field(default_factory=dict)
    _asked: float = -_ASK_S
    _queued: dict[str, str] | None = None

    def start(self, order: Order) -> None:
        """Submits a trial, unless a job of it is there: that is taken on.

        Raises:
            FairleadError: the scheduler refuses it.
        """
        folder = Path(order.folder)
        if self.left(folder):
            self._jobs[order.number] = _Waiting(_name_of(folder), folder)
            return
        name = f"tune-{order.number}-{os.urandom(4).hex()}"
        _write(folder / ORDER, json.dumps(to_json(order)))
        _write(folder / SCRIPT, self.script(name, folder / LOG, folder))
        # Before it is submitted: the name is how the job is found again.
        _write(folder / JOB, json.dumps({"scheduler": self.scheduler.kind, "name": name}))
        (folder / LOCK).unlink(missing_ok=True)
        line = self.scheduler.submit_line(str(folder / SCRIPT))
        done = run(("sh", "-c", line), environ=self.environ, timeout_s=_SUBMIT_S)
        if done.returncode:
            raise fail("tune-submit", line=line, reason=done.tail or f"exit code {done.returncode}")
        self._jobs[order.number] = _Waiting(name, folder)

    def left(self, folder: Path) -> bool:
        """Whether a job of the trial in a folder waits or runs, or has come to its end."""
        name = _name_of(folder)
        if not name:
            return False
        if outcome_of(folder) is not None:
            return True
        self._asked = -_ASK_S
        if name in self._names():
            return True
        until = time.monotonic() + _LATE_S / 5
        while time.monotonic() < until:  # it may have ended just now
            if outcome_of(folder) is not None:
                return True
            time.sleep(0.2)
        return False

    def end(self, number: int) -> None:
        """Cancels a trial's job; it is over when :meth:`wait` says so."""
        job = self._names().get(self._jobs[number].name)
        if job:
            run((*self.scheduler.cancel, job), environ=self.environ, timeout_s=_SUBMIT_S)

    def seconds(self, number: int) -> float:
        """For how long a trial has run, without the time in the queue."""
        job = self._jobs[number]
        if job.begun is None and (job.folder / LOCK).exists():
            job.begun = time.monotonic()
        return 0.0 if job.begun is None else time.monotonic() - job.begun

    def wait(self, seconds: float) -> list[int]:
        """The trials that are over, after ``seconds``."""
        time.sleep(seconds)
        names, over = self._names(), []
        for number, job in list(self._jobs.items()):
            if outcome_of(job.folder) is None and not self._vanished(job, names):
                continue
            over.append(number)
            del self._jobs[number]
        return over

    def _vanished(self, job: _Waiting, names: Mapping[str, str]) -> bool:
        """Whether the scheduler has not known a job for a while."""
        if job.name in names:
            job.missing = None
        elif job.missing is None:
            job.missing = time.monotonic()
        return job.missing is not None and time.monotonic() - job.missing > _LATE_S

    def _names(self) -> Mapping[str, str]:
        """The user's jobs that wait or run, by name; while the scheduler does not answer, all of ours are thought to."""
        if time.monotonic() - self._asked >= _ASK_S:
            self._asked = time.monotonic()
            self._queued = self.scheduler.queued(self.environ)
        if self._queued is None:
            return {job.name: "" for job in self._jobs.values()}
        return self._queued

    def close(self, keep: bool = False) -> None:
        """Cancels all jobs.

        Args:
            keep: leaves them: another tuner takes them on.
        """
        for number in () if keep else list(self._jobs):
            self.end(number)


def order_in(folder: Path) -> Order:
    """What the job of the trial in a folder is to launch.

    Raises:
        FairleadError: exit code 2; there is none.
    """
    try:
        return from_json(Order, bounded_json.loads((folder / ORDER).read_bytes()))
    except (OSError, ValueError, LookupError, TypeError) as exc:
        raise fail("tune-order", folder=folder, reason=exc) from None


def is_of(folder: Path, name: str) -> bool:
    """Whether the job of that name is the one that the trial in a folder waits for."""
    return _name_of(folder) == name


def _name_of(folder: Path) -> str:
    with suppress(OSError, ValueError, LookupError, TypeError):
        name = str(bounded_json.loads((folder / JOB).read_bytes())["name"])
        return name if re.fullmatch(r"[\w-]+", name) else ""
    return ""


def _write(path: Path, text: str) -> None:
    with atomic_write(path, "w") as stream:
        stream.write(text)
