"""The steps of a validation, one file each, which declares ``STEP``; :data:`STEPS` has all in order."""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import replace

from fairlead.base.errors import ExitCode, FairleadError
from fairlead.perf import stats
from fairlead.perf.measure.step import Context, Options, Step

_NAMES = [f"{__name__}.{module.name}" for module in pkgutil.iter_modules(__path__)]
STEPS: list[Step] = [importlib.import_module(name).STEP for name in _NAMES]
STEPS.sort(key=lambda step: step.order)


def planned(options: Options, ways: int) -> Options:
    """With the repeats that a comparison of two such validations needs to decide.

    With fewer, no difference among so many lines could be significant, however large.

    Args:
        ways: how each line is measured: in a container, and without.
    """
    lines = ways * sum(step.lines(options) for step in STEPS)
    return replace(options, repeats=stats.repeats_needed(lines))


def measure(context: Context) -> None:
    """Runs every step, into ``context.observations``: one that fails is reported, and the next one runs.

    A proof that does not hold ends the validation.
    """
    context.options.out.mkdir(parents=True, exist_ok=True)
    context.look()
    try:
        for step in STEPS:
            step.measure(context)
    except FairleadError as exc:
        if exc.code is not ExitCode.PROOF_FAILED:
            raise
