"""Runs on disk: what was asked, by whom, and how far it is. They outlive the server.

A run is a folder: ``order.json`` is written once; ``lock`` is held while it runs; ``end.json`` says how it ended;
``cancel`` asks for its end; ``log`` has its output, ``work`` its files and ``record`` its run record.
"""

from __future__ import annotations

import enum
import fcntl
import json
import os
import re
import secrets
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fairlead.base import bounded_json
from fairlead.base.errors import fail
from fairlead.base.paths import atomic_folder, atomic_write
from fairlead.base.process import PYTHON
from fairlead.base.serde import from_json, to_json
from fairlead.serve.offers import RECORDED, Offer

ORDER, END, LOCK, CANCEL, LOG, WORK, RECORD = (
    "order.json", "end.json", "lock", "cancel", "log", "work", "record",
)  # fmt: skip
_ID = re.compile(r"\d{8}-\d{6}-\d{6}-[0-9a-f]{4}")


class State(enum.StrEnum):
    """How far a run is."""

    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"
    LOST = "lost"

    @property
    def over(self) -> bool:
        return self not in (State.QUEUED, State.RUNNING)


@dataclass(frozen=True)
class Order:
    """What was asked.

    Attributes:
        words: behind ``fairlead``.
        key: the client's own, which makes asking twice one run; empty for none.
        limit_s: time after which it is ended.
        results: patterns of the files that its client may fetch.
    """

    id: str
    run: str
    client: str
    parameters: dict[str, Any]
    words: tuple[str, ...]
    results: tuple[str, ...]
    created: float
    limit_s: float
    key: str = ""


@dataclass(frozen=True)
class End:
    """How a run ended.

    Attributes:
        code: exit code of the command; None if it was not started.
        why: empty, ``cancelled``, or the limit that ended it.
    """

    code: int | None
    started: float
    ended: float
    why: str = ""


@dataclass(frozen=True)
class Run:
    """A run and how far it is.

    Attributes:
        started: seconds since 1970; None while it waits.
    """

    order: Order
    state: State
    started: float | None = None
    end: End | None = None


@dataclass
class Runs:
    """The runs below a folder.

    Attributes:
        starting: runners of this server, with the time of their start.
        ended: runs that were read and are over: they do not change any more.
    """

    folder: Path
    starting: dict[str, tuple[subprocess.Popen[bytes], float]] = field(default_factory=dict)
    ended: dict[str, Run] = field(default_factory=dict)

    def submit(
        self, name: str, offer: Offer, client: str, given: Mapping[str, object], key: str = ""
    ) -> tuple[Run, bool]:
        """A new run, or the one that the same client has asked for under the same key; and whether it is new.

        Raises:
            FairleadError: exit code 2; a parameter is wrong, or the key belongs to another run.
        """
        values = offer.values(name, given)
        if key:
            for run in self.of(client):
                if run.order.key == key:
                    if (run.order.run, run.order.parameters) != (name, values):
                        raise fail("serve-key-used", key=key, id=run.order.id)
                    return run, False
        now = datetime.now(UTC)
        id = f"{now:%Y%m%d-%H%M%S-%f}-{secrets.token_hex(2)}"  # in the order of time
        words = offer.words(values)
        if words[0] in RECORDED:
            words[1:1] = ["--record", str(self.folder / id / RECORD)]
        order = Order(
            id, name, client, values, tuple(words), tuple(offer.results), now.timestamp(), offer.hours * 3600, key
        )  # fmt: skip
        with atomic_folder(self.folder / id) as new:
            (new / WORK).mkdir()
            (new / ORDER).write_text(json.dumps(to_json(order), indent=1), "utf-8")
        return Run(order, State.QUEUED), True

    def of(self, client: str) -> list[Run]:
        """A client's runs, the latest first."""
        return [run for run in self.all() if run.order.client == client]

    def all(self) -> list[Run]:
        """All runs, the latest first."""
        return list(self._read())

    def _read(self) -> Iterator[Run]:
        with suppress(FileNotFoundError):
            for name in sorted(os.listdir(self.folder), reverse=True):  # noqa: PTH208 (names are enough)
                if _ID.fullmatch(name) and (run := self.find(name)):
                    yield run

    def find(self, id: str) -> Run | None:
        """The run of that identifier; None if there is none."""
        if not _ID.fullmatch(id):
            return None
        folder = self.folder / id
        if id in self.ended and folder.is_dir():
            return self.ended[id]
        try:
            order = from_json(Order, bounded_json.loads((folder / ORDER).read_bytes()))
        except (OSError, ValueError):
            return None
        state, end = self._state(folder)
        started = end.started if end else None
        if started is None:
            with suppress(OSError):
                started = (folder / LOCK).stat().st_mtime
        run = Run(order, state, started, end)
        if end is not None:
            self.ended[id] = run
        return run

    def _state(self, folder: Path) -> tuple[State, End | None]:
        if (end := _end_of(folder)) is not None:
            return _state_of(end), end
        lock = folder / LOCK
        if lock.exists():
            if held(lock):
                return State.RUNNING, None
            if (end := _end_of(folder)) is not None:  # it has ended between the two looks
                return _state_of(end), end
            return State.LOST, None
        if folder.name in self.starting:
            return State.RUNNING, None
        return (State.CANCELLED if (folder / CANCEL).exists() else State.QUEUED), None

    def cancel(self, run: Run) -> None:
        """Asks a run to end; one that waits does not start."""
        (self.folder / run.order.id / CANCEL).touch()

    def advance(self, at_once: int) -> None:
        """Starts those that wait, as long as fewer than ``at_once`` run."""
        for id, (process, since) in list(self.starting.items()):
            folder = self.folder / id
            if process.poll() is not None and not (folder / LOCK).exists():
                why = f"it could not be started: exit code {process.returncode}"
                write_end(folder, End(None, since, time.time(), why))
            if process.poll() is not None:
                del self.starting[id]  # its files say the rest
        runs = self.all()
        running = sum(run.state is State.RUNNING for run in runs)
        for run in reversed(runs):
            if running >= at_once:
                break
            if run.state is State.QUEUED:
                self._start(self.folder / run.order.id)
                running += 1

    def _start(self, folder: Path) -> None:
        words = [*PYTHON, "-m", "fairlead.serve.runner", str(folder)]
        with (folder / LOG).open("ab") as log:
            process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        self.starting[folder.name] = process, time.time()


def held(lock: Path) -> bool:
    """Whether a process holds a lock."""
    with lock.open("rb") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def write_end(folder: Path, end: End) -> None:
    """Says how the run in a folder ended."""
    with atomic_write(folder / END, "w") as stream:
        json.dump(to_json(end), stream)


def order_in(folder: Path) -> Order:
    """The order of the run in a folder.

    Raises:
        OSError: it cannot be read.
        ValueError: it is damaged.
    """
    return from_json(Order, bounded_json.loads((folder / ORDER).read_bytes()))


def _end_of(folder: Path) -> End | None:
    with suppress(OSError, ValueError):
        return from_json(End, bounded_json.loads((folder / END).read_bytes()))
    return None


def _state_of(end: End) -> State:
    if end.why == "cancelled":
        return State.CANCELLED
    return State.DONE if end.code == 0 else State.FAILED
