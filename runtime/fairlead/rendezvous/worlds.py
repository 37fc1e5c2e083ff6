"""The worlds that frameworks have formed in a launch, as their processes report them.

:mod:`fairlead.rendezvous.hook.sitecustomize` writes the reports into the run's folder. Processes that each form a
world of one train to the end and exit with 0, so a wrong world ends the launch as soon as it is seen.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
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
    "jax": "jax.distributed",
    "tf": "TensorFlow",
    "lightning": "Lightning",
}
# Where a process of each is asked for more than itself.
_ASKED = {
    "lightning": "a Trainer is alone unless it is asked for more: Trainer(num_nodes=…, devices=…, strategy='ddp')",
    "tf": "TF_CONFIG was not set when the strategy was made, or the script has removed it",
}
_EVERY_S, _COST = 0.2, 50  # between looks, and the part of a core that they may take


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
    """What one process says of one world."""

    kind: str
    framework: str
    launched: str
    pid: int
    host: str
    round: str
    rank: int | None
    size: int | None
    address: str
    why: str
    by: str

    @property
    def process(self) -> str:
        return f"{self.launched}.{self.pid}"


class Worlds:
    """Watches the reports of one launch.

    Attributes:
        formed: the worlds that are whole.
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
        self._reports: dict[tuple[str, str, str], Report] = {}
        self._next = 0.0
        self._alone: set[str] = set()
        self._late: list[Report] = []
        self.formed: dict[str, World] = {}

    def look(self, *, last: bool = False) -> None:
        """Reads the reports that are new.

        Raises:
            FairleadError: exit code 122; the processes do not form one world.
        """
        now = time.monotonic()
        if now < self._next and not last:
            return
        # A port is taken as well where two processes have one number: that is what to name then.
        late, self._late = self._late, []
        new = self._new()
        self._next = time.monotonic() + max(_EVERY_S, _COST * (time.monotonic() - now))
        for report in new:
            if report.kind == "alone":
                self._warn(report)
                continue
            if found := self._wrong(report):
                raise FairleadError(found, ExitCode.PROOF_FAILED)
            self._reports[report.kind, report.framework, report.process] = report
            if report.why:
                (late if last else self._late).append(report)
        for report in late:
            raise FairleadError(_misplaced(report), ExitCode.PROOF_FAILED)
        for framework in sorted({report.framework for report in new}):
            self._whole(framework)

    def _new(self) -> list[Report]:
        found = []
        for kind in ("joining", "joined", "alone"):
            for path in self._folder.glob(f"{kind}.*"):
                with suppress(OSError, ValueError, TypeError, KeyError):
                    changed = path.stat().st_mtime_ns
                    if self._read.get(path.name) == changed:
                        continue
                    found.append(_report(kind, path))
                    self._read[path.name] = changed
        return sorted(found, key=lambda r: (len(r.launched), r.launched, r.pid))

    def _wrong(self, new: Report) -> Finding | None:
        """What is wrong with a report by itself, or next to the others of its round."""
        title, ranks = TITLES.get(new.framework, new.framework), self._ranks
        where = f"rank {new.launched} on {new.host}"
        if new.rank is None or new.size is None:
            return None  # the framework refuses it in its own words
        if ranks > 1 and new.size == 1:
            why = _ASKED.get(
                new.framework, "rank and size were given as 0 and 1, or their variables are set so"
            )
            return error("world-of-one", where=where, title=title, ranks=ranks, why=why)
        if new.size < ranks:
            return error("world-size", where=where, title=title, size=new.size, ranks=ranks)
        for other in self._reports.values():
            if (
                other.framework != new.framework
                or other.round != new.round
                or other.process == new.process
            ):
                continue
            beside = f"rank {other.launched} on {other.host}"
            if other.rank == new.rank:
                return error("world-double", where=where, other=beside, title=title, rank=new.rank)
            if other.size != new.size:
                return error(
                    "world-sizes",
                    where=where,
                    other=beside,
                    title=title,
                    size=new.size,
                    other_size=other.size,
                )
            if other.kind == new.kind == "joining" and other.address != new.address:
                return error(
                    "world-apart",
                    where=where,
                    other=beside,
                    title=title,
                    address=new.address,
                    other_address=other.address,
                )
        return None

    def _whole(self, framework: str) -> None:
        """Notes the world of a framework once every member has joined."""
        joined = [
            r
            for (kind, name, _), r in self._reports.items()
            if (kind, name) == ("joined", framework)
        ]
        last = max((r.round for r in joined), default="")
        members = {r.rank: r for r in joined if r.round == last}
        size = next((r.size for r in members.values()), 0)
        every = len({r.launched for r in members.values()}) == self._ranks
        if not size or len(members) != size or not every or framework in self.formed:
            return
        hosts = tuple(sorted({r.host for r in members.values()}))
        world = World(framework, size, hosts, next(iter(members.values())).by)
        self.formed[framework] = world
        self._on_world(world)

    def _warn(self, report: Report) -> None:
        if report.framework not in self._alone:
            self._alone.add(report.framework)
            title = {"torch": "PyTorch"}.get(report.framework, report.framework)
            where = f"rank {report.launched} on {report.host}"
            self._on_finding(warning("world-alone", where=where, title=title, ranks=self._ranks))


def _misplaced(report: Report) -> Finding:
    title = TITLES.get(report.framework, report.framework)
    where = f"rank {report.launched} on {report.host}"
    return error("world-address", where=where, title=title, address=report.address, why=report.why)


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
    said = bounded_json.loads(path.read_bytes())

    def number(name: str) -> int | None:
        value = said.get(name)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def word(name: str) -> str:
        return str(said.get(name) or "")[:300]

    return Report(
        kind, str(said["framework"]), str(said["launched"]), int(said["pid"]), word("host"), word("round"),
        number("rank"), number("size"), word("address"), word("why"), word("by"),
    )  # fmt: skip
