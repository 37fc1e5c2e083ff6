"""``fairlead script``: a job script that runs a command in an image."""

from __future__ import annotations

import os
import shlex
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import click

from fairlead import site as sites
from fairlead.base.errors import ExitCode, FairleadError, fail
from fairlead.base.paths import atomic_write
from fairlead.cli import options
from fairlead.cli.declare import JSON, SECONDS, declared, option
from fairlead.cli.screen import print_findings, print_json, progress
from fairlead.cli.staging import Staging, space_line
from fairlead.cli.within import left_out, ready_line
from fairlead.launch.request import Asked, with_spares
from fairlead.launch.request import shape as make_shape
from fairlead.launchers.model import Shape
from fairlead.rendezvous.model import MODES
from fairlead.schedulers import model
from fairlead.schedulers import script as render
from fairlead.schedulers.registry import SCHEDULERS, with_scripts
from fairlead.session.prepare import prepare, refuse
from fairlead.site.model import Site
from fairlead.transfer import datawarp

EPILOG = """\b
Examples:
  fairlead script -N 4 --ranks-per-node 8 --time 2h -o job.sh tensorflow -- python3 train.py
  fairlead script --scheduler pbs -N 2 -n 8 --account physics tensorflow -- python3 train.py
  fairlead script -n 4 --array 0-9%2 --requeue -o sweep.sh tensorflow -- python3 sweep.py
  fairlead script -N 8 --time 12h --requeue --restarts 3 --spares 1 -o job.sh pytorch -- python3 ddp.py
  fairlead script -N 2 --plain -o plain.sh ./app.sif -- /opt/app/solver input.nml
"""
_WARN_S = 120


@dataclass(frozen=True, kw_only=True)
class ScriptFlags:
    """The options of ``fairlead script`` that no other group of options holds."""

    scheduler: str | None = option(
        "--scheduler",
        "The scheduler to write for.  [default: the site's]",
        type=click.Choice(with_scripts()),
    )
    output: Path | None = option("-o --output", "Output file.  [default: stdout]")
    name: str = option("--name NAME", "Job name.")
    log: str = option("--log FILE", "File for the job's output and errors.")
    array: str = option(
        "--array FIRST-LAST",
        "Submit a job array, optionally with :STEP and %MOST_AT_ONCE; each job finds its index in "
        "FAIRLEAD_ARRAY_INDEX.",
    )
    requeue: bool = option(
        "--requeue", "Requeue the job when a node fails, and before its time limit (--time)."
    )
    warn: float | None = option(
        "--warn SECONDS",
        "Send SIGUSR1 to the ranks SECONDS before the time limit.  [default: 120 with --requeue and --time]",
        type=SECONDS,
    )
    directives: tuple[str, ...] = option(
        "--directive OPTION", "Extra scheduler option, e.g. --directive='-C gpu'. Repeatable."
    )
    modules: tuple[str, ...] = option(
        "--module NAME", "Environment module to load; -NAME unloads. Repeatable."
    )
    plain: bool = option(
        "--plain", "Write the engine's own command, which needs no fairlead on the nodes."
    )
    env: tuple[str, ...] = options.ENV
    workdir: str = options.WORKDIR
    burst_buffer: str = option(
        "--burst-buffer SIZE",
        "Burst buffer space for the job, e.g. 2TiB; --stage-to burst-buffer uses it.",
    )
    as_json: bool = JSON


@dataclass(frozen=True)
class _Script:
    """What the job runs, the options that shape it, and the machine that the script is for.

    Attributes:
        kind: of the scheduler.
        site: None where no profile fits and the scheduler is named.
    """

    flags: ScriptFlags
    asked: Asked
    planning: options.Planning
    data: Staging
    recovery: options.Recovery
    image: str
    command: tuple[str, ...]
    shape: Shape
    kind: str
    site: Site | None

    @property
    def warn_s(self) -> int:
        """Seconds before the end at which the ranks get SIGUSR1; 0 for never."""
        usual = _WARN_S if self.flags.requeue and self.shape.time_s else 0
        return int(self.flags.warn or usual)

    @property
    def home(self) -> Site | None:
        """The site, if the scheduler is the one of its profile."""
        return self.site if self.site and self.site.scheduler.kind == self.kind else None

    @property
    def launcher(self) -> str:
        """The kind or program of the launcher that starts the ranks."""
        usual = self.home.launcher.kinds[0] if self.home else SCHEDULERS.get(self.kind).launcher
        return self.planning.launcher or usual


@click.command(epilog=EPILOG)
@declared
def script(
    flags: ScriptFlags,
    asked: options.Placement,
    planning: options.Planning,
    data: Staging,
    recovery: options.Recovery,
    image: str,
    command: tuple[str, ...] = options.COMMAND,
) -> int:
    """Write a job script that runs COMMAND in IMAGE.

    The script calls `fairlead run`, or with --plain the launcher and engine directly. Nothing is
    submitted. Every word of COMMAND reaches the program unchanged.
    """
    variables = options.variables(flags.env)
    shape = make_shape(asked)
    site = _site(planning, flags.scheduler)
    kind = flags.scheduler or (site.scheduler.kind if site else "none")
    if kind == "none":
        raise fail(
            "script-scheduler-not-in-profile" if site else "script-scheduler-no-profile",
            with_scripts=", ".join(with_scripts()),
        )
    image = str(Path(image).absolute()) if Path(image).exists() else image
    recovery.policy(None)
    made = _Script(flags, asked, planning, data, recovery, image, command, shape, kind, site)
    _check(made)
    body = _plain(made, variables) if flags.plain else _fairlead(made)
    text = render.script(kind, _job(made, body))
    if flags.burst_buffer:
        text = datawarp.inserted(text, space_line(flags.burst_buffer, site, kind))
    _show_kinds_of_nodes(made)
    if flags.output:
        with atomic_write(flags.output, "w") as out:
            out.write(text)
        flags.output.chmod(0o755)  # Cobalt runs the file itself
    _report(kind, flags, text)
    return ExitCode.DONE


