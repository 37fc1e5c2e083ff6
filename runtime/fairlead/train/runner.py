"""Launches of what training asks for: what a launch is here, what it tells meanwhile, and why it failed.

How a command is launched in an image is the caller's: see :data:`Runner`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairlead.findings import FairleadError, fail
from fairlead.train.events import Tail

_LOOK_EVERY_S = 0.2


@dataclass(frozen=True)
class RunOutcome:
    """How a launch ended.

    Attributes:
        code: exit code, 0 when all ranks ended well.
        output: the last of what the ranks printed.
    """

    code: int
    output: str


# Launches (ranks, command, folders to bind at their own paths, writable) and waits for its end.
Runner = Callable[[int, Sequence[str], Sequence[Path]], RunOutcome]


def launch(
    runner: Runner,
    ranks: int,
    command: Sequence[str],
    binds: Sequence[Path],
    events: Path | None = None,
    show: Callable[[dict[str, Any]], None] | None = None,
) -> None:
    """Runs ``command``, showing its events meanwhile.

    Raises:
        FairleadError: it failed. What a rank itself wrote of the cause comes first.
    """
    if events is not None and show is not None:
        with _watched(events, show):
            outcome = runner(ranks, command, binds)
    else:
        outcome = runner(ranks, command, binds)
    if outcome.code:
        raise _failure(outcome, command, events)


@contextmanager
def _watched(events: Path, show: Callable[[dict[str, Any]], None]) -> Iterator[None]:
    """Shows events as they come, from a thread, so that the launch keeps the main one: signals
    arrive there."""
    over = threading.Event()
    tail = Tail(events)

    def watch() -> None:
        last = False
        while not last:
            last = over.wait(_LOOK_EVERY_S)  # one more look after the end
            for event in tail.read():
                show(event)

    thread = threading.Thread(target=watch, name="events", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _failure(outcome: RunOutcome, command: Sequence[str], events: Path | None) -> FairleadError:
    told = [e for e in Tail(events).read() if e["event"] == "error"] if events else []
    if told:
        first = told[0]
        return fail(
            first["what"],
            where=first.get("where", ""),
            why=first.get("why", ""),
            remedy=first.get("remedy") or f"see {events}",
            check=first.get("check", "train-rank"),
        )
    last = "\n".join(outcome.output.strip().splitlines()[-12:])
    return fail(
        f"`{' '.join(command[:3])}` ended with exit code {outcome.code}",
        where=" ".join(command),
        why=last or "it printed nothing",
        remedy="mend what it says, then run the same command again",
        check="train-launch",
    )
