"""``fairlead script``: a job script that runs a command in an image."""

from __future__ import annotations

import os
import shlex
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import click

from fairlead import native
from fairlead import site as sites
from fairlead.base.errors import ExitCode, FairleadError, fail
from fairlead.base.paths import atomic_write, cache_dir
from fairlead.cli import options
from fairlead.cli.screen import json_option, print_json, progress
from fairlead.cli.staging import Staging, space_line, stage_options
from fairlead.launch import launch as launching
from fairlead.launch.request import Asked
from fairlead.launch.request import shape as make_shape
from fairlead.launchers.model import Shape
from fairlead.proof.preload import asked as asked_of_witness
from fairlead.schedulers import model
from fairlead.schedulers import script as render
from fairlead.schedulers.registry import SCHEDULERS, with_scripts
from fairlead.session.model import Choices
from fairlead.session.prepare import prepare, refuse
from fairlead.site.model import Site
from fairlead.swap import staging
from fairlead.transfer import datawarp

EPILOG = """\b
Examples:
  fairlead script -N 4 --ranks-per-node 8 --time 2h -o job.sh tensorflow -- python3 train.py
  fairlead script --scheduler pbs -N 2 -n 8 --account physics tensorflow -- python3 train.py
  fairlead script -n 4 --array 0-9%2 --requeue -o sweep.sh tensorflow -- python3 sweep.py
  fairlead script -N 2 --plain -o plain.sh ./app.sif -- /opt/app/solver input.nml
"""
# Variables that change what fairlead does, and that not every scheduler brings into a job.
_KEPT = ("XDG_CACHE_HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME")


@dataclass(frozen=True)
class ScriptFlags:
    """The options of ``fairlead script`` that no other group of options holds."""

    scheduler: str | None
    output: Path | None
    name: str
    log: str
    array: str
    requeue: bool
    directives: tuple[str, ...]
    modules: tuple[str, ...]
    plain: bool
    env: tuple[str, ...]
    workdir: str
    burst_buffer: str
    as_json: bool


@dataclass(frozen=True)
class _Target:
    """The machine that the script is for.

    Attributes:
        kind: of the scheduler.
        site: None where no profile fits and the scheduler is named.
        home: the site, if that scheduler is the one of its profile.
    """

    kind: str
    site: Site | None
    home: Site | None

    def launcher(self, choices: Choices) -> str:
        """The kind or program of the launcher that starts the ranks."""
        if choices.launcher:
            return choices.launcher
        return self.home.launcher.kinds[0] if self.home else SCHEDULERS.get(self.kind).launcher


@dataclass(frozen=True)
class _Command:
    """What the job runs, and the options that shape it."""

    image: str
    words: tuple[str, ...]
    shape: Shape
    asked: Asked
    planning: options.Planning
    data: Staging


