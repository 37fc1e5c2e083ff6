"""The kernel's view of its ranks: who they are, what they are asked, how they are interrupted and replaced."""

from __future__ import annotations

import json
import os
import queue
import signal
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection, Listener, wait
from pathlib import Path
from typing import Any

from fairlead.base import bounded_json
from fairlead.notebook import variables
from fairlead.notebook.display import spans
from fairlead.notebook.rank import LISTENER
from fairlead.notebook.settings import (
    CLIENT,
    NAMES,
    OUTCOME,
    PROOF,
    START_S,
    VARIABLES,
    Settings,
    order,
    read_json,
    write_private,
)

_LOOK_S = 0.1
_SAVE_S = 60.0  # for ranks to write their variables


class RanksError(Exception):
    """A cell that failed on ranks. The ranks' own tracebacks have been shown."""

    def _render_traceback_(self) -> list[str]:
        return [f"\033[0;31m{type(self).__name__}\033[0m: {self}"]


@dataclass
class Rank:
    """One rank, as its keeper describes it.

    Attributes:
        died: how, in words; empty while it lives.
    """

    rank: int
    host: str = ""
    pid: int = 0
    died: str = ""
    busy: str = ""
    keeper: Connection | None = None


@dataclass
class Running:
    """One request to ranks.

    Attributes:
        left: ranks that have not answered.
        events: what comes back: (rank, kind of message, content), in order. ``over`` and ``died`` are the last of a rank.
    """

    left: set[int]
    events: queue.SimpleQueue[tuple[int, str, Any]] = field(default_factory=queue.SimpleQueue)


