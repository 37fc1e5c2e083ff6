"""The engines that fairlead knows, and which one is used.

A driver's module is loaded when it is asked for: a launch needs one of them.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping, Sequence

from fairlead.base.errors import ExitCode, fail
from fairlead.base.suggest import suggest
from fairlead.engines.model import Driver, Engine

CHOSEN = "FAIRLEAD_ENGINE"
# Kind of engine: its module, which holds a `DRIVER`.
_MODULES = {
    "apptainer": "fairlead.engines.apptainer",
    "podman": "fairlead.engines.podman",
    "charliecloud": "fairlead.engines.charliecloud",
    "shifter": "fairlead.engines.shifter",
    "podman-hpc": "fairlead.engines.podman_hpc",
    "sarus": "fairlead.engines.sarus",
    "enroot": "fairlead.engines.enroot",
    "ce": "fairlead.engines.ce",
}
KINDS = tuple(_MODULES)


def driver(kind: str) -> Driver:
    """The driver of a kind of engine."""
    found: Driver = importlib.import_module(_MODULES[kind]).DRIVER
    return found


def choose(
    wanted: str | None, preferred: Sequence[str], environ: Mapping[str, str] = os.environ
) -> Engine:
    """The engine to use: ``--engine``, ``$FAIRLEAD_ENGINE``, or the site's first that is here.

    Args:
        wanted: of ``--engine``; None when it was not given.
        preferred: kinds of engine, the site's first choice first.
    Raises:
        FairleadError: exit code 2 when ``wanted`` is no kind of engine; 123 when there is none.
    """
    chosen = wanted or environ.get(CHOSEN)
    if chosen and chosen not in _MODULES:
        raise fail(
            f"no engine is called `{chosen}`",
            where="--engine" if wanted else f"${CHOSEN}",
            why=suggest(chosen, KINDS),
            remedy=f"use one of {', '.join(KINDS)}",
            check="engine",
            code=ExitCode.USAGE,
        )
    kinds = [chosen] if chosen else [kind for kind in preferred if kind in _MODULES]
    for kind in kinds:
        if engine := driver(kind).detect(environ):
            return engine
    others = [kind for kind in KINDS if kind not in kinds and driver(kind).detect(environ)]
    why, remedy = f"none was found of: {', '.join(kinds)}", "fairlead doctor --fix engine"
    if others:
        why += f"; {', '.join(others)} is here"
        remedy += f", or use --engine {others[0]}"
    elif chosen and chosen != "apptainer":
        remedy = f"install {chosen}, or leave out {'--engine' if wanted else CHOSEN}"
    raise fail(
        f"no {chosen} on this machine" if chosen else "no container engine on this machine",
        where="PATH, and fairlead's own prefix" if "apptainer" in kinds else "PATH",
        why=why,
        remedy=remedy,
        check="engine",
        code=ExitCode.LAUNCH_FAILED,
    )