@click.command(epilog=EPILOG, short_help="Write a job script for Slurm, PBS, LSF, Flux or Cobalt.")
@click.option(
    "--scheduler",
    type=click.Choice(with_scripts()),
    help="The scheduler to write for.  [default: the site's]",
)
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), help="Output file.  [default: stdout]"
)
@click.option("--name", default="", metavar="NAME", help="Job name.")
@click.option("--log", default="", metavar="FILE", help="File for the job's output and errors.")
@click.option(
    "--array",
    default="",
    metavar="FIRST-LAST",
    help="Submit a job array, optionally with :STEP and %MOST_AT_ONCE; each job finds its index in "
    "FAIRLEAD_ARRAY_INDEX.",
)
@click.option("--requeue", is_flag=True, help="Requeue the job when a node fails.")
@click.option(
    "--directive",
    "directives",
    multiple=True,
    metavar="OPTION",
    help="Extra scheduler option, e.g. --directive='-C gpu'. Repeatable.",
)
@click.option(
    "--module",
    "modules",
    multiple=True,
    metavar="NAME",
    help="Environment module to load; -NAME unloads. Repeatable.",
)
@click.option(
    "--plain",
    is_flag=True,
    help="Write the engine's own command, which needs no fairlead on the nodes.",
)
@options.container_options
@click.option(
    "--burst-buffer",
    "burst_buffer",
    default="",
    metavar="SIZE",
    help="Burst buffer space for the job, e.g. 2TiB; --stage-to burst-buffer uses it.",
)
@options.placement_options
@options.choice_options
@stage_options
@json_option
@click.argument("image")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@options.collected(ScriptFlags)
def script(
    asked: Asked,
    planning: options.Planning,
    data: Staging,
    flags: ScriptFlags,
    image: str,
    command: tuple[str, ...],
) -> int:
    """Write a job script that runs COMMAND in IMAGE.

    The script calls `fairlead run`, or with --plain the launcher and engine directly. Nothing is
    submitted. Every word of COMMAND reaches the program unchanged.
    """
    variables = options.variables(flags.env)
    shape = make_shape(asked)
    target = _target(planning, flags.scheduler)
    _check_account(target.home, asked)
    _check_names(flags, asked)
    image = str(Path(image).absolute()) if Path(image).exists() else image
    if flags.plain and data.words():
        raise click.UsageError("--plain: its line needs no fairlead, which is what stages data")
    run = _Command(image, command, shape, asked, planning, data)
    launcher = target.launcher(planning.choices)
    body = _plain(run, flags, variables, launcher) if flags.plain else _fairlead(run, flags)
    text = render.script(target.kind, _job(target, flags, run, body, launcher))
    if flags.burst_buffer:
        space = space_line(flags.burst_buffer, target.site, target.kind)
        text = datawarp.inserted(text, space)
    _show_kinds_of_nodes(target.home, flags, asked)
    if flags.output:
        with atomic_write(flags.output, "w") as out:
            out.write(text)
        flags.output.chmod(0o755)  # Cobalt runs the file itself
    _report(target.kind, flags, text)
    return ExitCode.DONE


def _target(planning: options.Planning, scheduler: str | None) -> _Target:
    """The machine that the script is for.

    Raises:
        FairleadError: exit code 2; nothing names its scheduler.
    """
    site = _site(planning, scheduler)
    kind = scheduler or (site.scheduler.kind if site else "none")
    if kind == "none":
        raise fail(
            "script-scheduler-not-in-profile" if site else "script-scheduler-no-profile",
            with_scripts=", ".join(with_scripts()),
        )
    return _Target(kind, site, site if site and site.scheduler.kind == kind else None)


def _check_account(home: Site | None, asked: Asked) -> None:
    if home and home.scheduler.account and not asked.account:
        raise fail("script-no-account-named", own_name=home.name)


def _check_names(flags: ScriptFlags, asked: Asked) -> None:
    for option, text in (
        ("--name", flags.name),
        ("--log", flags.log.replace("%", "")),
        ("--account", asked.account),
        ("--partition", asked.partition),
    ):
        model.name(option, text)


def _job(target: _Target, flags: ScriptFlags, run: _Command, body: str, launcher: str) -> model.Job:
    """The job of the script."""
    home = target.home
    array = model.array(flags.array) if flags.array else None
    directives = model.options(flags.directives)
    exports = {n: os.environ[n] for n in _KEPT if n in os.environ}
    exports |= {n: v for n, v in os.environ.items() if n.startswith("FAIRLEAD_") and _passed_on(n)}
    return model.Job(
        shape=run.shape,
        body=body,
        name=flags.name,
        log=flags.log,
        array=array,
        requeue=flags.requeue,
        options=directives,
        modules=(*(home.engine.modules if home else ()), *flags.modules),
        exports=() if flags.plain else tuple(sorted(exports.items())),
        launcher=launcher,
        written_by=shlex.join(["fairlead", *sys.argv[1:]]),
        leading=model.leading(
            model.options(home.scheduler.directives if home else ()),
            directives,
            run.asked.partition,
        ),
    )


