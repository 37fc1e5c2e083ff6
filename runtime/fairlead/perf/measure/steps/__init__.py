"""The steps of a validation, one file each, which declares ``STEP``; :data:`STEPS` has all in order."""

from __future__ import annotations

import importlib
import pkgutil

from fairlead.base.errors import ExitCode, FairleadError
from fairlead.perf.measure.step import Context, Step


def _discover() -> tuple[Step, ...]:
    names = (module.name for module in pkgutil.iter_modules(__path__))
    steps = [importlib.import_module(f"{__name__}.{name}").STEP for name in names]
    return tuple(sorted(steps, key=lambda step: step.order))


STEPS = _discover()


def measure(context: Context) -> None:
    """Runs every step, into ``context.seen``: one that fails is reported, and the next one runs.

    A proof that does not hold ends the validation.
    """
    context.options.out.mkdir(parents=True, exist_ok=True)
    try:
        for step in STEPS:
            step.measure(context)
    except FairleadError as exc:
        if exc.code is not ExitCode.PROOF_FAILED:
            raise