class Ranks:
    """All ranks of a session.

    Attributes:
        world: number of the present one; 0 before the first.
    """

    def __init__(self, settings: Settings):
        self.settings, self.folder = settings, Path(settings.folder)
        self.world = 0
        self._worlds: dict[int, dict[int, Rank]] = {}
        self._client: Any = None
        self._lock = threading.RLock()
        self._arrived = threading.Condition(self._lock)
        self._running: set[int] = set()
        self._deaths: list[Callable[[int, str], None]] = []
        self._listen()

    def __len__(self) -> int:
        return self.settings.ranks

    def __repr__(self) -> str:
        here = sum(not rank.died for rank in self._ranks.values())
        return f"<{here} of {len(self)} ranks, world {self.world}>"

    @property
    def _ranks(self) -> dict[int, Rank]:
        return self._worlds.setdefault(self.world, {})

    # Keepers.

    def _listen(self) -> None:
        if self.settings.address.startswith("127."):
            path = Path(self.settings.sockets, f"keepers-{os.getpid()}")
            address: Any = str(path)
        else:
            address = (self.settings.address, 0)
        listener = Listener(address, backlog=1024, authkey=bytes.fromhex(self.settings.key))
        write_private(self.folder / LISTENER, json.dumps({"address": listener.address}))
        threading.Thread(target=self._accept, args=(listener,), name="keepers", daemon=True).start()

    def _accept(self, listener: Listener) -> None:
        wakes, wake = os.pipe()
        fresh: queue.SimpleQueue[Connection] = queue.SimpleQueue()

        def follow() -> None:
            known: list[Connection] = []
            while True:
                for ready in wait([wakes, *known]):
                    if ready == wakes:
                        os.read(wakes, 4096)
                        while not fresh.empty():
                            known.append(fresh.get())
                    elif not self._heard(ready):  # type: ignore[arg-type]
                        known.remove(ready)  # type: ignore[arg-type]

        threading.Thread(target=follow, name="keepers-follow", daemon=True).start()
        while True:
            with suppress(Exception):  # somebody without the key
                fresh.put(listener.accept())
                os.write(wake, b"x")

    def _heard(self, keeper: Connection) -> bool:
        """Takes a keeper's message; False when it has gone."""
        with self._lock:
            try:
                message = bounded_json.loads(keeper.recv_bytes())
            except (OSError, EOFError, ValueError):
                return self._lost(keeper)
            if "rank" in message:
                world, number = int(message["world"].removeprefix("world-")), int(message["rank"])
                known = self._worlds.setdefault(world, {})
                known[number] = Rank(number, message["host"], message["pid"], keeper=keeper)
                self._arrived.notify_all()
            if message.get("died"):
                for rank in self._kept_by(keeper):
                    self._died(rank, message["died"])
        return True

    def _kept_by(self, keeper: Connection) -> list[Rank]:
        return [r for known in self._worlds.values() for r in known.values() if r.keeper is keeper]

    def _lost(self, keeper: Connection) -> bool:
        for rank in self._kept_by(keeper):
            rank.keeper = None
            self._died(rank, f"its node {rank.host} or its launch is gone")
        return False

    def _died(self, rank: Rank, how: str) -> None:
        if rank.died:
            return
        rank.died = how
        self._arrived.notify_all()
        if rank is self._ranks.get(rank.rank):
            for callback in list(self._deaths):
                callback(rank.rank, how)

    def signal(self, number: int, ranks: Iterable[int]) -> None:
        """Sends a signal to engines."""
        with self._lock:
            for rank in ranks:
                keeper = self._ranks[rank].keeper if rank in self._ranks else None
                if keeper:
                    with suppress(OSError):
                        keeper.send_bytes(json.dumps({"signal": int(number)}).encode())

    # Worlds.

    def table(self) -> list[Rank]:
        """The ranks that are known, in order."""
        with self._lock:
            known = [self._ranks.get(n) or Rank(n) for n in range(len(self))]
            for rank in known:
                rank.busy = "busy" if rank.rank in self._running else ""
            return known

    @property
    def dead(self) -> dict[int, str]:
        """How ranks have died, by rank."""
        with self._lock:
            return {n: rank.died for n, rank in self._ranks.items() if rank.died}

    @property
    def proof(self) -> str:
        """What was proved of the present world; empty before."""
        return str(read_json(self.settings.world(self.world) / PROOF).get("line", ""))

    @property
    def client(self) -> Any:
        """The client of ipyparallel, once all ranks are there."""
        return self.ready()

    def _newest(self) -> int:
        numbers = [p.name.removeprefix("world-") for p in self.folder.glob("world-*")]
        return max((int(n) for n in numbers if n.isdigit()), default=0)

    def ready(self, on_progress: Callable[[str], None] = lambda text: None) -> Any:
        """Waits until all ranks of the newest world are there; the client of ipyparallel.

        Args:
            on_progress: called with what is waited for.
        Raises:
            RanksError: the launch has ended, or takes too long.
        """
        newest = self._newest()
        if newest != self.world or self._client is None:
            self._enter(newest, on_progress)
        return self._client

    def _enter(self, world: int, on_progress: Callable[[str], None]) -> None:
        with self._lock:
            self._leave()
            self.world = world
            self._worlds = {n: ranks for n, ranks in self._worlds.items() if n >= world}
        path, until = self.settings.world(world), time.monotonic() + START_S
        try:
            while not self._there(path, on_progress):
                if time.monotonic() > until:
                    raise RanksError(
                        f"the ranks did not start within {START_S:.0f} s: %ranks restart"
                    )
                with self._arrived:
                    self._arrived.wait(_LOOK_S)
        except BaseException:
            self._leave()
            raise
        on_progress("")

    def _there(self, path: Path, on_progress: Callable[[str], None]) -> bool:
        """Whether all ranks of the world in ``path`` have come, and the kernel hears each of them."""
        if why := self._over(path):
            raise RanksError(why)
        if gone := self.dead:
            raise RanksError(f"{deaths(gone)}. Its output: {path / 'ranks.log'}")
        if self._client is None and (path / CLIENT).exists():
            self._client = _client(path / CLIENT)
        here = self._client.registered(len(self)) if self._client else []
        if len(here) < len(self) or len(self._ranks) < len(self):
            on_progress(f"{len(here)} of {len(self)} ranks are there")
            return False
        if unheard := self._client.unheard():
            on_progress(f"waiting for an answer of ranks {spans(unheard)}")
            return False
        return True

    def _over(self, path: Path) -> str:
        """Why a world's launch has ended; empty while it has not."""
        outcome = read_json(path / OUTCOME)
        return str(outcome.get("text") or "its launch has ended") if outcome else ""

    def _leave(self) -> None:
        if self._client is not None:
            with suppress(Exception):
                self._client.close(linger=0)
        self._client = None

    def restart(
        self, keep: bool, on_progress: Callable[[str], None] = lambda text: None
    ) -> dict[str, Any]:
        """Replaces all ranks by those of a new launch.

        A world of MPI takes no new member, so that one rank cannot be replaced alone.

        Args:
            keep: the ranks that live take their variables with them.
        Returns:
            ``kept`` and ``lost``: names of variables by rank.
        Raises:
            RanksError: the new launch has failed.
        """
        carried: dict[str, Any] = {"kept": {}, "lost": {}}
        wanted: dict[str, Any] = {"do": "restart", "from": self._newest()}
        if keep and self._ranks:
            living = [n for n, rank in self._ranks.items() if not rank.died]
            carried = self.write_variables(living)
            wanted["restore"] = str(self.settings.world(self.world) / VARIABLES)
        before = self._newest()
        order(self.folder, **wanted)
        until = time.monotonic() + START_S
        while self._newest() == before:
            if time.monotonic() > until:
                raise RanksError("the session does not answer: its `fairlead notebook` is gone")
            time.sleep(_LOOK_S / 2)
        self.ready(on_progress)
        return carried

    def write_variables(self, ranks: Sequence[int]) -> dict[str, Any]:
        """Has ranks write their variables, also those that are inside a call of MPI."""
        folder = self.settings.world(self.world) / VARIABLES
        for rank in ranks:
            (folder / f"rank-{rank}.json").unlink(missing_ok=True)
        self.signal(signal.SIGUSR2, ranks)
        until, kept, lost = time.monotonic() + _SAVE_S, {}, {}
        left = set(ranks)
        while left and time.monotonic() < until:
            for rank in list(left):
                if answer := read_json(folder / f"rank-{rank}.json"):
                    left.discard(rank)
                    kept[rank], lost[rank] = answer["kept"], answer["lost"]
                elif self._ranks[rank].died:
                    left.discard(rank)
            if left:
                time.sleep(0.02)
        for rank in left:
            lost[rank] = {"everything": f"it wrote nothing within {_SAVE_S:.0f} s"}
        return {"kept": kept, "lost": {n: names for n, names in lost.items() if names}}

    def save_named(self) -> list[int]:
        """Has ranks save the variables that the session is asked to save; those that live and have written nothing."""
        asked = read_json(self.folder / NAMES)
        if not asked.get("names"):
            return []
        living = [n for n, rank in self._ranks.items() if not rank.died]
        reports = {n: variables.report_of(self.folder, f"rank-{n}") for n in living}
        for report in reports.values():
            report.unlink(missing_ok=True)
        self.signal(signal.SIGUSR1, living)
        until = time.monotonic() + _SAVE_S
        left = living
        while left and time.monotonic() < until:
            time.sleep(0.02)
            left = [n for n in left if not reports[n].exists() and not self._ranks[n].died]
        return left

    # Requests.

    def start(self, code: str, ranks: Sequence[int]) -> Running:
        """Asks ranks to run code.

        Raises:
            RanksError: one of them is dead.
        """
        client = self.ready()
        if gone := {n: how for n, how in self.dead.items() if n in ranks}:
            raise RanksError(deaths(gone))
        running = Running(left=set(ranks))
        self._deaths = [lambda rank, how: running.events.put((rank, "died", how))]
        self._running = running.left
        idents, _ = client._build_targets(list(ranks))
        for rank, ident in zip(ranks, idents, strict=True):
            client.send_execute_request(
                client._mux_stream,
                code,
                silent=False,
                ident=ident,
                message_future_hook=partial(_follow, rank, running.events),
            )
        for rank, how in self.dead.items():
            running.events.put((rank, "died", how))
        return running


def _follow(rank: int, events: Any, future: Any) -> None:
    """Has what comes from a rank put among the events, in the order in which it comes."""

    def over(done: Any) -> None:
        # Output and reply come on two connections.
        if future.done() and future.output.done():
            failed = done.exception() if done is future else None
            events.put((rank, "over", str(failed or "")))

    future.iopub_callbacks.append(
        lambda msg: events.put((rank, msg["header"]["msg_type"], msg["content"]))
    )
    future.add_done_callback(over)
    future.output.add_done_callback(over)


def _client(path: Path) -> Any:
    # Only here: ipyparallel takes a second to import, and the kernel is up before.
    from fairlead.notebook.client import Client

    return Client(path)


def deaths(gone: dict[int, str]) -> str:
    """Which ranks died, how, and what to do."""
    named = "; ".join(f"rank {n} {how}" for n, how in sorted(gone.items()))
    numbers = ",".join(map(str, sorted(gone)))
    return f"{named}. `%ranks restart {numbers}` replaces it; the other ranks keep their variables"
