"""Launches the commands of a training: shows their progress meanwhile, and explains why one failed.

The caller decides how a command is launched in an image: see :data:`Runner`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fairlead.base.errors import FairleadError, Finding, fail
from fairlead.ml.train.events import Tail

_LOOK_EVERY_S = 0.2


@dataclass(frozen=True)
class RunOutcome:
    """How a launch ended.

    Attributes:
        code: exit code, 0 when all ranks ended well.
        output: the end of the ranks' output.
        killed: the first rank that a signal ended, and its host; None if there was none.
    """

    code: int
    output: str
    killed: Finding | None = None


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
        FairleadError: it failed. A cause that a rank itself reported comes first.
    """
    try:
        with _watched(events, show) if events and show else nullcontext():
            outcome = runner(ranks, command, binds)
    except FairleadError as exc:
        raise _at_step(exc, events) from None
    if outcome.code:
        raise _at_step(_failure(outcome, command, events), events)


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


def _at_step(error: FairleadError, events: Path | None) -> FairleadError:
    """The same; of a rank that was killed in a training, also in which step."""
    killed = {"rank-died", "rank-failed"}
    if events is None or not any(f.check in killed for f in error.findings):
        return error
    done = max((e["step"] for e in Tail(events).read() if e["event"] == "step"), default=None)
    when = "before its first step was over" if done is None else f"in step {done + 1}"
    findings = [
        replace(f, where=f"{f.where}, {when}") if f.check in killed else f for f in error.findings
    ]
    return FairleadError(findings, error.code)


def _failure(outcome: RunOutcome, command: Sequence[str], events: Path | None) -> FairleadError:
    errors = [e for e in Tail(events).read() if e["event"] == "error"] if events else []
    # Errors of other ranks about a rank that is gone are not the cause.
    if outcome.killed and all(e.get("check") == "comm-peer-lost" for e in errors):
        return FairleadError(outcome.killed)
    if errors:
        first = errors[0]
        own = {key: first.get(key, "") for key in ("what", "where", "why", "remedy")}
        return fail("failure", check=first.get("check", "train-rank"), events=events, **own)
    last = "\n".join(outcome.output.strip().splitlines()[-12:])
    return fail(
        "train-launch",
        command=" ".join(command[:3]),
        status=outcome.code,
        command_list=" ".join(command),
        last=last,
    )
