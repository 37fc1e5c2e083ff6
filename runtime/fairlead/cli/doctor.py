"""``fairlead doctor``: what is wrong with this machine, the remedy, and with ``--fix`` the cure."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable

import click

from fairlead.cli.screen import finding_lines, json_option, print_json, progress
from fairlead.doctor.diagnosis import Check, Diagnosis, Fix
from fairlead.doctor.fix import examine, mend
from fairlead.doctor.hostmpi_install import install_wheel_mpi
from fairlead.doctor.registry import CHECKS
from fairlead.doctor.world import Machine
from fairlead.findings import ExitCode, Severity
from fairlead.suggest import suggest

_CHECK_LIST = "\n".join(f"    {check.name:<16}  {check.about}" for check in CHECKS)


@click.command(
    epilog="\b\nExamples:\n  fairlead doctor\n  fairlead doctor --fix --yes\n"
    "  fairlead doctor engine fuse --json\n\n"
    f"\b\nChecks, in this order:\n{_CHECK_LIST}\n\n"
    "Exit codes: 0 nothing stops fairlead here, 1 something does, 2 bad usage."
)
@click.argument("names", metavar="[CHECK]...", nargs=-1)
@click.option("--fix", is_flag=True, help="Mend what can be mended; asks before each.")
@click.option("--yes", is_flag=True, help="With --fix: do not ask.")
@click.option(
    "--host-mpi", metavar="NAME==VERSION", help="With --fix: install this MPI from its wheel too."
)
@json_option
def doctor(
    names: tuple[str, ...], fix: bool, yes: bool, host_mpi: str | None, as_json: bool
) -> ExitCode:
    """What is wrong with this machine, and the remedy.

    Without --fix nothing is changed: what a fix would do stands after "fix:".
    """
    if (yes or host_mpi) and not fix:
        raise click.UsageError("--yes and --host-mpi belong to --fix")
    if fix and not yes and not sys.stdin.isatty():
        raise click.UsageError("--fix asks before each fix, and there is no terminal; add --yes")
    checks = _chosen(names)
    machine, display = Machine(), progress(as_json)
    if host_mpi:
        name, _, version = host_mpi.partition("==")
        install_wheel_mpi(name, version, display)
    found = mend(machine, checks, _approve(yes), display) if fix else examine(machine, checks)
    diagnoses = _shown(found, as_json)
    errors = sum(d.finding.severity is Severity.ERROR for d in diagnoses)
    if as_json:
        print_json("doctor", {"errors": errors, "findings": [d.to_json() for d in diagnoses]})
    elif errors and not fix and any(d.fix for d in diagnoses):
        click.echo("\nfairlead doctor --fix mends what has a fix", err=True)
    return ExitCode.FAILED if errors else ExitCode.DONE


def _chosen(names: tuple[str, ...]) -> list[Check]:
    known = {check.name: check for check in CHECKS}
    for name in names:
        if name not in known:
            raise click.UsageError(f"no check `{name}`. {suggest(name, known)}")
    return [check for check in CHECKS if not names or check.name in names]


def _approve(yes: bool) -> Callable[[Fix], bool]:
    def approve(fix: Fix) -> bool:
        return yes or click.confirm(_fix_line(fix) + "; do it?", default=True, err=True)

    return approve


def _fix_line(fix: Fix) -> str:
    return f"{fix.does}, as root" if fix.needs_root else fix.does


def _shown(diagnoses: Iterable[Diagnosis], as_json: bool) -> list[Diagnosis]:
    """Each is printed as soon as it is known: what is well in a line, the rest in full."""
    kept = []
    for diagnosis in diagnoses:
        kept.append(diagnosis)
        finding = diagnosis.finding
        if as_json:
            continue
        if finding.severity in (Severity.OK, Severity.INFO):
            label = click.style(f"{finding.severity.value:<6}", fg="green")
            click.echo(f"  {label}{finding.check}: {finding.what}")
        else:
            click.echo(finding_lines(finding))
            if diagnosis.fix:
                click.echo(f"fix:   {_fix_line(diagnosis.fix)}")
    return kept
