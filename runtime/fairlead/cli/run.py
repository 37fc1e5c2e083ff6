"""``fairlead run``: plan, check, prove, launch."""

from __future__ import annotations

import shlex
import sys
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import click

from fairlead.base.errors import ExitCode, Finding, Severity
from fairlead.base.paths import cache_dir
from fairlead.base.progress import Silent
from fairlead.base.serde import to_json
from fairlead.cli import node_trial, options, show
from fairlead.cli.declare import FOLDER, JSON, SECONDS, declared, option
from fairlead.cli.record import LEFT_OUT, Recorded, Recording
from fairlead.cli.run_report import RunReport
from fairlead.cli.screen import answer, hand_over, print_findings, print_json, progress, say
from fairlead.cli.staging import (
    Staging,
    mounts_here,
    stage_json,
    staged_here,
    step_words,
    unmount_after,
)
from fairlead.cli.within import Ready, left_out, plan_launch, ready_line
from fairlead.launch import allocate, ranks_output, unpack
from fairlead.launch import launch as launching
from fairlead.launch.launch import CommandLine, LaunchResult
from fairlead.launch.request import Asked
from fairlead.proof.nccl import NcclProof
from fairlead.proof.verdict import Proof
from fairlead.record.gather import Asked as AskedOfRecord
from fairlead.rendezvous.worlds import World
from fairlead.session.model import Launched, LaunchOptions, Prepared
from fairlead.session.prepare import refuse
from fairlead.session.recorder import Launching
from fairlead.session.restarts import Attempts, Restarts, launch_again
from fairlead.swap.model import Bind
from fairlead.transfer.job import Stage, Wish, shell
from fairlead.transfer.mount import Mounts, mounted

EPILOG = """\b
Examples:
  fairlead run -n 2 tensorflow -- python3 -m mpi4py.bench helloworld
  fairlead run -n 2 --mpi container tensorflow -- python3 train.py
  fairlead run -n 4 --bind /scratch ./app.sif -- /opt/app/solver input.nml
  fairlead run -n 2 --stage-in data/train --stage-out results tensorflow -- python3 train.py
  fairlead run -n 2 --require-signature tensorflow -- python3 train.py
  fairlead run -N 4 --ranks-per-node 8 --time 2h tensorflow -- python3 train.py
  fairlead run -n 2 --timeline run.json tensorflow -- python3 train.py
  fairlead run -n 2 pytorch -- python3 ddp.py
  fairlead run -N 8 --restarts 3 --spares 1 pytorch -- python3 ddp.py
  fairlead run -n 4 --output-dir logs tensorflow -- python3 train.py
  fairlead run -n 4 -o report tensorflow -- python3 train.py
  fairlead run -n 4 --record run-1 --input data --result model.h5 tensorflow -- python3 train.py
  fairlead run -n 2 --dry-run tensorflow -- python3 train.py

\b
Exit codes: that of the first rank that failed; 121 refused before launch; 122 proof failed;
123 engine or launcher failed; 124 ended by the watchdog.
"""


@dataclass(frozen=True, kw_only=True)
class RunFlags(Recorded):
    """The options of ``fairlead run`` that no other group of options holds."""

    env: tuple[str, ...] = options.ENV
    workdir: str = options.WORKDIR
    watchdog: float | None = option(
        "--watchdog SECONDS",
        "Time limit without progress until MPI has started.  [default: the site's, 30]",
        type=SECONDS,
    )
    probe: bool = option("--probe", "Also prove with a separate job before the command starts.")
    force: bool = option("--force", "Continue when the checks refuse; the proof still decides.")
    dry_run: bool = option("--dry-run", "Print the launch command, and launch nothing.")
    requeue: float | None = options.REQUEUE
    rendezvous: str = options.RENDEZVOUS
    timeline_file: str = options.TIMELINE
    label: bool = options.LABEL
    output_dir: Path | None = options.OUTPUT_DIR
    output: Path | None = option(
        "-o --output", "Folder for a report: report.html and report.json.", type=FOLDER
    )
    verbose: bool = option("-v --verbose", "Print what every rank proved, as a table.")
    quiet: bool = option("-q --quiet", "Print only errors.")
    as_json: bool = JSON


