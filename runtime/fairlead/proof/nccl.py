"""The proof of NCCL's network inside a launch: from the log of each process, and from what it has mapped.

NCCL goes on over TCP when its plugin is missing, and ends with exit code 0. Its own log names the network, and mostly
the reason. Each process writes one into the run's folder, where it is read while the launch runs: from the moment at
which NCCL has chosen a network, a launch on another one than planned lives for a second.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from fairlead.base.errors import ExitCode, FairleadError, Finding, error, info, warning
from fairlead.base.nccl_log import SETTINGS, Record, parse
from fairlead.base.nccl_verdict import (
    Difference,
    Expected,
    differences,
    ended,
    file_differences,
    mapped,
    summary,
)
from fairlead.launch import processes
from fairlead.swap.model import RUN_MOUNT, Plan

_FILE = "nccl.%h.%p"
_NET, _OWN = "NCCL_NET", "NCCL_DEBUG_FILE"
VARIABLES = (*SETTINGS, _OWN)
_MOST = 1 << 24  # bytes of a log; what matters comes first
_OFTEN_S, _LATER_S = 0.25, 2.0  # between two looks, until every rank is proved and after
_COST = 20  # a look may take one part of so many of a core's time, unless that would take longer than this
_LATEST_S = 2.0
_STRAGGLERS_S = 3.0  # between the first proved process and the line that says so

# By the kind of a difference that explains itself.
_DIFFERENCES = {
    "plugin": "nccl-proof-plugin",
    "interface": "nccl-proof-interface",
    "provider": "nccl-proof-provider",
    "nics": "nccl-proof-nics",
    "edge": "nccl-proof-edge",
    "gdr": "nccl-proof-gdr",
    "library": "nccl-proof-library",
    "libraries": "nccl-proof-libraries",
}
# By the kind of the cause.
_REASONS = {
    "missing-library": "nccl-proof-missing-library",
    "not-loadable": "nccl-proof-not-loadable",
    "cuda": "nccl-proof-cuda",
    "vni": "nccl-proof-vni",
    "open-failed": "nccl-proof-open-failed",
    "no-nic": "nccl-proof-no-nic",
    "no-interface": "nccl-proof-no-interface",
    "not-found": "nccl-proof-not-found",
    "no-socket": "nccl-proof-no-socket",
    "wrong-name": "nccl-proof-wrong-name",
    "init-failed": "nccl-proof-init-failed",
    "no-ib": "nccl-proof-no-ib",
    "unsaid": "nccl-proof-unsaid",
}


def expected_of(plan: Plan) -> Expected | None:
    """What NCCL must come to in a launch of that plan; None where nothing is planned of it."""
    network = plan.nccl
    if network is None:
        return None
    inode = 0
    with suppress(OSError):
        staged = network.folder + network.file.removeprefix(network.mount)
        inode = Path(staged).stat().st_ino
    expected = Expected(
        network.networks,
        network.providers,
        network.file,
        inode,
        network.interface,
        library=network.library.path,
        nics_gdr=network.gdr and plan.nccl_ask.nodes != 1,
    )
    if plan.nccl_ask.nodes == 1 and not {_NET} & {*network.env, *plan.nccl_ask.user}:
        # There the plugin need not find a network, and the plan lets NCCL do without.
        networks = (*expected.networks, "IB", "Socket") if expected.networks else ("IB", "Socket")
        return replace(expected, networks=networks, providers=(), interface=0)
    return expected


def settings(given: Mapping[str, str]) -> dict[str, str]:
    """The variables by which ranks write what is to be read.

    Args:
        given: NCCL_DEBUG, NCCL_DEBUG_SUBSYS and NCCL_DEBUG_FILE as ranks would have them otherwise. A file of the
            user's keeps its name, and gets at least the lines that are needed.
    """
    values = dict(SETTINGS)
    if given.get("NCCL_DEBUG", "").upper() == "TRACE":
        values["NCCL_DEBUG"] = "TRACE"
    values["NCCL_DEBUG_SUBSYS"] = _subsystems(given.get("NCCL_DEBUG_SUBSYS", ""))
    values[_OWN] = given.get(_OWN) or f"{RUN_MOUNT}/{_FILE}"
    return values


def _subsystems(given: str) -> str:
    needed = SETTINGS["NCCL_DEBUG_SUBSYS"].split(",")
    if given.startswith("^"):  # all but these
        left = [name for name in given[1:].split(",") if name.upper() not in needed]
        return f"^{','.join(left)}" if left else "ALL"
    return ",".join(dict.fromkeys([*needed, *filter(None, given.upper().split(","))]))


@dataclass(frozen=True)
class NcclProof:
    """What the processes of a launch use.

    Attributes:
        records: those that have chosen a network.
        asked: how many there should be.
    """

    records: tuple[Record, ...]
    asked: int

    @property
    def line(self) -> str:
        """The proof in one line."""
        hosts = len({record.host for record in self.records})
        count = len(self.records)
        return (
            f"NCCL proved on {count} process{'es' * (count != 1)}, {hosts} node{'s' * (hosts != 1)}: "
            f"{summary(self.records)}"
        )


class NcclWatch:
    """Follows NCCL in one launch.

    Attributes:
        proof: None until it is known of every rank that has come so far.
    """

    def __init__(
        self,
        expected: Expected,
        ranks: int,
        folder: Path,
        own_file: str = "",
        on_proof: Callable[[NcclProof], None] = lambda proof: None,
        clock: Callable[[], float] = time.monotonic,
    ):
        """
        Args:
            folder: of the run.
            own_file: the user's NCCL_DEBUG_FILE, as the ranks see it.
        """
        self.proof: NcclProof | None = None
        self._expected, self._ranks, self._folder = expected, ranks, folder
        self._own, self._on_proof, self._clock = own_file, on_proof, clock
        self._next = 0.0
        self._first: float | None = None
        self._sizes: dict[Path, int] = {}
        self._records: dict[tuple[str, int], Record] = {}
        self._mapped: set[int] = set()

    @property
    def records(self) -> tuple[Record, ...]:
        """Of every process that has written."""
        return tuple(self._records.values())

    def look(self) -> None:
        """One look, unless the last was a moment ago.

        Raises:
            FairleadError: exit code 122; the network of a process is not as planned.
        """
        now = self._clock()
        if now < self._next:
            return
        spent = time.thread_time()
        self._look()
        pause = _OFTEN_S if self.proof is None else _LATER_S
        cost = min(_LATEST_S, _COST * (time.thread_time() - spent))
        self._next = now + max(pause, cost)

    def last_look(self, on_finding: Callable[[Finding], None]) -> None:
        """What was written since, when the launch is over.

        Raises:
            FairleadError: as :meth:`look`.
        """
        self._first = float("-inf")
        self._look()
        silent = [record for record in self.records if not record.network]
        problems = [(r.host, difference) for r in silent for difference in ended(r, self._expected)]
        if problems:
            raise FairleadError(
                [finding(difference, host) for host, difference in _distinct(problems)],
                ExitCode.PROOF_FAILED,
            )
        if silent:
            on_finding(_undecided(silent))
        elif self.proof is None and self.records:
            on_finding(_undecided(list(self.records)))
        elif self.proof is None:
            on_finding(self._unknown())
        elif len(self.records) < self._ranks:
            known = len(self.records)
            on_finding(warning("nccl-proof-partial", known=known, ranks=self._ranks))

    def _look(self) -> None:
        pids = processes.of_run(self._folder.name)
        problems = list(self._differing(pids))
        decided = [record for record in self._records.values() if record.network]
        if decided and not problems:
            problems += [("", difference) for difference in self._files(pids)]
        if problems:
            raise FairleadError(
                [finding(difference, host) for host, difference in _distinct(problems)],
                ExitCode.PROOF_FAILED,
            )
        self._tell([record for record in decided if record.complete])

    def _differing(self, pids: list[int]) -> Iterator[tuple[str, Difference]]:
        """What is not as planned in the first log of which that is true: the others need not be read."""
        for record in self._read(self._paths(pids)):
            problems = differences(record, self._expected)
            yield from ((record.host, difference) for difference in problems)
            if problems:
                return

    def _tell(self, stand: list[Record]) -> None:
        if self.proof or not stand:
            return
        now = self._clock()
        self._first = now if self._first is None else self._first
        if len(stand) >= self._ranks or now - self._first > _STRAGGLERS_S:
            self.proof = NcclProof(tuple(stand), self._ranks)
            self._on_proof(self.proof)

    def _paths(self, pids: Iterable[int]) -> Iterator[Path]:
        """The logs; the user's are where a process of this node sees them."""
        if not self._own:
            yield from self._folder.glob(_FILE.replace("%h", "*").replace("%p", "*"))
            return
        pattern = re.sub(r"%(.)", lambda match: "%" if match[1] == "%" else "*", self._own)
        visited = set()
        for pid in pids:
            with suppress(OSError, ValueError):
                root = Path("/proc", str(pid), "root" if self._own.startswith("/") else "cwd")
                for path in root.glob(pattern.lstrip("/")):
                    status = path.stat()
                    if (key := (status.st_dev, status.st_ino)) not in visited:
                        visited.add(key)
                        yield path

    def _read(self, paths: Iterable[Path]) -> Iterator[Record]:
        """The records of logs that have grown."""
        for path in paths:
            with suppress(OSError):
                status = path.stat()
                key = Path(f"{status.st_dev}:{status.st_ino}") if self._own else path
                if status.st_size == self._sizes.get(key):
                    continue
                with path.open("rb") as stream:
                    text = stream.read(_MOST).decode("utf-8", "replace")
                self._sizes[key] = status.st_size
                for record in parse(text):
                    self._records[record.host, record.pid] = record
                    yield record

    def _files(self, pids: Iterable[int]) -> Iterator[Difference]:
        """What processes of this node have mapped: of each once, when it has NCCL and its plugin."""
        for pid in pids:
            if pid in self._mapped:
                continue
            with suppress(OSError):
                files = mapped(Path("/proc", str(pid), "maps").read_text("utf-8", "replace"))
                if files.libraries and (files.plugins or not self._expected.file):
                    self._mapped.add(pid)
                yield from file_differences(files, self._expected)

    def _unknown(self) -> Finding:
        if self._own:
            return warning("nccl-proof-log-elsewhere", file=self._own)
        return warning("nccl-proof-no-log", folder=self._folder)


