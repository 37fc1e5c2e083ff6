"""``fairlead run``: plan, check, prove, launch."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import click

from fairlead import launch as launching
from fairlead import native
from fairlead import stage as staging
from fairlead.cli import options, show
from fairlead.cli.screen import json_option, print_findings, print_json, progress
from fairlead.findings import ExitCode, Finding, Severity
from fairlead.paths import cache_dir
from fairlead.proof import Proof
from fairlead.serial import to_json
from fairlead.session import Launched, Prepared, launch_proved, prepare, refuse
from fairlead.witness import asked, unproved

EPILOG = """\b
Examples:
  fairlead run -n 2 tensorflow -- python3 -m mpi4py.bench helloworld
  fairlead run -n 2 --mpi container tensorflow -- python3 train.py
  fairlead run -n 4 --bind /scratch ./app.sif -- /opt/app/solver input.nml
  fairlead run -n 2 --require-signature tensorflow -- python3 train.py
  fairlead run -n 2 --dry-run tensorflow -- python3 train.py

\b
Exit code: that of the first rank that failed; 121 refused before launch, 122 the proof failed,
123 engine or launcher failed, 124 ended by the watchdog.
"""

_SHOWN = (Severity.WARNING, Severity.ERROR)


@click.command(epilog=EPILOG, short_help="Launch a command in an image on the host's MPI, proved.")
@click.option(
    "-n", "--ranks", default=1, show_default=True, type=click.IntRange(1), help="Ranks to start."
)
@options.choice_options
@click.option(
    "--env",
    "env",
    multiple=True,
    metavar="NAME=VALUE",
    help="A variable for the container. Repeatable.",
)
@click.option("--workdir", default="", metavar="DIR", help="Folder in the container to start in.")
@click.option(
    "--watchdog",
    type=click.FloatRange(1),
    metavar="SECONDS",
    help="Longest time without progress until MPI has started.  [default: the site's, 30]",
)
@click.option(
    "--probe", is_flag=True, help="Prove by a job of its own too, before the command starts."
)
@click.option(
    "--force", is_flag=True, help="Go on when the checks refuse; the proof still decides."
)
@click.option(
    "--dry-run", is_flag=True, help="Print the line that launches it, and launch nothing."
)
@click.option("-v", "--verbose", is_flag=True, help="Show what every rank proved, as a table.")
@click.option("-q", "--quiet", is_flag=True, help="Say nothing but errors.")
@json_option
@click.argument("image")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def run(
    ranks: int,
    planning: options.Planning,
    env: tuple[str, ...],
    workdir: str,
    watchdog: float | None,
    probe: bool,
    force: bool,
    dry_run: bool,
    verbose: bool,
    quiet: bool,
    as_json: bool,
    image: str,
    command: tuple[str, ...],
) -> int:
    """Launch COMMAND in IMAGE on the host's MPI, and prove on every rank that it is.

    IMAGE is the name of a built recipe, a .sif or .squashfs file, or a folder. Everything after
    `--` is the command. With --json the ranks' output goes to stderr, and stdout is the object.
    """
    variables = options.variables(env)
    prepared = prepare(
        image,
        planning.choices,
        planning.request(ranks, command, variables),
        progress=progress(as_json),
    )
    variables = {n: v for n, v in variables.items() if n not in options.MERGED}
    if prepared.refused and not force:
        raise refuse(prepared)
    if dry_run:
        return _dry_run(prepared, command, ranks, workdir, variables, as_json)
    if not quiet:
        if prepared.verified:
            _say(show.signature_line(prepared.verified))
        _say(show.swap_line(prepared.plan))
        warnings = [_overruled(f) for f in prepared.findings if f.severity in _SHOWN]
        if warnings:
            print_findings(warnings)

    def told(proof: Proof) -> None:
        if not proof.holds and not as_json:
            click.echo(show.proof_text(proof), err=True)
        if quiet or not proof.holds:
            return  # what is wrong comes as an error
        _say(show.proof_line(proof))
        if proof.findings:
            print_findings(proof.findings)
        if verbose:
            click.echo(show.proof_text(proof), err=True)

    done = launch_proved(
        prepared, command, ranks, told=told, probe_first=probe, limit_s=watchdog, workdir=workdir,
        env=variables, stdout=sys.stderr.fileno() if as_json else None,
    )  # fmt: skip
    finding = launching.explain_exit(done.result)
    if finding is None and done.proof is None:
        finding = unproved(command)
    if as_json:
        print_json("run", _json(prepared, done, finding))
    elif finding and not (quiet and finding.severity is Severity.WARNING):
        print_findings([finding])
    if done.result.code and not done.result.started:
        return ExitCode.LAUNCH_FAILED
    return done.result.code


def _overruled(finding: Finding) -> Finding:
    """A refusal that --force went past is a warning: the proof decides."""
    if finding.severity is not Severity.ERROR:
        return finding
    return replace(finding, severity=Severity.WARNING, what=f"{finding.what} (going on: --force)")


def _say(text: str) -> None:
    click.echo(f"{click.style('fairlead:', bold=True)} {text}", err=True)


def _dry_run(
    prepared: Prepared,
    command: tuple[str, ...],
    ranks: int,
    workdir: str,
    variables: dict[str, str],
    as_json: bool,
) -> int:
    # The line must work when it is pasted, so what it binds is made now.
    plan, cache = prepared.plan, cache_dir()
    staging.ensure(plan, cache)
    if plan.witness:
        native.ensure_witness(cache)
    witness, _ = asked(plan, ranks, staging.planned_inode(plan, cache))
    line = launching.command_line(
        plan, command, ranks, workdir=workdir, env={**variables, **witness}
    )
    if as_json:
        print_json(
            "run", {**show.prepared_json(prepared), "command_line": line.shell(), "dry_run": True}
        )
    else:
        click.echo(line.shell())
    return ExitCode.DONE


def _json(prepared: Prepared, done: Launched, finding: Finding | None) -> dict[str, Any]:
    return {
        **show.prepared_json(prepared),
        "command_line": done.line.shell(),
        "proof": {**to_json(done.proof), "holds": done.proof.holds} if done.proof else None,
        "exit_code": done.result.code,
        "ranks": [{"rank": r.rank, "exit_code": r.code} for r in done.result.ranks],
        "seconds": done.result.seconds,
        "error": finding.to_json() if finding else None,
    }
