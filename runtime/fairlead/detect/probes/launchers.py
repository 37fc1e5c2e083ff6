"""The programs on PATH that start ranks."""

from __future__ import annotations

from typing import Any

from fairlead.base.system import View
from fairlead.base.timeboxed import answers, failed, version
from fairlead.detect.model import LauncherFact, Unknown
from fairlead.launchers.identify import launcher_of
from fairlead.launchers.model import Driver
from fairlead.launchers.registry import LAUNCHERS, MPIEXEC

_MPIEXECS = ("mpiexec", "mpirun")


def probe(view: View) -> dict[str, Any]:
    drivers: dict[str, Driver | None] = {
        program: driver
        for driver in LAUNCHERS
        if driver.in_profiles
        for program in driver.programs
        if program not in _MPIEXECS
    }
    drivers |= dict.fromkeys(_MPIEXECS)
    paths = {name: path for name in drivers if (path := view.which(name))}
    commands = {
        name: (path, *(driver.version_arguments if driver else ("--version",)))
        for name, path in paths.items()
        if not (driver := drivers[name]) or driver.version_arguments
    }
    answered = answers(view, commands)
    facts: list[LauncherFact] = []
    unknown: list[Unknown] = []
    resolved: set[str] = set()
    for name, path in paths.items():
        real = view.real(path)
        if real in resolved:
            continue  # mpirun is often mpiexec
        resolved.add(real)
        ran = answered.get(name)
        text = f"{ran.stdout}\n{ran.stderr}" if ran and ran.returncode != 124 else ""
        driver = drivers[name]
        if driver is None:
            kind, title = _mpiexec(name, real, text)
        elif driver.is_present(view, text):
            kind, title = driver.kind, driver.titled(text)
        else:
            continue
        if ran and ran.returncode not in (0, 127) and title == name:
            unknown.append(Unknown(f"what {path} is", failed(ran)))
        where = f"{path} on PATH" + (f", which is {real}" if real != path else "")
        facts.append(LauncherFact(kind, path, title, where))
    return {"launchers": tuple(facts), "unknown": tuple(unknown)}


def _mpiexec(name: str, real: str, text: str) -> tuple[str, str]:
    """The kind and title of a program that every MPI has."""
    # Cray's Parallel Application Launch Service: its mpiexec says no more than its name and a number.
    if "/pals/" in real or "PALS" in text:
        return "pals", f"PALS {version(real, '/pals/') or version(text)}".strip()
    known = launcher_of(real, text)
    return MPIEXEC, known.title if known else name
