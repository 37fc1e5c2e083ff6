"""Runs the checks, and applies fixes one by one; each check runs again after its fix.

A check that raises or hangs becomes a finding itself, and the others go on.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace

from fairlead.base import process
from fairlead.base.errors import FairleadError, Finding, Severity, fail
from fairlead.base.progress import Progress, Silent
from fairlead.base.timeboxed import at_once
from fairlead.doctor.diagnosis import Check, Diagnosis, Fix, RootFix, ill, note
from fairlead.doctor.world import World

SEVERITIES_TO_FIX = frozenset({Severity.ERROR, Severity.WARNING})


def examine(
    world: World, checks: Iterable[Check], begins: Callable[[Check], None] = lambda check: None
) -> Iterator[Diagnosis]:
    """What each check finds. Changes nothing.

    Args:
        begins: called with each check before it runs.
    """
    return apply_fixes(world, checks, lambda fix: False, Silent(), begins)


@dataclass
class SetupErrors:
    """Errors of the machine's set-up, e.g. of a variable that names no program: several checks meet them, and one
    reports them.

    Attributes:
        reported: those that were found already.
        deferred: those that a later check reports, because they have its name.
    """

    reported: set[Finding] = field(default_factory=set)
    deferred: dict[Finding, None] = field(
        default_factory=dict
    )  # in the order in which they were met


def look(
    world: World, check: Check, errors: SetupErrors, later: Collection[str] = ()
) -> list[Diagnosis]:
    """What one check finds, whatever becomes of it: at least one finding.

    Args:
        later: names of the checks that will run.
    """
    result = at_once({"": lambda: list(check.examine(world))}, check.limit_s).get("")
    if result is None:
        return [ill("check-did-not-end", check=check.name, limit_s=check.limit_s)]
    if isinstance(result, FairleadError):
        unreported = [f for f in result.findings if f not in errors.reported]
        fresh = [f for f in unreported if f.check not in later]
        errors.reported.update(fresh)
        errors.deferred.update(dict.fromkeys(f for f in unreported if f.check in later))
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
    errors = SetupErrors()
    every = list(checks)
    for number, check in enumerate(every):
        begins(check)
        later = {c.name for c in every[number + 1 :]}
        before = look(world, check, errors, later)
        failures: list[str] = []
        tried = False
        for diagnosis in before:
            fix = diagnosis.fix
            if fix and diagnosis.finding.severity in SEVERITIES_TO_FIX and approve(fix):
                tried = True
                try:
                    apply(fix, world, progress)
                except FairleadError as exc:
                    failures += [f"{f.what}: {f.why}" for f in exc.findings]
                except OSError as exc:  # no space, no permission
                    failures.append(f"not done, {fix.does}: {exc}")
        for diagnosis in look(world, check, errors, later) if tried else before:
            if failures and diagnosis.finding.severity in SEVERITIES_TO_FIX:
                why = "\n".join(filter(None, [diagnosis.finding.why, *failures]))
                diagnosis = replace(diagnosis, finding=replace(diagnosis.finding, why=why))
            yield diagnosis
    yield from (Diagnosis(f) for f in errors.deferred if f not in errors.reported)


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
