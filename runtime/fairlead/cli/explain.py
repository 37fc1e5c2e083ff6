"""``fairlead explain``: the plan in words."""

from __future__ import annotations

import click

from fairlead import launch as launching
from fairlead.cli import options, show
from fairlead.cli.screen import json_option, print_json, progress
from fairlead.serial import to_json
from fairlead.session import prepare
from fairlead.whynot import why_not as reasons

EPILOG = """\b
Examples:
  fairlead explain tensorflow
  fairlead explain tensorflow -- python3 train.py
  fairlead explain tensorflow --mpi container
  fairlead explain tensorflow --why-not libfabric.so.1
"""


@click.command(epilog=EPILOG, short_help="Why this MPI, each bind, each variable.")
@click.argument("image")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@options.choice_options
@click.option(
    "-n", "--ranks", default=2, show_default=True, type=click.IntRange(1), help="Ranks to plan for."
)
@click.option(
    "--why-not",
    metavar="LIB",
    help="Only what becomes of this library of the host, and why.",
)
@json_option
def explain(
    image: str,
    command: tuple[str, ...],
    planning: options.Planning,
    ranks: int,
    why_not: str | None,
    as_json: bool,
) -> None:
    """Why this MPI, each bind, each variable: every line of the plan, its reason and its fact.

    Nothing is launched, nothing is written but the cache.
    """
    prepared = prepare(
        image,
        planning.choices,
        planning.request(ranks, command),
        progress=progress(as_json),
        elsewhere=True,
    )
    if why_not is not None:
        lines = reasons(prepared.plan, why_not)
        if as_json:
            print_json("why-not", {"library": why_not, "lines": [to_json(line) for line in lines]})
        else:
            click.echo("\n".join(show.line_text(line) for line in lines))
        return
    line = launching.command_line(prepared.plan, command or ("COMMAND",), ranks)
    if as_json:
        print_json("explain", {**show.prepared_json(prepared), "command_line": line.shell()})
        return
    click.echo(show.plan_text(prepared))
    click.echo("\n" + click.style("Command line", bold=True) + f"\n  {line.shell()}")
    if prepared.refused:
        click.echo("\n" + click.style("This plan is refused before launch:", fg="red", bold=True))
        click.echo(show.findings_text(f for f in prepared.findings if f.severity == "error"))
