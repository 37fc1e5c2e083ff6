"""The steps of a validation, a file each, which declares ``STEP``; :data:`STEPS` has all in order."""

from __future__ import annotations

import importlib
import pkgutil

from fairlead.perf.measure.step import Step


def _discover() -> tuple[Step, ...]:
    names = (module.name for module in pkgutil.iter_modules(__path__))
    steps = [importlib.import_module(f"{__name__}.{name}").STEP for name in names]
    return tuple(sorted(steps, key=lambda step: step.order))


STEPS = _discover()
