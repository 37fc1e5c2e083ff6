"""``fairlead preflight``: the checks before a launch, without launching."""

from __future__ import annotations

import time

import click

from fairlead.base.errors import ExitCode
from fairlead.cli import options, show
from fairlead.cli.screen import answer, json_option, progress
from fairlead.session.prepare import prepare

EPILOG = """\b
Examples:
  fairlead preflight tensorflow
  fairlead preflight ./app.sif --app /opt/app/solver
  fairlead preflight tensorflow --mpi /opt/intel/mpi/latest --json
  fairlead preflight tensorflow --site login1.json   # on another machine
"""


@click.command(epilog=EPILOG, short_help="Check that an image can run on the host's MPI.")
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
    """Check that an image can run here on the host's MPI. Nothing is launched.

    IMAGE is the name of a built recipe, a .sif or .squashfs file, or a folder. Exits with 0 if it
    can, and with 121 if it cannot; each reason comes with its remedy. With --site and a file from
    `fairlead site capture`, checks for that machine instead.
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
    verdict = "no: see above" if prepared.refused else f"yes: {show.swap_line(prepared.plan)}"
    question = f"{click.style('Will it run?', bold=True)} {verdict}  ({seconds:.2f} s)"
    text = f"{show.findings_text(prepared.findings)}\n\n{question}"
    answer(as_json, "preflight", {**show.prepared_json(prepared), "seconds": seconds}, text)
    return ExitCode.PREFLIGHT_REFUSED if prepared.refused else ExitCode.DONE