@dataclass(frozen=True)
class _Run(Ready):
    """One run, planned and checked.

    Attributes:
        wish: what is staged; None when nothing is.
        mounts: what is mounted; None when nothing is.
        recording: this launch in the timeline; None without --timeline.
        variables: of ``--env``.
        report: what becomes a report; None without -o.
        record: what becomes a record; None without --record.
        restarts: what becomes of a launch that fails.
        checks_nodes: the nodes are compared before.
    """

    flags: RunFlags
    planning: options.Planning
    command: tuple[str, ...]
    wish: Wish | None
    mounts: Mounts | None
    recording: Launching | None
    variables: dict[str, str]
    report: RunReport | None
    record: Recording | None
    restarts: Restarts
    checks_nodes: bool

    @property
    def binds(self) -> tuple[Bind, ...]:
        """What the container sees besides the binds of the plan."""
        staged = (self.wish.bind,) if self.wish else ()
        mounts = self.mounts.binds if self.mounts else ()
        return (*staged, *mounts, *(self.recording.binds if self.recording else ()))

    def show_start(self, line: CommandLine, folder: Path) -> None:
        """Leave the screen to the ranks; mark the moment in the timeline, and where their records are for the report."""
        hand_over(to_ranks=True)
        if self.recording:
            self.recording.begun()
        if self.report:
            self.report.started(line, folder)
        if self.record:
            self.record.started(line, folder)

    def show_doubt(self, finding: Finding) -> None:
        """Show what came up while the ranks ran."""
        if self.report:
            self.report.noticed(finding)
        if not self.flags.quiet:
            print_findings([finding])

    @property
    def env(self) -> dict[str, str]:
        """Variables for the container besides those of the plan."""
        own = {n: v for n, v in self.variables.items() if n not in options.MERGED}
        staged = self.wish.env if self.wish else {}
        own |= {**staged, **(self.recording.env if self.recording else {})}
        return {**own, **(self.record.env if self.record else {})}

    def show_world(self, world: World) -> None:
        """Show a framework's world."""
        if not self.flags.quiet:
            say(show.world_line(world))

    def show_network(self, proof: NcclProof) -> None:
        """Show what NCCL uses."""
        if not self.flags.quiet:
            say(proof.line)

    def show_proof(self, proof: Proof) -> None:
        """Show the proof, and mark its moment in the timeline."""
        flags = self.flags
        if self.recording:
            self.recording.proved()
        if self.report:
            self.report.proved(proof)
        if self.record:
            self.record.proved(proof)
        if not proof.holds and not flags.as_json:
            click.echo(show.proof_text(proof), err=True)
        if flags.quiet or not proof.holds:
            return  # what is wrong comes as an error
        say(show.proof_line(proof))
        print_findings(proof.findings)
        if flags.verbose:
            click.echo(show.proof_text(proof), err=True)


