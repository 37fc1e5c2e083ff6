"""The programs on PATH that start ranks."""

from __future__ import annotations

from typing import Any

from fairlead.base.system import View
from fairlead.base.timeboxed import answers, failed, version
from fairlead.detect.model import LauncherFact, Unknown
from fairlead.launch.choose_launcher import launcher_of

_PROGRAMS = ("srun", "mpiexec", "mpirun", "aprun", "jsrun", "ibrun", "flux")
# These start a job, or read its arguments in another way, when they are asked for a version.
_NEVER_ASKED = frozenset({"ibrun"})


def probe(world: View) -> dict[str, Any]:
    paths = {name: path for name in _PROGRAMS if (path := world.which(name))}
    said = answers(
        world,
        {
            name: (path, "version" if name == "flux" else "--version")
            for name, path in paths.items()
            if name not in _NEVER_ASKED
        },
    )
    facts: list[LauncherFact] = []
    unknown: list[Unknown] = []
    seen: set[str] = set()
    for name, path in paths.items():
        real = world.real(path)
        if real in seen:
            continue  # mpirun is often mpiexec
        seen.add(real)
        ran = said.get(name)
        text = f"{ran.stdout}\n{ran.stderr}" if ran and ran.returncode != 124 else ""
        if name == "flux" and not ("flux-core" in text or "FLUX_URI" in world.environ):
            continue  # another program of that name
        kind, title = _identified(name, real, text)
        if ran and ran.returncode not in (0, 127) and title == name:
            unknown.append(Unknown(f"what {path} is", failed(ran)))
        seen_at = f"{path} on PATH" + (f", which is {real}" if real != path else "")
        facts.append(LauncherFact(kind, path, title, seen_at))
    return {"launchers": tuple(facts), "unknown": tuple(unknown)}


def _identified(name: str, real: str, text: str) -> tuple[str, str]:
    """Its kind as profiles name it, and its title."""
    if name in ("srun", "jsrun", "aprun", "flux"):
        titles = {"srun": "Slurm", "jsrun": "LSF jsrun", "aprun": "ALPS", "flux": "Flux"}
        before = "commands:" if name == "flux" else ""
        return name, f"{titles[name]} {version(text, before) or version(text)}".strip()
    if name == "ibrun":
        return "ibrun", "ibrun"
    # Cray's Parallel Application Launch Service: its mpiexec says no more than its name and a number.
    if "/pals/" in real or "PALS" in text:
        return "pals", f"PALS {version(real, '/pals/') or version(text)}".strip()
    known = launcher_of(real, text)
    return "mpiexec", known.title if known else name
