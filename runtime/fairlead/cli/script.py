"""``fairlead script``: a job script that runs a command in an image."""

from __future__ import annotations

import os
import shlex
import sys
from dataclasses import replace
from pathlib import Path

import click

from fairlead import native
from fairlead import site as sites
from fairlead.base.errors import ExitCode, FairleadError, fail
from fairlead.base.paths import atomic_write, cache_dir
from fairlead.cli import options
from fairlead.cli.screen import json_option, print_json, progress
from fairlead.cli.staging import Staging, space_lines, stage_options
from fairlead.launch import launch as launching
from fairlead.launch.request import Asked
from fairlead.launch.request import shape as make_shape
from fairlead.launchers.model import Shape
from fairlead.proof.preload import asked as asked_of_witness
from fairlead.schedulers import model
from fairlead.schedulers import script as render
from fairlead.schedulers.registry import SCHEDULERS, with_scripts
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


@click.command(epilog=EPILOG, short_help="A job script for Slurm, PBS, LSF, Flux or Cobalt.")
@click.option(
    "--scheduler",
    type=click.Choice(with_scripts()),
    help="Who will read it.  [default: the site's]",
)
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Write it to this file.")
@click.option("--name", default="", metavar="NAME", help="The job's name.")
@click.option("--log", default="", metavar="FILE", help="File for the job's output.")
@click.option(
    "--array",
    default="",
    metavar="FIRST-LAST",
    help="Several jobs, with :STEP and %MOST_AT_ONCE if wanted; each has its number in "
    "FAIRLEAD_ARRAY_INDEX.",
)
@click.option("--requeue", is_flag=True, help="Run it again when a node is lost.")
@click.option(
    "--directive",
    "directives",
    multiple=True,
    metavar="OPTION",
    help="A further option for the scheduler, e.g. --directive='-C gpu'. Repeatable.",
)
@click.option(
    "--module",
    "modules",
    multiple=True,
    metavar="NAME",
    help="An environment module to load; -NAME unloads. Repeatable.",
)
@click.option(
    "--plain",
    is_flag=True,
    help="Write the engine's own line, which needs no fairlead on the nodes.",
)
@options.container_options
@click.option(
    "--burst-buffer",
    "burst_buffer",
    default="",
    metavar="SIZE",
    help="Space for the job in the site's burst buffer, e.g. 2TiB; --stage-to burst-buffer uses it.",
)
@options.placement_options
@options.choice_options
@stage_options
@json_option
@click.argument("image")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def script(
    scheduler: str | None,
    output: Path | None,
    name: str,
    log: str,
    array: str,
    requeue: bool,
    directives: tuple[str, ...],
    modules: tuple[str, ...],
    plain: bool,
    env: tuple[str, ...],
    workdir: str,
    burst_buffer: str,
    asked: Asked,
    planning: options.Planning,
    data: Staging,
    as_json: bool,
    image: str,
    command: tuple[str, ...],
) -> int:
    """Write a job script that runs COMMAND in IMAGE: as `fairlead run` in the job, or with --plain as
    the launcher's and engine's own line.

    Nothing is sent. Every word of COMMAND reaches the program as it stands here.
    """
    variables = options.variables(env)
    shape = make_shape(asked)
    site = _site(planning, scheduler)
    kind = scheduler or (site.scheduler.kind if site else "none")
    if kind == "none":
        raise fail(
            "for which scheduler?",
            where="--scheduler",
            why="the site's profile names none" if site else "no site profile fits this machine",
            remedy=f"add --scheduler, one of {', '.join(with_scripts())}; or name the machine with --site",
            check="script",
            code=ExitCode.USAGE,
        )
    own = site if site and site.scheduler.kind == kind else None
    if own and own.scheduler.account and not asked.account:
        raise fail(
            "no account is named",
            where=f"site {own.name}",
            why="every job there must say who pays for it",
            remedy="add --account NAME",
            check="script",
            code=ExitCode.USAGE,
        )
    for option, text in (
        ("--name", name),
        ("--log", log.replace("%", "")),
        ("--account", asked.account),
        ("--partition", asked.partition),
    ):
        model.name(option, text)
    starts = planning.choices.launcher or (
        own.launcher.kinds[0] if own else SCHEDULERS.get(kind).launcher
    )
    image = str(Path(image).absolute()) if Path(image).exists() else image
    if plain and data.words():
        raise click.UsageError("--plain: its line needs no fairlead, which is what stages data")
    if plain:
        body = _plain(planning, image, command, shape, variables, workdir, starts, as_json)
    else:
        body = _fairlead(planning, asked, shape, image, command, env, workdir, data)
    exports = {n: os.environ[n] for n in _KEPT if n in os.environ}
    exports |= {n: v for n, v in os.environ.items() if n.startswith("FAIRLEAD_") and _passed_on(n)}
    job = model.Job(
        shape, body, name, log, model.array(array) if array else None, requeue,
        model.options(directives),
        (*(own.engine.modules if own else ()), *modules),
        () if plain else tuple(sorted(exports.items())), starts,
        shlex.join(["fairlead", *sys.argv[1:]]),
        model.leading(
            model.options(own.scheduler.directives if own else ()), model.options(directives), asked.partition
        ),
    )  # fmt: skip
    text = render.script(kind, job)
    if burst_buffer:
        text = datawarp.inserted(text, space_lines(burst_buffer, site, kind))
    if own and own.scheduler.nodes and not (asked.partition or directives or as_json):
        kinds = "; ".join(f"{option} ({what})" for option, what in own.scheduler.nodes.items())
        click.echo(f"kinds of node at {own.name}, to choose by --directive: {kinds}", err=True)
    if output:
        with atomic_write(output, "w") as out:
            out.write(text)
        output.chmod(0o755)  # Cobalt runs the file itself
    sends = SCHEDULERS.get(kind).submit_line(str(output or "FILE"))
    if as_json:
        print_json(
            "script",
            {"scheduler": kind, "script": text, "file": str(output or ""), "submit": sends},
        )
    elif output:
        click.echo(f"{output}: submit it with `{sends}`", err=True)
    else:
        click.echo(text, nl=False)
    return ExitCode.DONE