def _undecided(ended: list[Record]) -> Finding:
    """Of processes that ended without a network, or before a communicator stood."""
    causes = [cause.text for record in ended if not record.network for cause in record.causes[:1]]
    warnings = [text for record in ended for text in record.warnings[-1:]]
    opening = [record.asked for record in ended if record.asked and not record.name]
    loading = [
        f"the last that they wrote is that NCCL opens the plugin {plugin}" for plugin in opening
    ]
    why = next(iter((*causes, *warnings, *loading)), "they ended before they had a communicator")
    return warning("nccl-proof-undecided", count=len(ended), why=why)


def _distinct(problems: list[tuple[str, Difference]]) -> Iterator[tuple[str, Difference]]:
    """One of each kind: ranks mostly differ from the plan alike."""
    kinds = set()
    for host, difference in problems:
        if difference.kind not in kinds:
            kinds.add(difference.kind)
            yield host, difference


def finding(difference: Difference, host: str = "") -> Finding:
    """The finding of a difference, with the reason that NCCL's log gives and what to do about it."""
    message = _DIFFERENCES.get(difference.kind, "nccl-proof-unsaid")
    if difference.cause:
        message = _REASONS[difference.cause.kind]
    return error(
        message,
        text=difference.text,
        why=difference.cause.text if difference.cause else "",
        host=host,
    )


def notice(folder: Path, given: Mapping[str, str]) -> Finding | None:
    """Where NCCL's log is, for users who asked for one and would look for it on the screen."""
    if given.get("NCCL_DEBUG") and not given.get(_OWN):
        return info("nccl-proof-log-in-folder", folder=folder)
    return None
