"""Ranks that have left: in MPI_Finalize, or ended without an error, while others are still in MPI.

Mostly nothing is wrong: the first rank computes and saves for minutes after the others are done. A launch is ended
only where every rank that remains is seen to wait: its main thread is in an MPI call that only other ranks can
complete, the call has not returned for ``_WATCH_S``, and no other thread of the process works. In Python alone, the
same MPI call made again and again looks exactly alike from outside, so the returns are counted.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from fairlead.base import proc_stat
from fairlead.base.errors import Finding, fail, warning
from fairlead.launch import processes, stacks
from fairlead.launch.nodes import Nodes

_FIRST_LOOK_S, _NEXT_LOOK_S, _WATCH_S = 10.0, 15.0, 10.0
_UNSEEN_S = 30.0
_WORK_S, _WORK_BYTES = 0.5, 1 << 20  # more within `_WATCH_S` is work
# With other nodes: a message that the network lost may be on its way for longer.
_WATCH_ALL_S = 15.0
_ANSWER_S, _FRESH_S = 5.0, 3.0  # of agents, who report every second


class Waiter(Protocol):
    """A rank that was in an MPI call when it was looked at.

    Attributes:
        function: the call, as ``MPI_Barrier``; empty until its node has answered.
        elsewhere: it is on another node.
    """

    function: str
    elsewhere: bool

    def moved(self) -> bool:
        """Whether the call has returned since, or the process has worked otherwise.

        Raises:
            Unseen: it cannot be looked at.
        """

    def close(self) -> None:
        """Stops watching it."""


class Unseen(Exception):
    """A rank's process cannot be looked at; the text says why."""


# Of a rank and the witness's note of its MPI_Init; None where it is at work.
Look = Callable[[str, str], Waiter | None]


def left(folder: Path, codes: Mapping[str, int]) -> dict[str, str]:
    """The ranks that have left, and how, in words.

    Args:
        codes: exit codes of the ranks that have ended.
    """
    left_behind = {}
    for path in folder.glob("left.*"):
        if path.suffix != ".partial":
            rank = path.name.partition(".")[2]
            where = (
                "is in MPI_Finalize" if rank not in codes else f"ended with exit code {codes[rank]}"
            )
            left_behind[rank] = where
    for rank, code in codes.items():
        if not code and rank not in left_behind and _note(folder, "started", rank):
            left_behind[rank] = "ended with exit code 0 and without MPI_Finalize"
    return left_behind


def host_of(folder: Path, rank: str) -> str:
    """The host that the witness has noted for a rank; "" where it has not."""
    notes = (_note(folder, kind, rank) for kind in ("aborted", "left", "started", "alive"))
    return next(filter(None, notes), "").split(" ")[0].strip()


@dataclass(frozen=True)
class Culprit:
    """The rank that others failed for.

    Attributes:
        place: the rank, and its host where it is known.
        how: what became of it, in words.
    """

    rank: str
    place: str
    how: str
    host: str = ""


def culprit(folder: Path, first: str, words: Mapping[str, str]) -> Culprit | None:
    """The rank at the end of the chain of those that ranks have noted as their failure's reason.

    Args:
        first: the rank that failed first; "" where none has an exit code, as after MPI_Abort.
        words: how ranks have ended.
    Returns:
        None where ``first`` has noted none, or the chain comes back to it.
    """
    notes = sorted(folder.glob("blames.*"), key=lambda path: (path.stat().st_mtime_ns, path.name))
    first = first or (notes[0].name.partition(".")[2] if notes else "")
    rank, passed = first, {first}
    while (next_one := _note(folder, "blames", rank).strip()) and next_one not in passed:
        rank = next_one
        passed.add(rank)
    if rank == first or next_one == first:
        return None
    if rank in words:
        how = words[rank]
    elif _note(folder, "left", rank):
        how = "is in MPI_Finalize"
    else:
        how = _abort(folder, rank) or "was ended with the others"
    return _culprit(folder, rank, how)


def aborter(folder: Path) -> Culprit | None:
    """The rank that called MPI_Abort first; None where none has."""
    notes = [p for p in folder.glob("aborted.*") if p.suffix != ".partial"]
    first = min(notes, key=lambda path: (path.stat().st_mtime_ns, path.name), default=None)
    if first is None:
        return None
    rank = first.name.partition(".")[2]
    return _culprit(folder, rank, _abort(folder, rank))


def _abort(folder: Path, rank: str) -> str:
    """That a rank has called MPI_Abort, in words; "" where it has not."""
    code = _note(folder, "aborted", rank).split()[-1:]
    return f"called MPI_Abort with code {code[0]}" if code else ""


def _culprit(folder: Path, rank: str, how: str) -> Culprit:
    host = host_of(folder, rank)
    return Culprit(rank, f"rank {rank} on {host}" if host else f"rank {rank}", how, host)


def _note(folder: Path, kind: str, rank: str) -> str:
    with suppress(OSError):
        return (folder / f"{kind}.{rank}").read_text("utf-8", "replace")
    return ""


