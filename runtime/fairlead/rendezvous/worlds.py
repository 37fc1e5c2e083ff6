"""The worlds that frameworks have formed in a launch, as their processes report them.

:mod:`fairlead.rendezvous.hook.sitecustomize` writes the reports into the run's folder. Processes that each form a
world of one train to the end and exit with 0, so a wrong world ends the launch as soon as it is seen.
"""

from __future__ import annotations

import shutil
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from fairlead.base import bounded_json
from fairlead.base.errors import ExitCode, FairleadError, Finding, error, os_error_as, warning
from fairlead.rendezvous.script import SCRIPT

HOOK = "hook"  # the folder in the run's folder that PYTHONPATH leads to
EXPECTED = "FAIRLEAD_WORLD"  # how many ranks were launched, for the hook
TITLES = {
    "torch": "torch.distributed",
    "torchrun": "torchrun",
    "jax": "jax.distributed",
    "tf": "TensorFlow",
    "lightning": "Lightning",
    "ray": "Ray",
}
# Why a process of each is a world of its own.
_WHY_ONE = {
    "lightning": "a Trainer or Fabric is alone unless it is asked for more: num_nodes=…, devices=…, strategy='ddp'",
    "tf": "TF_CONFIG was not set when the strategy was made, or the script has removed it",
}
# A framework, what a process that works by itself does with it, and what it has not called.
_ALONE = {
    "torch": ("PyTorch", "takes steps", "torch.distributed.init_process_group()"),
    "jax": ("JAX", "has devices", "jax.distributed.initialize()"),
    "tf": ("TensorFlow", "fits a model", "tf.distribute.MultiWorkerMirroredStrategy()"),
}
_KINDS = ("joining", "joined", "alone", "parted")  # a process that has parted had joined before
# Between looks, the part of a core that they may take, and the longest time that this may put off the next one.
_EVERY_S, _COST, _LATEST_S = 0.2, 50, 5.0
_MEET_S = (
    3.0  # what looks wrong and works is right: a second store on one port, two names of one host
)
_LONG_S = (
    60.0  # until a world that some processes wait for is reported; its frameworks wait for minutes
)


@dataclass(frozen=True)
class World:
    """The processes of one framework that have found each other.

    Attributes:
        by: what carries their messages, in the framework's words.
    """

    framework: str
    size: int
    hosts: tuple[str, ...]
    by: str

    @property
    def title(self) -> str:
        return TITLES.get(self.framework, self.framework)


@dataclass(frozen=True)
class Report:
    """What one process says of one world.

    Attributes:
        launched: the launcher's number of the rank that the process belongs to.
        round: how often the process had begun to join a world.
        restart: how often torchrun had started it before.
        agent: torchrun has started it.
        rank, size: None where the framework has still to find out.
    """

    kind: str
    framework: str
    launched: str
    pid: int
    host: str
    round: int
    restart: int
    agent: bool
    rank: int | None
    size: int | None
    address: str
    why: str
    by: str

    @property
    def key(self) -> tuple[str, str, int]:
        return self.framework, self.launched, self.pid

    @property
    def order(self) -> tuple[int, int]:
        return self.round, _KINDS.index(self.kind)

    @property
    def title(self) -> str:
        return TITLES.get(self.framework, self.framework)

    @property
    def where(self) -> str:
        return f"rank {self.launched} on {self.host}"

    @property
    def ended(self) -> bool:
        """Whether its process is known to have ended; of another host, nothing is known."""
        return self.host == socket.gethostname() and not Path(f"/proc/{self.pid}").exists()


