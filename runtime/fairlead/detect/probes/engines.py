"""The container engines, with what of their configuration decides how containers run here."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from fairlead.base.process import Ran
from fairlead.base.system import View
from fairlead.base.timeboxed import answers, failed, version
from fairlead.detect.model import EngineFact, Unknown
from fairlead.engines.model import Driver
from fairlead.engines.registry import ENGINES


def probe(view: View) -> dict[str, Any]:
    engines = {driver.kind: driver for driver in ENGINES}
    paths = {kind: path for kind, driver in engines.items() if (path := driver.locate(view))}
    commands = {kind: engines[kind].version_command(view, path) for kind, path in paths.items()}
    if srun := view.which("srun"):
        commands[""] = (srun, "--help")
    answered = answers(view, commands)
    srun_help = answered.pop("", Ran((), 127))
    facts: list[EngineFact] = []
    unknown: list[Unknown] = []
    for kind, path in paths.items():
        fact = _fact(view, engines[kind], path, answered[kind])
        facts.append(fact)
        if not fact.version:
            ran = answered[kind]
            why = failed(ran) if ran.returncode else f"`{' '.join(ran.argv)}` names none"
            unknown.append(Unknown(f"version of {kind}", why))
    absent = [driver for kind, driver in engines.items() if kind not in paths]
    facts += _of_slurm(view, absent, srun_help)
    return {"engines": tuple(facts), "unknown": tuple(unknown)}


def _fact(view: View, driver: Driver, path: str, ran: Ran) -> EngineFact:
    real = view.real(path)
    config = driver.configuration(view, real)
    text = f"{ran.stdout}\n{ran.stderr}" if ran.returncode == 0 else ""
    asked = " ".join([path.rpartition("/")[2], *driver.version_arguments])
    evidence = [f"`{asked}`" if version(text) else path]
    evidence += [config.path] if config and config.path else []
    return EngineFact(
        kind=driver.kind,
        version=version(text),
        path=path,
        setuid=_setuid(view, driver.setuid_files(view, real)),
        settings=config.settings if config else {},
        config=config.path if config else "",
        seen=", ".join(evidence),
    )


def _setuid(view: View, files: tuple[str, ...] | None) -> bool | None:
    """Whether one of ``files`` is root's and has the setuid bit; None where that is not asked."""
    if files is None:
        return None
    modes = [owner_mode for path in files if (owner_mode := view.owner_mode(path)) is not None]
    return any(owner == 0 and mode & 0o4000 for owner, mode in modes)


def _of_slurm(view: View, absent: list[Driver], srun_help: Ran) -> Iterator[EngineFact]:
    """Engines whose program is not on PATH, by what they add to ``srun --help``."""
    text = srun_help.stdout + srun_help.stderr if srun_help.returncode == 0 else ""
    for driver in absent:
        if driver.srun_option is None:
            continue
        option, title = driver.srun_option
        if not re.search(rf"^\s*{option}\b", text, re.MULTILINE):
            continue
        yield EngineFact(
            kind=driver.kind,
            version="",
            path=srun_help.argv[0],
            setuid=None,
            settings={"srun": option, **driver.srun_settings(view)},
            config="",
            seen=f"`srun --help`: {option}, {title}",
        )