class Leaving:
    """Watches for ranks that wait for one that has left."""

    def __init__(
        self,
        folder: Path,
        on_finding: Callable[[Finding], None] = lambda finding: None,
        clock: Callable[[], float] = time.monotonic,
        look: Look | None = None,
    ):
        """
        Args:
            folder: the run's; its name marks the run's processes.
            on_finding: called at most once, with the rank that left, where the launch goes on for long.
        """
        self._folder, self._on_finding, self._clock = folder, on_finding, clock
        self._look = look or Ranks(folder.name, None).waiter
        self._state: tuple[frozenset[str], frozenset[str]] = (frozenset(), frozenset())
        self._since = self._next = 0.0
        self._waiters: dict[str, Waiter] = {}
        self._watched_since = 0.0
        self._reported = False
        self._unseen = "", ""  # the last rank that could not be looked at, and why

    def look(self, codes: Mapping[str, int]) -> None:
        """One look at the run's records, and now and then at its processes.

        Args:
            codes: exit codes of the ranks that have ended.
        Raises:
            FairleadError: exit code 124; the others wait for a rank that has left.
        """
        gone = left(self._folder, codes)
        started = {path.name.partition(".")[2] for path in self._folder.glob("exit.*")}
        rest = started - gone.keys() - codes.keys()
        state, now = (frozenset(gone), frozenset(rest)), self._clock()
        if state != self._state:
            self.close()
            self._state, self._since, self._next = state, now, now + _FIRST_LOOK_S
            self._unseen = "", ""
        if not gone or not rest:
            return
        if self._waiters:
            self._judge(gone, now)
        elif now - self._since >= _UNSEEN_S and not self._reported:
            self._report(gone)
        elif now >= self._next:
            self._next = now + max(_NEXT_LOOK_S, (now - self._since) / 4)
            self._begin(rest, now)

    def close(self) -> None:
        """Stops watching processes."""
        for waiter in self._waiters.values():
            waiter.close()
        self._waiters = {}

    def _begin(self, rest: Collection[str], now: float) -> None:
        self._unseen = "", ""
        for rank in sorted(rest, key=_by_number):
            note = _note(self._folder, "started", rank)
            try:
                waiter = self._look(rank, note) if note else None
            except Unseen as unseen:
                self._unseen = rank, str(unseen)
                return self.close()
            if waiter is None:
                return self.close()
            self._waiters[rank] = waiter
        self._watched_since = now
        return None

    def _judge(self, gone: Mapping[str, str], now: float) -> None:
        moved = False
        for rank, waiter in self._waiters.items():
            try:
                moved = moved or waiter.moved()
            except Unseen as unseen:
                self._unseen = rank, str(unseen)
                return self.close()
            if not waiter.function:
                self._watched_since = now
        elsewhere = any(waiter.elsewhere for waiter in self._waiters.values())
        watch_s = _WATCH_ALL_S if elsewhere else _WATCH_S
        if moved:
            self.close()
        elif now - self._watched_since >= watch_s:
            waits = [f"rank {rank} in {waiter.function}" for rank, waiter in self._waiters.items()]
            rank, place, how = self._first(gone)
            self.close()
            raise fail(
                "rank-left", rank=rank, place=place, how=how, waits=_listed(waits), watch_s=watch_s,
                host=host_of(self._folder, rank),
            )  # fmt: skip
        return None

    def _report(self, gone: Mapping[str, str]) -> None:
        """Names the rank that has left where the launch goes on: what looks like work may be a loop that waits."""
        self._reported = True
        rank, place, how = self._first(gone)
        unseen, reason = self._unseen
        given = {"rank": rank, "place": place, "how": how}
        self._on_finding(
            warning("rank-left-unseen", unseen=unseen, reason=reason, **given)
            if unseen
            else warning("rank-left-others", seconds=_UNSEEN_S, **given)
        )

    def _first(self, gone: Mapping[str, str]) -> tuple[str, str, str]:
        """The rank to name, with its host, and how it has left."""
        rank = min(gone, key=_by_number)
        host = host_of(self._folder, rank)
        more = f"; {len(gone) - 1} more have left, too" if len(gone) > 1 else ""
        return rank, f"rank {rank} on {host}" if host else f"rank {rank}", gone[rank] + more


def _by_number(rank: str) -> tuple[int, str]:
    return (len(rank), rank)


def _listed(parts: list[str]) -> str:
    more = [f"{len(parts) - 6} more"] if len(parts) > 6 else []
    return ", ".join([*parts[:6], *more])


class Ranks:
    """The ranks of a run, here and on other nodes."""

    def __init__(self, run_id: str, nodes: Nodes | None):
        self._here, self._nodes = Processes(lambda: processes.of_run(run_id)), nodes

    def waiter(self, rank: str, note: str) -> Waiter | None:
        """As of :class:`Processes`; of another node's rank nothing is known until its agent answers.

        Raises:
            Unseen: there is no agent, or it may not be traced.
        """
        host = note.partition(" ")[0]
        number = self._nodes.ask(host, ask="watch", rank=rank, note=note) if self._nodes else None
        if self._nodes is None or number is None:
            return self._here.waiter(rank, note)
        return _Elsewhere(self._nodes, host, number)


