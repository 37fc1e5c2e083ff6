"""Where trials run: on cores of this machine, as steps of a job, on hosts by name, or as jobs of their own.

Nodes may leave while a search runs; it goes on with what is left.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fairlead.base.errors import fail
from fairlead.launch.node_history import short
from fairlead.launch.nodes import unreachable
from fairlead.schedulers.model import Allocation
from fairlead.schedulers.registry import SCHEDULERS, down


@dataclass(frozen=True)
class Place:
    """Room for one trial.

    Attributes:
        cores: of this machine; empty where it may run on any.
        env: variables of the trial that runs there.
        hosts: by name; empty where the launcher chooses.
    """

    cores: tuple[int, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    hosts: tuple[str, ...] = ()


class Places:
    """A fixed number of places.

    Attributes:
        gone: when nodes were found to be gone, by name, on the clock of :func:`time.monotonic`.
    """

    def __init__(self, places: Sequence[Place]):
        self._free = list(reversed(places))
        self.gone: dict[str, float] = {}

    def take(self) -> Place | None:
        """A free place; None while there is none."""
        return self._free.pop() if self._free else None

    def give(self, place: Place) -> None:
        """Takes a place back."""
        self._free.append(place)

    def look(self, host: str = "") -> list[str]:
        """Looks for nodes that are gone, and returns those that are newly found to be.

        Args:
            host: that is known to be gone.
        """
        return []

    @property
    def exhausted(self) -> bool:
        """Whether no trial can run any more."""
        return False

    @property
    def over(self) -> str:
        """The job that trials ran in, once it has ended; empty before."""
        return ""


class _Elastic(Places):
    """Places on nodes that may go."""

    def __init__(
        self, hosts: Sequence[str], allocation: Allocation | None, environ: Mapping[str, str]
    ):
        super().__init__(())
        self._hosts, self._allocation, self._environ = tuple(hosts), allocation, environ

    def look(self, host: str = "") -> list[str]:
        left = [h for h in self._hosts if h not in self.gone]
        lost = {h for h in left if host and short(h) == short(host)}
        lost |= set(down(self._allocation, self._environ, left)) & set(left)
        lost |= set(unreachable(left, unresolved=False)) if host else set()
        self.gone |= dict.fromkeys(sorted(lost), time.monotonic())
        return sorted(lost)

    @property
    def over(self) -> str:
        job = self._allocation
        scheduler = SCHEDULERS.get(job.scheduler) if job and job.scheduler in SCHEDULERS else None
        queued = scheduler.queued(self._environ) if scheduler else None
        return job.title if job and queued is not None and job.job not in queued.values() else ""

    def _left(self) -> list[str]:
        return [host for host in self._hosts if host not in self.gone]

    @property
    def exhausted(self) -> bool:
        return not self._left()


class Steps(_Elastic):
    """As many as there is room for in a job whose scheduler places its steps.

    Args:
        each: cores of a trial.
        at_once: how many the user wants; None for as many as fit.
    """

    def __init__(
        self, allocation: Allocation, each: int, at_once: int | None,
        environ: Mapping[str, str] = os.environ,
    ):  # fmt: skip
        super().__init__(allocation.hosts, allocation, environ)
        self._each, self._at_once, self._slots, self._used = each, at_once, allocation.slots, 0

    @property
    def _most(self) -> int:
        whole = len(self._hosts) or 1
        slots = self._slots * (len(self._left()) or not self._hosts) // whole
        return min(self._at_once or slots, max(slots // self._each, 1))

    def take(self) -> Place | None:
        if self._used >= self._most or self.exhausted:
            return None
        self._used += 1
        return Place()

    def give(self, place: Place) -> None:
        self._used -= 1

    @property
    def exhausted(self) -> bool:
        return bool(self._hosts) and super().exhausted


class Hosts(_Elastic):
    """Hosts by name, so many for each trial.

    Args:
        each: nodes of a trial.
        at_once: trials; None for one on each host, or on each group of hosts.
    """

    def __init__(
        self, hosts: Sequence[str], each: int, at_once: int | None,
        allocation: Allocation | None = None, environ: Mapping[str, str] = os.environ,
    ):  # fmt: skip
        super().__init__(hosts, allocation, environ)
        if each > len(hosts):
            raise fail("tune-hosts", wanted=each, count=len(hosts))
        groups = len(hosts) // each
        self._each, self._at_once = each, at_once or groups
        self._times = -(-self._at_once // groups)  # trials that share a host
        self._used: Counter[str] = Counter()
        self._running = 0

    def take(self) -> Place | None:
        free = [h for h in self._left() if self._used[h] < self._times]
        if len(free) < self._each or self._running >= self._at_once:
            return None
        chosen = sorted(free, key=lambda h: self._used[h])[: self._each]
        self._used.update(chosen)
        self._running += 1
        # In the given order, which some launchers rely on.
        return Place(hosts=tuple(h for h in self._hosts if h in chosen))

    def give(self, place: Place) -> None:
        self._used.subtract(place.hosts)
        self._running -= 1

    @property
    def exhausted(self) -> bool:
        return len(self._left()) < self._each


def of_machine(
    each: int, at_once: int | None, gpus: int = 0, there: Sequence[str] = ()
) -> list[Place]:
    """As many places as fit on this machine.

    Args:
        each: cores of a trial.
        at_once: how many the user wants; None for as many as fit.
        gpus: of a trial, out of those that are ``there``.
    Raises:
        FairleadError: exit code 2; a trial wants more GPUs than there are.
    """
    if gpus > len(there):
        raise fail("tune-gpus", wanted=gpus, count=len(there))
    mine = sorted(os.sched_getaffinity(0))
    fits = max(len(mine) // each, 1)
    count = min(at_once or fits, len(there) // gpus) if gpus else at_once or fits
    groups = [tuple(mine[i * each : (i + 1) * each]) if count <= fits else () for i in range(count)]
    return [
        Place(cores, _of_gpus(there[i * gpus : (i + 1) * gpus])) for i, cores in enumerate(groups)
    ]


def _of_gpus(names: Sequence[str]) -> dict[str, str]:
    return {"CUDA_VISIBLE_DEVICES": ",".join(names)} if names else {}


def visible_gpus(environ: Mapping[str, str] = os.environ) -> list[str]:
    """The GPUs of this machine that this process may use, as ``CUDA_VISIBLE_DEVICES`` names them."""
    if (named := environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        return [name for name in named.split(",") if name]
    return sorted(
        (p.name.removeprefix("nvidia") for p in Path("/dev").glob("nvidia[0-9]*")), key=int
    )
