"""``fairlead doctor``: what is wrong with this machine, the remedy, and with ``--fix`` the cure."""

from __future__ import annotations

import itertools
import shutil
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Iterable

import click

from fairlead.base.errors import ExitCode, Finding, Severity
from fairlead.base.suggest import suggest
from fairlead.base.text import plain
from fairlead.cli.declare import JSON, argument, declared, option
from fairlead.cli.screen import detail_lines, finding_lines, print_json, progress
from fairlead.doctor.diagnosis import Check, Diagnosis, Fix
from fairlead.doctor.fix import apply_fixes, examine
from fairlead.doctor.install.host_mpi import install_wheel_mpi
from fairlead.doctor.registry import ordered
from fairlead.doctor.world import World

CHECKS = ordered()
_WIDEST = max(len(check.name) for check in CHECKS)
_BAD = (Severity.WARNING, Severity.ERROR)
_LABELS = {
    Severity.OK: ("ok", "green"),
    Severity.INFO: ("info", "cyan"),
    Severity.WARNING: ("WARN", "yellow"),
    Severity.ERROR: ("FAIL", "red"),
}


def _check_list() -> str:
    lines = []
    for topic, checks in itertools.groupby(CHECKS, lambda check: check.topic):
        lines.append(f"  {topic}:")
        lines += [f"    {check.name:<{_WIDEST}}  {check.about}" for check in checks]
    return "\n".join(lines)


@click.command(
    epilog="\b\nExamples:\n  fairlead doctor\n  fairlead doctor --fix --yes\n"
    "  fairlead doctor engine fuse --json\n\n"
    f"\b\nChecks, in this order:\n{_check_list()}\n\n"
    "Exit codes: 0 nothing stops fairlead here, 1 something does, 2 bad usage."
)
@declared
def doctor(
    names: tuple[str, ...] = argument(metavar="[CHECK]...", nargs=-1),
    fix: bool = option("--fix", "Fix what can be fixed; asks before each fix."),
    yes: bool = option("--yes", "With --fix: do not ask."),
    host_mpi: str | None = option(
        "--host-mpi NAME==VERSION", "With --fix: install this MPI from its wheel too."
    ),
    as_json: bool = JSON,
) -> ExitCode:
    """Diagnose this machine, and fix what can be fixed.

    Prints one line per check, then each problem in full. Named checks print everything they found.
    Without --fix nothing is changed; "fix:" shows what a fix would do.
    """
    if (yes or host_mpi) and not fix:
        raise click.UsageError("--yes and --host-mpi belong to --fix")
    if fix and not yes and not sys.stdin.isatty():
        raise click.UsageError("--fix asks before each fix, and there is no terminal; add --yes")
    checks = _chosen(names)
    machine, display = World(), progress(as_json)
    if host_mpi:
        name, _, version = host_mpi.partition("==")
        install_wheel_mpi(name, version, display)
    screen = _Screen(silent=as_json, in_full=bool(names), yes=yes)
    begun = time.monotonic()
    diagnoses = screen.show(
        apply_fixes(machine, checks, screen.approve, display, screen.begins)
        if fix
        else examine(machine, checks, screen.begins)
    )
    seconds = time.monotonic() - begun
    counts = Counter(d.finding.severity for d in diagnoses)
    if as_json:
        document = {"errors": counts[Severity.ERROR], "warnings": counts[Severity.WARNING]}
        findings = [d.to_json() for d in diagnoses]
        print_json("doctor", {**document, "seconds": round(seconds, 3), "findings": findings})
    else:
        screen.close(diagnoses, len(checks), seconds, fixing=fix)
    return ExitCode.FAILED if counts[Severity.ERROR] else ExitCode.DONE


def _chosen(names: tuple[str, ...]) -> list[Check]:
    known = {check.name: check for check in CHECKS}
    for name in names:
        if name not in known:
            raise click.UsageError(f"no check `{name}`. {suggest(name, known)}")
    return [check for check in CHECKS if not names or check.name in names]


def _fix_line(fix: Fix) -> str:
    return plain(f"{fix.does}, as root" if fix.needs_root else fix.does)


class _Screen:
    """What a user sees: a line a check as soon as it is known, and at the end what is to be fixed."""

    def __init__(self, *, silent: bool, in_full: bool, yes: bool):
        self.silent, self.in_full, self.yes = silent, in_full, yes
        self.moving = not silent and sys.stderr.isatty()
        # A file or a pipe gets whole lines, for grep.
        self.width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 0
        self.topic = ""
        self.check: Check | None = None

    def begins(self, check: Check) -> None:
        self.check = check
        if self.moving:
            click.echo(f"\r\033[K  ..    {check.name}: {check.about}", nl=False, err=True)

    def _clear(self) -> None:
        if self.moving:
            click.echo("\r\033[K", nl=False, err=True)

    def approve(self, fix: Fix) -> bool:
        self._clear()
        return self.yes or click.confirm(_fix_line(fix) + "; do it?", default=True, err=True)

    def show(self, diagnoses: Iterable[Diagnosis]) -> list[Diagnosis]:
        kept = []
        for diagnosis in diagnoses:
            kept.append(diagnosis)
            if not self.silent:
                self._clear()
                self._line(diagnosis.finding)
        self._clear()
        return kept

    def _line(self, finding: Finding) -> None:
        if self.check and self.check.topic != self.topic and not self.in_full:
            self.topic = self.check.topic
            click.secho(self.topic, bold=True)
        word, colour = _LABELS[finding.severity]
        label = click.style(f"{word:<6}", fg=colour, bold=finding.severity in _BAD)
        indent = " " * (8 + _WIDEST + 2)
        text = plain(finding.what)
        if self.width > len(indent) + 20:
            width = self.width - len(indent) - 1
            lines = textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False)
            text = f"\n{indent}".join(lines)
        click.echo(f"  {label}{finding.check:<{_WIDEST}}  {text}")
        if self.in_full and finding.severity not in _BAD:
            for line in detail_lines(finding):
                click.echo(textwrap.indent(line, " " * 8))

    def close(
        self, diagnoses: list[Diagnosis], checks: int, seconds: float, *, fixing: bool
    ) -> None:
        """What is to be fixed, the worst last, and the totals."""
        bad = [d for severity in _BAD for d in diagnoses if d.finding.severity is severity]
        for diagnosis in bad:
            click.echo("\n" + finding_lines(diagnosis.finding))
            if diagnosis.fix:
                click.echo(f"fix:   {_fix_line(diagnosis.fix)}")
        notes = [d.finding.check for d in diagnoses if d.finding.severity is Severity.INFO]
        click.echo("\n" + _sum(bad, notes, checks, seconds))
        if notes and not self.in_full:
            names = " ".join(dict.fromkeys(notes))
            click.echo(f"to know more: fairlead doctor {names}")
        if any(d.fix for d in bad) and not fixing:
            click.echo("fairlead doctor --fix applies the fixes", err=True)


def _sum(bad: list[Diagnosis], notes: list[str], checks: int, seconds: float) -> str:
    """``26 checks: 1 error, 2 warnings, 3 worth knowing (1.8 s)``."""
    errors = sum(d.finding.severity is Severity.ERROR for d in bad)
    counts = {"error": errors, "warning": len(bad) - errors}
    parts = [f"{n} {word}{'s' if n > 1 else ''}" for word, n in counts.items() if n]
    parts += [f"{len(notes)} worth knowing"] if notes else []
    of = "1 check" if checks == 1 else f"{checks} checks"
    return f"{of}: {', '.join(parts) or 'all is well'} ({seconds:.1f} s)"