def _site(planning: options.Planning, scheduler: str | None) -> Site | None:
    try:
        return sites.resolve(planning.site)[0]
    except FairleadError:
        if planning.site or not scheduler:
            raise
        return None  # the script is for a machine that this one is not


def _check(script: _Script) -> None:
    flags, asked, home = script.flags, script.asked, script.home
    if home and home.scheduler.account and not asked.account:
        raise fail("script-no-account-named", own_name=home.name)
    model.name("--name", flags.name)
    model.name("--log", flags.log.replace("%", ""))
    model.name("--account", asked.account)
    model.name("--partition", asked.partition)
    if flags.plain and script.data.words():
        raise click.UsageError("--plain: its line needs no fairlead, which is what stages data")
    if flags.plain and script.recovery.restarts:
        raise click.UsageError("--plain: its line needs no fairlead, which is what restarts")


def _job(script: _Script, body: str) -> model.Job:
    flags, home = script.flags, script.home
    directives = model.options(flags.directives)
    exports = options.passed_on(os.environ)
    return model.Job(
        shape=with_spares(script.shape, script.recovery.spares),
        body=body,
        name=flags.name,
        log=flags.log,
        array=model.array(flags.array) if flags.array else None,
        requeue=flags.requeue,
        warn_s=0 if flags.plain else script.warn_s,
        outlives_nodes=bool(script.recovery.restarts),
        options=directives,
        modules=(*(home.engine.modules if home else ()), *flags.modules),
        exports=() if flags.plain else exports,
        launcher=script.launcher,
        written_by=shlex.join(["fairlead", *sys.argv[1:]]),
        leading=model.leading(
            model.options(home.scheduler.directives if home else ()),
            directives,
            script.asked.partition,
        ),
    )


def _show_kinds_of_nodes(script: _Script) -> None:
    """Show the kinds of nodes of the site, where nothing chooses one."""
    home, flags = script.home, script.flags
    chosen = script.asked.partition or flags.directives or flags.as_json
    if home and home.scheduler.nodes and not chosen:
        kinds = "; ".join(f"{option} ({what})" for option, what in home.scheduler.nodes.items())
        click.echo(f"kinds of node at {home.name}, to choose by --directive: {kinds}", err=True)


def _report(kind: str, flags: ScriptFlags, text: str) -> None:
    """Show the script, or where it is and what submits it."""
    submit = SCHEDULERS.get(kind).submit_line(str(flags.output or "FILE"))
    if flags.as_json:
        document = {"scheduler": kind, "script": text, "file": str(flags.output or "")}
        print_json("script", {**document, "submit": submit})
    elif flags.output:
        click.echo(f"{flags.output}: submit it with `{submit}`", err=True)
    else:
        click.echo(text, nl=False)


def _fairlead(script: _Script) -> str:
    """The line of ``fairlead run``, with what does not concern the scheduler."""
    shape, planning = script.shape, script.planning
    words = ["fairlead", "run", "-n", str(shape.ranks)]
    for flag, value in (
        ("-N", shape.nodes or ""),
        ("--ranks-per-node", shape.per_node or ""),
        ("--cores-per-rank", shape.cores or ""),
        ("--gpus-per-rank", shape.gpus or ""),
        ("--bind-to", shape.bind),
        ("--hosts", ",".join(shape.hosts)),
        ("--mpi", "" if planning.mpi == "host" else planning.mpi),
        ("--site", planning.site or ""),
        ("--launcher", planning.launcher or ""),
        ("--engine", planning.engine or ""),
        ("--comm", planning.comm or ""),
        ("--nccl", "" if planning.nccl == "auto" else planning.nccl),
        ("--workdir", script.flags.workdir),
    ):
        if value:
            words += [flag, str(value)]
    words += ["--require-signature"] * planning.require_signature
    words += ["--unpack"] * planning.unpack
    words += ["--container-per-rank"] * planning.container_per_rank
    for flag, values in (
        ("--launcher-arg", script.asked.extra),
        ("--app", planning.apps),
        ("--carry", planning.carry),
        ("--bind", planning.binds),
        ("--engine-arg", planning.engine_args),
        ("--env", script.flags.env),
    ):
        words += [f"{flag}={value}" for value in values]
    words += script.recovery.words()
    if script.flags.requeue and script.warn_s:
        words += ["--requeue", str(script.warn_s)]
    words += script.data.words()
    path = shlex.quote(str(Path(sys.executable).parent))
    return f"PATH={path}:$PATH\nexec {shlex.join([*words, script.image, '--', *script.command])}"


def _plain(script: _Script, variables: dict[str, str]) -> str:
    """The launcher's line; what it binds is made now."""
    shape, planning = script.shape, script.planning
    choices = replace(planning.choices, launcher=script.launcher or None)
    # The script's directives pass time, account and partition to the scheduler.
    free = replace(shape, time_s=0, account="", partition="")
    request = planning.request(shape.ranks, script.command, variables, shape=free)
    request = replace(request, workdir=script.flags.workdir)
    prepared = prepare(script.image, choices, request, progress=progress(script.flags.as_json))
    if prepared.refused:
        raise refuse(prepared)
    env = {n: v for n, v in variables.items() if n not in options.MERGED}
    print_findings(left_out(prepared.plan, script.command, shape.ranks, MODES[0]))
    return ready_line(
        prepared.plan, script.command, shape.ranks, workdir=script.flags.workdir, env=env
    ).shell()