class Worlds:
    """Watches the reports of one launch.

    Attributes:
        formed: the worlds that are whole, the first of each framework.
    """

    def __init__(
        self,
        folder: Path,
        ranks: int,
        on_world: Callable[[World], None] = lambda world: None,
        on_finding: Callable[[Finding], None] = lambda finding: None,
    ):
        self._folder, self._ranks = folder, ranks
        self._on_world, self._on_finding = on_world, on_finding
        self._read: dict[str, int] = {}
        # The latest report of each process, and the last round that it has left.
        self._now: dict[tuple[str, str, int], Report] = {}
        self._over: dict[tuple[str, str, int], int] = {}
        # Who has joined, by framework, size, round and restart; then by address, since worlds can be next to each other.
        self._members: dict[tuple[str, int, int, int], dict[str, dict[int, Report]]] = {}
        self._small: dict[str, dict[str, Report]] = {}
        self._alone: dict[str, dict[str, Report]] = {}
        self._since: dict[tuple[str, str, int, int], float] = {}
        self._waiting: dict[tuple[object, ...], float] = {}
        self._warned: set[str] = set()
        self._next = 0.0
        self.formed: dict[str, World] = {}

    def look(self, *, last: bool = False) -> None:
        """Reads the reports that are new.

        Raises:
            FairleadError: exit code 122; the processes do not form one world.
        """
        if time.monotonic() < self._next and not last:
            return
        spent = (
            time.thread_time()
        )  # not by the clock: on a busy machine a look of milliseconds lasts a second
        for report in self._new():
            self._take(report)
        self._now = {
            k: r
            for k, r in self._now.items()
            if r.round > self._over.get(k, -1) and not (r.kind == "joined" and r.ended)
        }
        cost = min(_LATEST_S, _COST * (time.thread_time() - spent))
        self._next = time.monotonic() + max(_EVERY_S, cost)
        if finding := self._wrong(last):
            raise FairleadError(finding, ExitCode.PROOF_FAILED)
        for reports in self._alone.values():
            if len(reports) == self._ranks:
                self._warn(next(iter(reports.values())), last)
        self._report_waiting()

    def _report_waiting(self) -> None:
        """Reports once whom processes wait for that have tried to join a world for a minute."""
        waiting = [report for report in self._now.values() if report.kind == "joining"]
        for report in waiting:
            key = (*report.key, report.round, "waits")
            since = self._waiting.setdefault(key, time.monotonic())
            name = f"{report.framework} waits"
            if name in self._warned or time.monotonic() - since < _LONG_S:
                continue
            self._warned.add(name)
            here = {r.launched for r in self._now.values() if r.framework == report.framework}
            missing = sorted({str(rank) for rank in range(self._ranks)} - here, key=int)
            self._on_finding(
                warning(
                    "world-waits", title=report.title, where=report.where, waiting=len(here), ranks=self._ranks,
                    address=report.address, seconds=_LONG_S, missing=", ".join(missing[:8]) or "none",
                )
            )  # fmt: skip

    def _warn(self, first: Report, last: bool) -> None:
        """Warns once of ranks that train apart, unless they soon form a world."""
        since = self._since.setdefault(("alone", "", 0, 0), time.monotonic())
        late = last or time.monotonic() - since > _MEET_S
        if late and not self.formed and first.framework not in self._warned:
            self._warned.add(first.framework)
            title, does, missing = _ALONE[first.framework]
            self._on_finding(
                warning(
                    "world-alone",
                    where=first.where,
                    ranks=self._ranks,
                    title=title,
                    does=does,
                    missing=missing,
                )
            )

    def _new(self) -> list[Report]:
        reports = []
        for kind in _KINDS:
            for path in self._folder.glob(f"{kind}.*"):
                with suppress(OSError, ValueError, TypeError, KeyError):
                    changed = path.stat().st_mtime_ns
                    if self._read.get(path.name) != changed:
                        reports.append(_report(kind, path))
                        self._read[path.name] = changed
        return sorted(reports, key=lambda r: (_KINDS.index(r.kind), len(r.launched), r.launched))

    def _take(self, report: Report) -> None:
        if report.kind == "parted":
            self._over[report.key] = max(report.round, self._over.get(report.key, -1))
            return
        if report.kind == "alone" and report.framework in _ALONE:
            self._alone.setdefault(report.framework, {})[report.launched] = report
            return
        known = self._now.get(report.key)
        if known is None or known.order <= report.order:
            self._now[report.key] = report
        if report.rank is None or report.size is None:
            return
        if report.size < self._ranks:
            self._small.setdefault(report.framework, {})[report.launched] = report
        if report.kind == "joined":
            world = (report.framework, report.size, report.round, report.restart)
            places = self._members.setdefault(world, {})
            places.setdefault(report.address, {})[report.rank] = report
            self._whole(report.framework, report.size, places)

    def _whole(self, framework: str, size: int, places: Mapping[str, Mapping[int, Report]]) -> None:
        """Notes the first world of a framework that every rank is in.

        A process has joined once all have. So if each number is there once, they are one world, whatever they call the
        place where they met.
        """
        members = [report for at in places.values() for report in at.values()]
        numbers, every = {r.rank for r in members}, {r.launched for r in members}
        if framework in self.formed or not len(numbers) == len(members) == size:
            return
        if len(every) == self._ranks:
            hosts = tuple(sorted({r.host for r in members}))
            self.formed[framework] = World(framework, size, hosts, members[0].by)
            self._on_world(self.formed[framework])

    def _wrong(self, last: bool) -> Finding | None:
        """What is wrong with what the processes report now."""
        by_place: dict[tuple[str, int, int, int | None], Report] = {}
        for report in self._now.values():
            number = (report.framework, report.round, report.restart, report.rank)
            if report.rank is None or report.size == 1:
                continue  # a world of its own
            # In one rank, the next program takes the number of the one before.
            other = by_place.setdefault(number, report)
            if other.launched != report.launched:
                return _double(report, other, self._ranks)
        firsts: dict[tuple[str, int, int], Report] = {}
        # Those that have met are right.
        for report in sorted(self._now.values(), key=lambda r: r.kind != "joined"):
            first = firsts.setdefault((report.framework, report.round, report.restart), report)
            if report.kind == "joining" and (finding := _doubtful(report, first)):
                since = self._since.setdefault((*report.key, report.round), time.monotonic())
                if last or time.monotonic() - since > _MEET_S:
                    return finding
        if self.formed:
            return None
        for reports in self._small.values():
            if len(reports) == self._ranks > 1:
                return _small(tuple(reports.values()), self._ranks)
        return self._apart()

    def _apart(self) -> Finding | None:
        """Whole worlds without a rank in common, which together are all ranks; also of processes that have ended."""
        for (_, size, _, _), places in self._members.items():
            whole = [at for at in places.values() if len(at) == size]
            sets = [{report.launched for report in at.values()} for at in whole]
            if len(whole) > 1 and sum(map(len, sets)) == len(set().union(*sets)) == self._ranks:
                return _double(whole[1][0], whole[0][0], self._ranks)
        return None


