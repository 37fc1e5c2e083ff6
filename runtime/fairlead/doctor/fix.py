"""Runs the checks, and applies fixes one by one; each check runs again after its fix.

A check that raises or hangs becomes a finding itself, and the others go on.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from fairlead.base import process
from fairlead.base.errors import FairleadError, Finding, Severity, fail
from fairlead.base.progress import Progress, Silent
from fairlead.base.timeboxed import at_once
from fairlead.doctor.diagnosis import Check, Diagnosis, Fix, RootFix, ill, note
from fairlead.doctor.world import World

SEVERITIES_TO_MEND = frozenset({Severity.ERROR, Severity.WARNING})


def examine(
    world: World, checks: Iterable[Check], begins: Callable[[Check], None] = lambda check: None
) -> Iterator[Diagnosis]:
    """What each check finds. Changes nothing.

    Args:
        begins: called with each check before it runs.
    """
    return apply_fixes(world, checks, lambda fix: False, Silent(), begins)


def look(world: World, check: Check, reported: set[Finding]) -> list[Diagnosis]:
    """What one check finds, whatever becomes of it: at least one finding.

    Args:
        reported: errors of the machine's set-up that were found already, e.g. of a variable that names no
            program: several checks meet them, and the first reports them.
    """
    result = at_once({"": lambda: list(check.examine(world))}, check.limit_s).get("")
    if result is None:
        return [ill("check-did-not-end", check=check.name, limit_s=check.limit_s)]
    if isinstance(result, FairleadError):
        fresh = [f for f in result.findings if f not in reported]
        reported.update(fresh)
        known = ", ".join(sorted({f.check for f in result.findings}))
        return [Diagnosis(replace(f, check=check.name)) for f in fresh] or [
            note("check-skipped", check=check.name, known=known)
        ]
    if isinstance(result, BaseException):
        last = traceback.extract_tb(result.__traceback__)[-1]
        kind = type(result).__name__
        return [ill("check-failed", check=check.name, last=last, type=kind, result=result)]
    named = (replace(d.finding, check=d.finding.check or check.name) for d in result)
    return [replace(d, finding=finding) for d, finding in zip(result, named, strict=True)]


def apply_fixes(
    world: World,
    checks: Iterable[Check],
    approve: Callable[[Fix], bool],
    progress: Progress,
    begins: Callable[[Check], None] = lambda check: None,
) -> Iterator[Diagnosis]:
    """What each check finds after the fixes that ``approve`` agrees to.

    A fix that fails is reported in the finding it was for; the others go on.
    """
    reported: set[Finding] = set()
    for check in checks:
        begins(check)
        before = look(world, check, reported)
        failures: list[str] = []
        tried = False
        for diagnosis in before:
            fix = diagnosis.fix
            if fix and diagnosis.finding.severity in SEVERITIES_TO_MEND and approve(fix):
                tried = True
                try:
                    apply(fix, world, progress)
                except FairleadError as exc:
                    failures += [f"{f.what}: {f.why}" for f in exc.findings]
                except OSError as exc:  # no space, no permission
                    failures.append(f"not done, {fix.does}: {exc}")
        for diagnosis in look(world, check, reported) if tried else before:
            if failures and diagnosis.finding.severity in SEVERITIES_TO_MEND:
                why = "\n".join(filter(None, [diagnosis.finding.why, *failures]))
                diagnosis = replace(diagnosis, finding=replace(diagnosis.finding, why=why))
            yield diagnosis


def apply(fix: Fix, world: World, progress: Progress) -> None:
    """Does what ``fix.does`` says.

    Raises:
        FairleadError: it needs root and there is no way to be root, or it failed.
    """
    if not isinstance(fix, RootFix):
        fix.action(progress)
        return
    command = fix.command
    if world.uid != 0:
        if world.run(("sudo", "-n", "true")).returncode:
            raise fail("needs-root", line=fix.line)
        command = ("sudo", "-n", *command)
    with progress.stage(fix.does) as stage:
        # apt says every second whose lock it waits for.
        ran = process.follow(command, stage.note, environ=world.environ)
        process.checked(ran, f"this failed: {fix.does}", fix.line)
        stage.result("done")
