"""Examines, and mends what may be mended: check by check, each looked at again after its fix."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from fairlead.doctor import process
from fairlead.doctor.diagnosis import Check, Diagnosis, Fix, RootFix
from fairlead.doctor.world import World
from fairlead.findings import FairleadError, Severity, fail
from fairlead.progress import Progress

SEVERITIES_TO_MEND = frozenset({Severity.ERROR, Severity.WARNING})


def examine(world: World, checks: Iterable[Check]) -> Iterator[Diagnosis]:
    """What each check finds. Changes nothing."""
    for check in checks:
        yield from check.examine(world)


def mend(
    world: World,
    checks: Iterable[Check],
    approve: Callable[[Fix], bool],
    progress: Progress,
) -> Iterator[Diagnosis]:
    """As :func:`examine`, after the fixes that ``approve`` agrees to.

    A fix that fails is reported in the finding it was for; the others go on.
    """
    for check in checks:
        before = list(check.examine(world))
        failures: list[str] = []
        for diagnosis in before:
            fix = diagnosis.fix
            if fix and diagnosis.finding.severity in SEVERITIES_TO_MEND and approve(fix):
                try:
                    apply(fix, world, progress)
                except FairleadError as exc:
                    failures += [f"{f.what}: {f.why}" for f in exc.findings]
                except OSError as exc:  # no space, no permission
                    failures.append(f"not done, {fix.does}: {exc}")
        after = list(check.examine(world)) if any(d.fix for d in before) else before
        for diagnosis in after:
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
            raise fail(
                "this needs root",
                where=fix.line,
                why="you are not root, and sudo does not work without a password here",
                remedy=f"ask an administrator for: {fix.line}",
                check="needs-root",
            )
        command = ("sudo", "-n", *command)
    with progress.stage(fix.does) as stage:
        # apt says every second whose lock it waits for.
        ran = process.follow(command, stage.note, environ=world.environ)
        process.checked(ran, f"this failed: {fix.does}", fix.line)
        stage.result("done")