def _double(report: Report, other: Report, ranks: int) -> Finding:
    where, other_where = report.where, other.where
    if report.agent and other.agent and report.launched != other.launched:
        return error("world-of-each-torchrun", where=where, other=other_where, ranks=ranks)
    return error(
        "world-double", where=where, other=other_where, title=report.title, rank=report.rank
    )


def _doubtful(report: Report, first: Report) -> Finding | None:
    """Why a process may wait for others that never come."""
    if report.why:
        return error(
            "world-address",
            where=report.where,
            title=report.title,
            address=report.address,
            why=report.why,
        )
    if first.address and report.address and report.address != first.address:
        if report.agent and first.agent and report.launched != first.launched:
            return _double(report, first, 2)
        return error(
            "world-apart", where=report.where, other=first.where, title=report.title, address=report.address,
            other_address=first.address,
        )  # fmt: skip
    if None not in (report.size, first.size) and report.size != first.size:
        return error(
            "world-sizes", where=report.where, other=first.where, title=report.title, size=report.size,
            other_size=first.size,
        )  # fmt: skip
    return None


def _small(reports: Sequence[Report], ranks: int) -> Finding:
    first = min(reports, key=lambda r: (len(r.launched), r.launched))
    if first.framework == "ray":
        return error("world-of-each-ray", where=first.where, ranks=ranks)
    if all(report.size == 1 for report in reports):
        why = "rank and size were given as 0 and 1, or their variables are set so"
        why = (
            "torchrun was started on each rank"
            if first.agent
            else _WHY_ONE.get(first.framework, why)
        )
        return error("world-of-one", where=first.where, title=first.title, ranks=ranks, why=why)
    return error("world-size", where=first.where, title=first.title, size=first.size, ranks=ranks)


def lay(folder: Path, text: str) -> None:
    """Lays the hook, and the text of :mod:`~fairlead.rendezvous.script`, into a run's folder.

    Raises:
        FairleadError: exit code 123; they cannot be written.
    """
    source = Path(__file__).parent / HOOK / "sitecustomize.py"
    with os_error_as("rendezvous-records", folder=folder):
        (folder / HOOK).mkdir()
        shutil.copyfile(source, folder / HOOK / source.name)
        (folder / SCRIPT).write_text(text, "utf-8")


def _report(kind: str, path: Path) -> Report:
    """Raises ValueError, KeyError or TypeError for what no hook has written."""
    document = bounded_json.loads(path.read_bytes())

    def number(name: str) -> int | None:
        value = document.get(name)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def count(name: str) -> int:
        return number(name) or 0

    def word(name: str) -> str:
        return str(document.get(name) or "")[:300]

    return Report(
        kind, str(document["framework"]), str(document["launched"]), int(document["pid"]), word("host"), count("round"),
        count("restart"), document.get("agent") is True, number("rank"), number("size"), word("address"), word("why"), word("by"),
    )  # fmt: skip
