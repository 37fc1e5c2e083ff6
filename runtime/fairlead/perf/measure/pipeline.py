"""A validation: its steps in order, each by every way of launching.

A step that fails is reported, and the next one runs: a site wants to know the rest.
"""

from __future__ import annotations

from fairlead.base.errors import ExitCode, FairleadError
from fairlead.perf.measure.step import Context
from fairlead.perf.measure.steps import STEPS


def measure(context: Context) -> None:
    """Every step, into ``context.seen``. A proof that does not hold ends it."""
    context.options.out.mkdir(parents=True, exist_ok=True)
    try:
        for step in STEPS:
            step.measure(context)
    except FairleadError as exc:
        if exc.code is not ExitCode.PROOF_FAILED:
            raise
