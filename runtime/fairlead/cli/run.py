"""``fairlead run``: plan, check, prove, launch."""

from __future__ import annotations

import shlex
import sys
from dataclasses import replace
from typing import Any

import click

from fairlead import native
from fairlead.base.errors import ExitCode, Finding, Severity
from fairlead.base.paths import cache_dir
from fairlead.base.serde import to_json
from fairlead.cli import options, show
from fairlead.cli import timeline as timelines
from fairlead.cli.screen import json_option, print_findings, print_json, progress, say
from fairlead.cli.staging import Staging, stage_json, stage_options, staged_here, step_words
from fairlead.cli.within import within
from fairlead.launch import allocate, unpack
from fairlead.launch import launch as launching
from fairlead.launch.request import Asked
from fairlead.proof.preload import asked, unproved
from fairlead.proof.verdict import Proof
from fairlead.session.model import Launched, LaunchOptions, Prepared
from fairlead.session.prepare import prepare, refuse
from fairlead.session.run import launch_proved
from fairlead.swap import staging
from fairlead.swap.model import Bind
from fairlead.transfer.job import Wish, shell

EPILOG = """\b
Examples:
  fairlead run -n 2 tensorflow -- python3 -m mpi4py.bench helloworld
  fairlead run -n 2 --mpi container tensorflow -- python3 train.py
  fairlead run -n 4 --bind /scratch ./app.sif -- /opt/app/solver input.nml
  fairlead run -n 2 --stage-in data/train --stage-out results tensorflow -- python3 train.py
  fairlead run -n 2 --require-signature tensorflow -- python3 train.py
  fairlead run -N 4 --ranks-per-node 8 --time 2h tensorflow -- python3 train.py
  fairlead run -n 2 --timeline run.json tensorflow -- python3 train.py
  fairlead run -n 2 --dry-run tensorflow -- python3 train.py

\b
Exit code: that of the first rank that failed; 121 refused before launch, 122 the proof failed,
123 engine or launcher failed, 124 ended by the watchdog.
"""

_SHOWN = (Severity.WARNING, Severity.ERROR)


@click.command(epilog=EPILOG, short_help="Launch a command in an image on the host's MPI, proved.")
@options.placement_options
@options.choice_options
@stage_options
@options.container_options
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
@timelines.timeline_option
@click.option("-v", "--verbose", is_flag=True, help="Show what every rank proved, as a table.")
@click.option("-q", "--quiet", is_flag=True, help="Say nothing but errors.")
@json_option
@click.argument("image")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def run(
    asked: Asked,
    planning: options.Planning,
    data: Staging,
    env: tuple[str, ...],
    workdir: str,
    watchdog: float | None,
    probe: bool,
    force: bool,
    dry_run: bool,
    timeline_file: str,
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
    data.check()
    shape, allocation = within(asked, planning, dry_run=dry_run, quiet=quiet)
    ranks = shape.ranks
    recorder = timelines.recording(timeline_file, dry_run=dry_run, quiet=quiet)
    bars = recorder.progress(progress(as_json)) if recorder else progress(as_json)
    with timelines.stage(recorder, "plan"):
        prepared = prepare(
            image,
            planning.choices,
            planning.request(ranks, command, variables, shape=shape),
            progress=bars,
        )
    variables = {n: v for n, v in variables.items() if n not in options.MERGED}
    if prepared.refused and not force:
        raise refuse(prepared)
    wish = data.wish(prepared.plan.site)
    seen = recorder.launch("run") if recorder else None
    binds = (*((wish.bind,) if wish else ()), *(seen.binds if seen else ()))
    variables |= {**(wish.env if wish else {}), **(seen.env if seen else {})}
    if dry_run:
        step = step_words(prepared.plan, planning, ranks)
        # Staging and launch are several steps, which have to be of one job.
        wanted = () if allocation or not wish else ("sh", "-c", "")
        job = wanted and allocate.words(
            shape, asked, prepared.plan.site, planning.choices.launcher, wanted
        )
        return _dry_run(
            prepared, command, ranks, workdir, variables, as_json, wish, binds, step, job or ()
        )
    if not quiet:
        if prepared.verified:
            say(show.signature_line(prepared.verified))
        say(show.swap_line(prepared.plan))
        warnings = [_overruled(f) for f in prepared.findings if f.severity in _SHOWN]
        if warnings:
            print_findings(warnings)

    def told(proof: Proof) -> None:
        if seen:
            seen.proved()
        if not proof.holds and not as_json:
            click.echo(show.proof_text(proof), err=True)
        if quiet or not proof.holds:
            return  # what is wrong comes as an error
        say(show.proof_line(proof))
        if proof.findings:
            print_findings(proof.findings)
        if verbose:
            click.echo(show.proof_text(proof), err=True)

    def noted(finding: Finding) -> None:
        if not quiet:
            print_findings([finding])

    with staged_here(wish, prepared.plan, planning, ranks, quiet=quiet, as_json=as_json) as stage:
        how = LaunchOptions(
            on_proof=told, on_finding=noted, on_start=seen.begun if seen else lambda: None,
            allocation=allocation, probe_first=probe, limit_s=watchdog,
            workdir=workdir, binds=binds, env=variables, progress=bars,
            stdout=sys.stderr.fileno() if as_json else None,
        )  # fmt: skip
        done = launch_proved(prepared, command, ranks, how)
    if seen:
        seen.ended()
    finding = launching.explain_exit(done.result)
    if finding is None and done.proof is None:
        finding = unproved(command)
    ends = [finding] if finding else []
    ends += stage.findings if stage else []
    if as_json:
        print_json("run", {**_json(prepared, done, finding), "stage": stage_json(stage)})
    elif shown := [f for f in ends if f.severity is Severity.ERROR or not quiet]:
        print_findings(shown)
    if done.result.code and not done.result.started:
        return ExitCode.LAUNCH_FAILED
    lost = any(f.severity is Severity.ERROR for f in (stage.findings if stage else ()))
    return done.result.code or (ExitCode.LAUNCH_FAILED if lost else ExitCode.DONE)


def _overruled(finding: Finding) -> Finding:
    """A refusal that --force went past is a warning: the proof decides."""
    if finding.severity is not Severity.ERROR:
        return finding
    return replace(finding, severity=Severity.WARNING, what=f"{finding.what} (going on: --force)")


def _dry_run(
    prepared: Prepared,
    command: tuple[str, ...],
    ranks: int,
    workdir: str,
    variables: dict[str, str],
    as_json: bool,
    wish: Wish | None,
    binds: tuple[Bind, ...],
    step: tuple[str, ...],
    job: tuple[str, ...],
) -> int:
    # The line must work when it is pasted, so what it binds is made now.
    plan, cache = prepared.plan, cache_dir()
    unpack.ensure(plan, cache, progress(as_json), binds)
    if plan.witness:
        native.ensure_witness(cache)
    staging.ensure(plan, cache)
    witness, _ = asked(plan, ranks, staging.planned_inode(plan, cache))
    line = launching.command_line(
        plan,
        command,
        ranks,
        binds,
        workdir=workdir,
        env={**variables, **witness},
    )
    line.write_files()
    text = shell(wish, line.shell(), step) if wish else line.shell()
    text = shlex.join([*job[:-1], text]) if job else text
    if as_json:
        print_json("run", {**show.prepared_json(prepared), "command_line": text, "dry_run": True})
    else:
        click.echo(text)
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