@click.command(epilog=EPILOG)
@declared
def run(
    asked: options.Placement,
    planning: options.Planning,
    data: Staging,
    recovery: options.Recovery,
    flags: RunFlags,
    image: str,
    command: tuple[str, ...] = options.COMMAND,
) -> int:
    """Launch COMMAND in IMAGE on the host's MPI, and prove on every rank that it runs on it.

    IMAGE is the name of a built recipe, a .sif or .squashfs file, or a folder. Everything after
    `--` is the command. With --json, stdout is the JSON object, and the ranks' output goes to stderr.
    """
    variables = options.variables(flags.env)
    data.check()
    flags.check()
    restarts = recovery.policy(flags.requeue)
    asked = replace(asked, spares=recovery.spares)
    ready = plan_launch(
        image, asked, planning, flags, command=command, variables=variables, quiet=flags.quiet
    )
    prepared, recorder = ready.prepared, ready.recorder
    report = None
    if flags.output and not flags.dry_run:
        report = RunReport(flags.output.absolute(), prepared, command, _repeat(image, command))
    record = None
    if flags.record and not flags.dry_run:
        record = Recording(flags, ready, _asked_of(flags, image, command, variables))
    planned = _Run(
        flags=flags,
        planning=planning,
        command=command,
        **vars(ready),
        wish=data.wish(prepared.plan.site),
        mounts=mounts_here(data, prepared.plan, planning, ready.shape.ranks),
        recording=recorder.launch("run") if recorder else None,
        variables=variables,
        report=report,
        record=record,
        restarts=restarts,
        checks_nodes=recovery.check_nodes,
    )
    with (
        report.of_failures() if report else nullcontext(),
        record.of_failures(command) if record else nullcontext(),
    ):
        if prepared.refused and not flags.force:
            raise refuse(prepared)
        if flags.dry_run:
            return _dry_run(planned, asked)
        if flags.output_dir:
            ranks_output.prepare(flags.output_dir.absolute())
        if not flags.quiet:
            announce(prepared)
        launched, stage = _launch(planned)
    return _report(planned, launched, stage)


def _asked_of(
    flags: RunFlags, image: str, command: tuple[str, ...], variables: dict[str, str]
) -> AskedOfRecord:
    """What the record says of the command line."""
    given = tuple(options.given(click.get_current_context(), LEFT_OUT))
    return AskedOfRecord(given, image, command, flags.inputs, variables, flags.results)


def _repeat(image: str, command: tuple[str, ...]) -> tuple[str, ...]:
    """The commands that repeat this run, with exactly the options on this command line."""
    context = click.get_current_context()
    words = context.obj or ["fairlead", "run", *options.given(context), image, "--", *command]
    built = () if Path(image).exists() else (f"fairlead build {image}",)
    return (*built, shlex.join(words))


def announce(prepared: Prepared) -> None:
    """Show the signature, the swap and what the checks warn of; a refusal that --force overrules is a warning."""
    if prepared.verified:
        say(show.signature_line(prepared.verified))
    say(show.swap_line(prepared.plan))
    for finding in prepared.findings:
        if finding.check == "site-strange":
            say(finding.what)
    warnings = [
        replace(f, severity=Severity.WARNING, what=f"{f.what} (going on: --force)")
        if f.severity is Severity.ERROR
        else f
        for f in prepared.findings
        if f.severity in (Severity.WARNING, Severity.ERROR)
    ]
    print_findings(warnings)


def _launch(planned: _Run) -> tuple[Launched, Stage | None]:
    """Stage in, launch and prove, stage out. The stage is None when nothing is staged."""
    flags, recording, ranks = planned.flags, planned.recording, planned.shape.ranks
    plan, bars = planned.prepared.plan, Silent() if flags.quiet else progress(flags.as_json)
    spares = planned.restarts.spares
    staging = staged_here(planned.wish, plan, planned.planning, ranks, bars, spares)
    with mounted(planned.mounts), staging as stage:
        how = LaunchOptions(
            on_proof=planned.show_proof,
            on_world=planned.show_world,
            on_nccl=planned.show_network,
            on_finding=planned.show_doubt,
            on_start=planned.show_start,
            allocation=planned.allocation,
            probe_first=flags.probe,
            limit_s=flags.watchdog,
            workdir=flags.workdir,
            binds=planned.binds,
            mounts=planned.mounts.on_nodes if planned.mounts else None,
            after=unmount_after(planned.mounts, planned.planning, ranks, planned.show_doubt),
            env=planned.env,
            progress=planned.progress,
            stdout=sys.stderr.fileno() if flags.as_json else None,
        )
        try:
            slow: dict[str, str] = {}
            if planned.checks_nodes:
                prepared, allocation = planned.prepared, planned.allocation
                slow = node_trial.failing(prepared, allocation, bars, planned.show_doubt)
            attempts = Attempts(planned.prepared, planned.restarts, planned.show_doubt, slow)
            with attempts:
                launched = launch_again(planned.command, ranks, how, attempts)
        finally:
            hand_over(to_ranks=False)
    if recording:
        recording.ended()
    return launched, stage