def _passed_on(name: str) -> bool:
    return name not in ("FAIRLEAD_PROOF", "FAIRLEAD_RUN_ID", "FAIRLEAD_ALLOCATED", render.INDEX)


def _site(planning: options.Planning, scheduler: str | None) -> Site | None:
    try:
        return sites.resolve(planning.choices.site)[0]
    except FairleadError:
        if planning.choices.site or not scheduler:
            raise
        return None  # the script is for a machine that this one is not


def _fairlead(
    planning: options.Planning,
    asked: Asked,
    shape: Shape,
    image: str,
    command: tuple[str, ...],
    env: tuple[str, ...],
    workdir: str,
    data: Staging,
) -> str:
    """The line of ``fairlead run`` with what is not the scheduler's business."""
    words = ["fairlead", "run", "-n", str(shape.ranks)]
    choices = planning.choices
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
        ("--workdir", workdir),
    ):
        if value:
            words += [option, str(value)]
    words += ["--require-signature"] * choices.require_signature
    for option, values in (
        ("--launcher-arg", asked.extra),
        ("--app", planning.apps),
        ("--bind", planning.binds),
        ("--engine-arg", planning.engine_args),
        ("--env", env),
    ):
        words += [f"{option}={value}" for value in values]
    words += data.words()
    path = shlex.quote(str(Path(sys.executable).parent))
    return f"PATH={path}:$PATH\nexec {shlex.join([*words, image, '--', *command])}"


def _plain(
    planning: options.Planning,
    image: str,
    command: tuple[str, ...],
    shape: Shape,
    variables: dict[str, str],
    workdir: str,
    starts: str,
    as_json: bool,
) -> str:
    """The launcher's line; what it binds is made now."""
    choices = replace(planning.choices, launcher=starts or None)
    request = planning.request(shape.ranks, command, variables, shape=shape)
    # The script's directives say these to the scheduler.
    request = replace(request, shape=replace(shape, time_s=0, account="", partition=""))
    prepared = prepare(image, choices, request, progress=progress(as_json))
    if prepared.refused:
        raise refuse(prepared)
    plan, cache = prepared.plan, cache_dir()
    staging.ensure(plan, cache)
    if plan.witness:
        native.ensure_witness(cache)
    told, _ = asked_of_witness(plan, shape.ranks, staging.planned_inode(plan, cache))
    left = {n: v for n, v in variables.items() if n not in options.MERGED}
    line = launching.command_line(plan, command, shape.ranks, workdir=workdir, env={**left, **told})
    return line.shell()
