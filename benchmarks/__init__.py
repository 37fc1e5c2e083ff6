"""Every bar that fairlead sets itself, measured: ``make bench``. Results are kept in ``results/``.

A benchmark is one file in ``bars/`` that declares ``BENCHMARKS``; :func:`discover` finds them. ``programs/`` has what
their ranks run, ``peers/`` the comparison of training libraries, ``python -m benchmarks.peers``.
"""

from __future__ import annotations

import importlib
import pkgutil

from benchmarks import bars
from benchmarks.result import Benchmark


def discover() -> dict[str, Benchmark]:
    """All benchmarks by name, in the order in which they run."""
    modules = [
        importlib.import_module(f"{bars.__name__}.{module.name}")
        for module in pkgutil.iter_modules(bars.__path__)
    ]
    every = sorted((one for m in modules for one in m.BENCHMARKS), key=lambda one: one.order)
    return {one.name: one for one in every}
