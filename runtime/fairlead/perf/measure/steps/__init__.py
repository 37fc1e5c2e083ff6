"""The steps of a validation, one file each, which declares ``STEP``; :data:`STEPS` has all in order."""

from __future__ import annotations

import importlib
import pkgutil

from fairlead.base.errors import ExitCode, FairleadError
from fairlead.perf.measure.step import Context, Step

_NAMES = [f"{__name__}.{module.name}" for module in pkgutil.iter_modules(__path__)]
STEPS: list[Step] = [importlib.import_module(name).STEP for name in _NAMES]
STEPS.sort(key=lambda step: step.order)


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
