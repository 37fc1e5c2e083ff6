"""``fairlead preflight``: the checks before a launch, without launching."""

from __future__ import annotations

import time

import click

from fairlead.base.errors import ExitCode
from fairlead.cli import options, show
from fairlead.cli.screen import json_option, print_json, progress
from fairlead.session.prepare import prepare

EPILOG = """\b
Examples:
  fairlead preflight tensorflow
  fairlead preflight ./app.sif --app /opt/app/solver
  fairlead preflight tensorflow --mpi /opt/intel/mpi/latest --json
  fairlead preflight tensorflow --site login1.json   # where one is not
"""


@click.command(epilog=EPILOG, short_help="Will this image run here on the host's MPI?")
@click.argument("image")
@options.choice_options
@click.option(
    "-n", "--ranks", default=2, show_default=True, type=click.IntRange(1), help="Ranks to plan for."
)
@json_option
def preflight(
    image: str,
    planning: options.Planning,
    ranks: int,
    as_json: bool,
) -> int:
    """Will this image run here on the host's MPI? Nothing is launched.

    IMAGE is the name of a built recipe, a .sif or .squashfs file, or a folder. Exit code 0: yes;
    121: no, and each reason comes with its remedy. With a file of `fairlead site capture` the
    question is asked of that machine, from anywhere.
    """
    begun = time.monotonic()
    prepared = prepare(
        image,
        planning.choices,
        planning.request(ranks),
        progress=progress(as_json),
        elsewhere=True,
    )
    seconds = time.monotonic() - begun
    if as_json:
        print_json("preflight", {**show.prepared_json(prepared), "seconds": seconds})
    else:
        click.echo(show.findings_text(prepared.findings))
        verdict = "no: see above" if prepared.refused else f"yes: {show.swap_line(prepared.plan)}"
        click.echo(f"\n{click.style('Will it run?', bold=True)} {verdict}  ({seconds:.2f} s)")
    return ExitCode.PREFLIGHT_REFUSED if prepared.refused else ExitCode.DONE