class _Elsewhere:
    elsewhere = True

    def __init__(self, nodes: Nodes, host: str, number: int):
        self.function = ""
        self._nodes, self._host, self._number = nodes, host, number
        self._asked = time.monotonic()

    def moved(self) -> bool:
        at, answers = self._nodes.answers.get((self._host, self._number), (self._asked, {}))
        silent_s = time.monotonic() - at
        if why := answers.get("unseen"):
            raise Unseen(f"on {self._host}: {why}")
        if not answers and silent_s > _ANSWER_S:
            raise Unseen(f"the agent on {self._host} does not answer")
        self.function = str(answers.get("function", ""))
        return bool(answers) and (bool(answers.get("moved")) or silent_s > _FRESH_S)

    def close(self) -> None:
        self._nodes.answers.pop((self._host, self._number), None)
        self._nodes.ask(self._host, ask="stop", watch=self._number)


class Watches:
    """What a node's agent looks at for the launching host.

    Args:
        pids: the run's processes on this node.
    """

    def __init__(self, pids: Callable[[], list[int]]):
        self._here = Processes(pids)
        self._waiters: dict[int, Waiter] = {}

    def begin(self, question: Mapping[str, Any]) -> dict[str, object]:
        """The first answer about a rank."""
        number = int(question["number"])
        try:
            waiter = self._here.waiter(str(question["rank"]), str(question["note"]))
        except Unseen as unseen:
            return {"number": number, "unseen": str(unseen)}
        if waiter is None:
            return {"number": number, "moved": True}
        self._waiters[number] = waiter
        return {"number": number, "function": waiter.function, "moved": False}

    def stop(self, number: object) -> None:
        """Nobody asks for that answer any more."""
        if waiter := self._waiters.pop(number, None):  # type: ignore[call-overload]
            waiter.close()

    def now(self) -> Iterator[dict[str, object]]:
        """The present answers."""
        for number, waiter in self._waiters.items():
            yield {"number": number, "function": waiter.function, "moved": waiter.moved()}


class Processes:
    """The ranks of a run on this machine.

    Args:
        pids: the run's processes.
    """

    def __init__(self, pids: Callable[[], list[int]]):
        self._pids = pids

    def waiter(self, rank: str, note: str) -> Waiter | None:
        """The rank as it waits in MPI; None where it is at work.

        Raises:
            Unseen: it is on another machine, or may not be traced.
        """
        host, _, number = note.strip().partition(" ")
        pids = [pid for pid in self._pids() if _is(pid, number, rank)]
        if len(pids) != 1:
            raise Unseen(f"it runs on {host}, out of sight from here")
        try:
            call = stacks.waits_in(pids[0])
            return _Waiting(pids[0], call) if call else None
        except stacks.Unreadable as exc:
            raise Unseen(str(exc)) from exc
        except (FileNotFoundError, ProcessLookupError):
            return None  # it has ended
        except OSError as exc:
            raise Unseen(
                f"the kernel does not let process {pids[0]} be observed: {exc.strerror}"
            ) from exc


class _Waiting:
    elsewhere = False

    def __init__(self, pid: int, call: stacks.Call):
        self.function, self._pid = call.function, pid
        self._returns = stacks.Returns(pid, call.returns_to)
        self._before = _work(pid)

    def moved(self) -> bool:
        try:
            seconds, moved = _work(self._pid)
        except (OSError, ValueError):
            return True  # it has ended
        work = seconds - self._before[0] > _WORK_S or moved - self._before[1] > _WORK_BYTES
        return work or self._returns.came()

    def close(self) -> None:
        self._returns.close()


def _work(pid: int) -> tuple[float, int]:
    """Processor seconds of a process's threads other than the main one, and bytes it has read and written."""
    seconds = 0.0
    for task in Path(f"/proc/{pid}/task").iterdir():
        if task.name != str(pid):
            with suppress(FileNotFoundError, ProcessLookupError):  # it ends
                fields = proc_stat.fields(task)
                ticks = int(fields[proc_stat.USER_TICKS]) + int(fields[proc_stat.SYSTEM_TICKS])
                seconds += ticks / os.sysconf("SC_CLK_TCK")
    counts = Path(f"/proc/{pid}/io").read_text("utf-8")
    return seconds, sum(int(n) for n in re.findall(r"^[rw]char: (\d+)", counts, re.MULTILINE))


def _is(pid: int, number: str, rank: str) -> bool:
    """Whether a process of the run has that number in its own container, and is that rank."""
    try:
        status = Path(f"/proc/{pid}/status").read_text("utf-8", "replace")
        names = re.search(r"^NSpid:(.*)$", status, re.MULTILINE)
        if not names or names[1].split()[-1:] != [number]:
            return False
        environ = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False
    own = [v.partition(b"=")[2] for v in environ if v.partition(b"=")[0] in _RANK]
    return not own or rank.encode() in own


_RANK = frozenset(
    (
        b"PMI_RANK",
        b"PMIX_RANK",
        b"OMPI_COMM_WORLD_RANK",
        b"PALS_RANKID",
        b"FLUX_TASK_RANK",
        b"SLURM_PROCID",
    )
)