def _show_kinds_of_nodes(home: Site | None, flags: ScriptFlags, asked: Asked) -> None:
    """Show the kinds of nodes of the site, where nothing chooses one."""
    if not home or not home.scheduler.nodes:
        return
    if asked.partition or flags.directives or flags.as_json:
        return
    kinds = "; ".join(f"{option} ({what})" for option, what in home.scheduler.nodes.items())
    click.echo(f"kinds of node at {home.name}, to choose by --directive: {kinds}", err=True)


def _report(kind: str, flags: ScriptFlags, text: str) -> None:
    """Show the script, or where it is and what submits it."""
    submit = SCHEDULERS.get(kind).submit_line(str(flags.output or "FILE"))
    if flags.as_json:
        print_json(
            "script",
            {"scheduler": kind, "script": text, "file": str(flags.output or ""), "submit": submit},
        )
    elif flags.output:
        click.echo(f"{flags.output}: submit it with `{submit}`", err=True)
    else:
        click.echo(text, nl=False)


def _passed_on(name: str) -> bool:
    return name not in ("FAIRLEAD_PROOF", "FAIRLEAD_RUN_ID", "FAIRLEAD_ALLOCATED", render.INDEX)


def _site(planning: options.Planning, scheduler: str | None) -> Site | None:
    try:
        return sites.resolve(planning.choices.site)[0]
    except FairleadError:
        if planning.choices.site or not scheduler:
            raise
        return None  # the script is for a machine that this one is not


def _fairlead(run: _Command, flags: ScriptFlags) -> str:
    """The line of ``fairlead run``, with what does not concern the scheduler."""
    shape, planning, choices = run.shape, run.planning, run.planning.choices
    words = ["fairlead", "run", "-n", str(shape.ranks)]
    for option, value in (
        ("-N", shape.nodes or ""),
        ("--ranks-per-node", shape.per_node or ""),
        ("--cores-per-rank", shape.cores or ""),
        ("--gpus-per-rank", shape.gpus or ""),
        ("--bind-to", shape.bind),
        ("--hosts", ",".join(shape.hosts)),
        ("--mpi", "" if choices.mpi == "host" else choices.mpi),
        ("--site", choices.site or ""),
        ("--launcher", choices.launcher or ""),
        ("--engine", choices.engine or ""),
        ("--comm", choices.comm or ""),
        ("--workdir", flags.workdir),
    ):
        if value:
            words += [option, str(value)]
    words += ["--require-signature"] * choices.require_signature
    for option, values in (
        ("--launcher-arg", run.asked.extra),
        ("--app", planning.apps),
        ("--bind", planning.binds),
        ("--engine-arg", planning.engine_args),
        ("--env", flags.env),
    ):
        words += [f"{option}={value}" for value in values]
    words += run.data.words()
    path = shlex.quote(str(Path(sys.executable).parent))
    return f"PATH={path}:$PATH\nexec {shlex.join([*words, run.image, '--', *run.words])}"


def _plain(run: _Command, flags: ScriptFlags, variables: dict[str, str], launcher: str) -> str:
    """The launcher's line; what it binds is made now."""
    ranks = run.shape.ranks
    choices = replace(run.planning.choices, launcher=launcher or None)
    request = run.planning.request(ranks, run.words, variables, shape=run.shape)
    # The script's directives pass these to the scheduler.
    request = replace(request, shape=replace(run.shape, time_s=0, account="", partition=""))
    prepared = prepare(run.image, choices, request, progress=progress(flags.as_json))
    if prepared.refused:
        raise refuse(prepared)
    plan, cache = prepared.plan, cache_dir()
    staging.ensure(plan, cache)
    if plan.witness:
        native.ensure_witness(cache)
    witness, _ = asked_of_witness(plan, ranks, staging.planned_inode(plan, cache))
    env = {n: v for n, v in variables.items() if n not in options.MERGED}
    line = launching.command_line(
        plan, run.words, ranks, workdir=flags.workdir, env={**env, **witness}
    )
    return line.shell()
