"""A validation: its steps in order, each of which launches the same program natively and in the container.

What a step could not do is a finding, and the next step goes on: a site wants to know the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from fairlead.base.errors import ExitCode, FairleadError
from fairlead.base.progress import Progress
from fairlead.ml.train.runner import Runner
from fairlead.perf.measure import machine, trainings
from fairlead.perf.measure.steps import Seen, Step, Wish, tried
from fairlead.perf.records.validation import Way


def measure(
    wish: Wish, ways: Mapping[Way, Runner], launcher: str, progress: Progress, seen: Seen
) -> None:
    """Every step, by every way, into ``seen``. A proof that does not hold is the last step's.

    Args:
        ways: how programs are launched; a container at least.
        launcher: its kind, which measurements are told apart by.
    """
    wish.out.mkdir(parents=True, exist_ok=True)
    try:
        _steps(wish, ways, launcher, progress, seen)
    except FairleadError as exc:
        if exc.code is not ExitCode.PROOF_FAILED:
            raise


def _steps(
    wish: Wish, ways: Mapping[Way, Runner], launcher: str, progress: Progress, seen: Seen
) -> None:
    steps: tuple[tuple[str, Step], ...] = (
        ("start-up", machine.start),
        ("memory and storage", machine.hardware),
        ("messages", machine.messages),
    )
    for title, step in steps:
        for way, run in ways.items():
            begin = partial(step, wish, way, run, launcher, seen)
            lines = [machine.checkpoint_line(wish, way)] if step is machine.hardware else []
            tried(f"{title}, {way.value}", begin, seen, progress, lines)
    if wish.most > 1:
        run = next(iter(ways.values()))
        tried("search for what is slow", partial(machine.search, wish, run, seen), seen, progress)
    for model in wish.models:
        trainings.models(wish, model, ways, launcher, seen, progress)
