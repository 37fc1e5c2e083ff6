"""``fairlead shell``: a terminal in an image, on the host's MPI."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import click

from fairlead.base.errors import fail, os_error_as
from fairlead.base.paths import cache_dir
from fairlead.base.progress import Silent
from fairlead.cli import options, show
from fairlead.cli.declare import JSON, declared, option
from fairlead.cli.run import announce
from fairlead.cli.screen import answer, progress, say
from fairlead.launch import unpack
from fairlead.launch.launch import CommandLine, terminal_line
from fairlead.proof import closure, preload
from fairlead.session.model import Prepared
from fairlead.session.prepare import prepare, refuse
from fairlead.session.run import still_as_verified
from fairlead.swap import staging

EPILOG = """\b
Examples:
  fairlead shell mpi-base
  fairlead shell --bind /scratch --workdir /scratch tensorflow
  fairlead shell --mpi container ./app.sif

\b
Exit codes: the shell's own; 121 refused before it starts; 123 the engine cannot be started.
"""
# A start-up file of the user's is of the host: what it loads and exports would undo the swap.
_SHELL = (
    'unset PROMPT_COMMAND; export PS1="$0"; '  # the first is Apptainer's, and sets another prompt
    "command -v bash >/dev/null && exec bash --noprofile --norc -i; exec sh -i"
)


@dataclass(frozen=True, kw_only=True)
class ShellFlags:
    """The options of ``fairlead shell`` that planning does not hold."""

    env: tuple[str, ...] = options.ENV
    workdir: str = options.WORKDIR
    force: bool = option("--force", "Continue when the checks refuse.")
    dry_run: bool = option("--dry-run", "Print the command that starts the shell, and start none.")
    quiet: bool = option("-q --quiet", "Print only errors.")
    as_json: bool = JSON


@click.command(epilog=EPILOG)
@declared
def shell(image: str, *, planning: options.Planning, flags: ShellFlags) -> None:
    """Open a shell in IMAGE at this terminal, with the host's MPI in place of the image's.

    It runs on this machine, as one process without a launcher. Every MPI program that is started in it
    prints which MPI it runs on, and is ended if that is another one than planned.
    """
    if flags.as_json and not flags.dry_run:
        raise click.UsageError("--json: a shell answers nothing; with --dry-run, the plan")
    if not flags.dry_run:
        _need_terminal(image)
    variables = options.variables(flags.env)
    bars = Silent() if flags.quiet else progress(flags.as_json)
    request = planning.request(1, (), variables)
    prepared = prepare(image, planning.choices, request, progress=bars)
    # No launcher starts it, so what one objects to does not count.
    counting = tuple(f for f in prepared.findings if f.check != "launcher-root")
    prepared = replace(prepared, findings=counting)
    if prepared.refused and not flags.force:
        raise refuse(prepared)
    own = {n: v for n, v in variables.items() if n not in options.MERGED}
    unpack.ensure(prepared.plan, cache_dir(), bars)
    line = _line(prepared, flags.workdir, own)
    if flags.dry_run:
        line.write_files()
        document = {**show.prepared_json(prepared), "command_line": line.shell(), "dry_run": True}
        answer(flags.as_json, "shell", document, line.shell())
        return
    if not flags.quiet:
        announce(prepared)
        say("a shell in the image; `exit` leaves it")
    still_as_verified(prepared)
    _become(line, os.environ)


def _need_terminal(image: str) -> None:
    for stream in (sys.stdin, sys.stdout):
        if not stream.isatty():
            line = f"fairlead run -n 1 {shlex.quote(image)} -- COMMAND"
            raise fail("no-terminal", stream=stream.name.strip("<>"), line=line)


def _line(prepared: Prepared, workdir: str, env: Mapping[str, str]) -> CommandLine:
    """The line that starts the shell. The witness in it judges every MPI program by itself."""
    plan, cache = prepared.plan, cache_dir()
    staging.ensure(plan, cache)
    inode, known = staging.planned_inode(plan, cache), closure.libraries(plan, cache)
    witness, _ = preload.asked(plan, 1, inode, known=known)
    command = ("/bin/sh", "-c", _SHELL, f"[{Path(prepared.image.name).name}] $ ")
    return terminal_line(plan, command, workdir, {**env, **witness})


def _become(line: CommandLine, environ: Mapping[str, str]) -> None:
    """Ends this process in favour of the engine's, which has the terminal, its signals and the exit code."""
    line.write_files()
    sys.stdout.flush()
    sys.stderr.flush()
    with os_error_as("shell-cannot-start", line=line):
        os.execvpe(line.argv[0], line.argv, line.environment(environ))