def _report(planned: _Run, launched: Launched, stage: Stage | None) -> int:
    """Show how the run ended; the exit code."""
    flags, result, proof = planned.flags, launched.result, launched.proof
    failure, unproved = launching.explain_exit(result), launched.unproved
    if failure is None and unproved and not launched.worlds:
        failure = unproved.doubt(planned.command)
    folder = planned.prepared.plan.request.output_dir
    if failure and failure.check == "rank-failed" and folder:
        first = next(rank for rank in result.ranks if rank.code)
        log = ranks_output.log_of(folder, first.rank)
        failure = replace(failure, remedy=f"tail {shlex.quote(str(log))}")
    stage_findings = list(stage.findings) if stage else []
    findings = [*([failure] if failure else []), *stage_findings]
    code = _exit_code(result, stage_findings)
    page, document = planned.report.write(code, findings) if planned.report else (None, None)
    if planned.record:
        planned.record.ended(launched)
    record = planned.record.write(code, findings) if planned.record else None
    if flags.as_json:
        ended = {
            "command_line": launched.line.shell(),
            "proof": {**to_json(proof), "holds": proof.holds} if proof else None,
            "nccl_proof": launched.nccl,
            "worlds": [{**to_json(world), "title": world.title} for world in launched.worlds],
            "observed": unproved.to_json() if unproved else [],
            "exit_code": result.code,
            "ranks": [{"rank": r.rank, "exit_code": r.code} for r in result.ranks],
            "seconds": result.seconds,
            "output_dir": folder or None,
            "page": page,
            "report": document,
            "record": record,
            "error": failure,
            "stage": stage_json(stage),
        }
        print_json("run", show.prepared_json(planned.prepared) | ended)
    else:
        print_findings([f for f in findings if f.severity is Severity.ERROR or not flags.quiet])
        if page and not flags.quiet:
            say(f"report: {page}")
        if record and not flags.quiet:
            say(f"record: {record}")
    return code


def _exit_code(result: LaunchResult, stage_findings: list[Finding]) -> int:
    """The ranks' own, unless none was started or their results stayed behind."""
    if result.code and not result.started:
        return ExitCode.LAUNCH_FAILED
    stage_failed = any(f.severity is Severity.ERROR for f in stage_findings)
    return result.code or (ExitCode.LAUNCH_FAILED if stage_failed else ExitCode.DONE)


def _dry_run(planned: _Run, asked: Asked) -> int:
    """Print the line that launches the command."""
    flags, plan, ranks = planned.flags, planned.prepared.plan, planned.shape.ranks
    if planned.mounts:
        raise click.UsageError("--dry-run: what --mount shows is there only while fairlead runs")
    launcher = planned.planning.launcher
    step, job = step_words(plan, planned.planning, ranks), None
    if planned.wish and not planned.allocation:  # staging and launch share a job, as several steps
        job = allocate.words(planned.shape, asked, plan.site, launcher, ("sh", "-c", ""))
    unpack.ensure(plan, cache_dir(), progress(flags.as_json), planned.binds)
    line = ready_line(
        plan, planned.command, ranks, planned.binds, workdir=flags.workdir, env=planned.env
    )
    line.write_files()
    text = shell(planned.wish, line.shell(), step) if planned.wish else line.shell()
    text = shlex.join([*job[:-1], text]) if job else text
    missing = left_out(plan, planned.command, ranks, plan.request.rendezvous)
    document = {**show.prepared_json(planned.prepared), "command_line": text, "dry_run": True}
    document["findings"] = (*document["findings"], *missing)
    if not (flags.quiet or flags.as_json):
        print_findings(missing)
    answer(flags.as_json, "run", document, text)
    return ExitCode.DONE
