"""``fairlead preflight``: the checks before a launch, without launching."""

from __future__ import annotations

import time

import click

from fairlead.base.errors import ExitCode
from fairlead.cli import options, show
from fairlead.cli.declare import JSON, argument, declared, option
from fairlead.cli.screen import answer, progress
from fairlead.session.prepare import prepare

EPILOG = """\b
Examples:
  fairlead preflight tensorflow
  fairlead preflight tensorflow -- python3 train.py
  fairlead preflight ./app.sif --app /opt/app/solver
  fairlead preflight tensorflow --mpi /opt/intel/mpi/latest --json
  fairlead preflight tensorflow --site login1.json   # on another machine
"""


@click.command(epilog=EPILOG)
@declared
def preflight(
    image: str,
    command: tuple[str, ...] = argument(nargs=-1, type=click.UNPROCESSED),
    *,
    planning: options.Planning,
    ranks: int = option("-n -np --ranks", "Ranks to plan for.", default=2),
    as_json: bool = JSON,
) -> int:
    """Check that an image can run here on the host's MPI. Nothing is launched.

    IMAGE is the name of a built recipe, a .sif or .squashfs file, or a folder. With a COMMAND, checks
    what that runs. Exits with 0 if it can, and with 121 if it cannot; each reason comes with its
    remedy. With --site and a file from `fairlead site capture`, checks for that machine instead.
    """
    begun = time.monotonic()
    request = planning.request(ranks, command)
    prepared = prepare(image, planning.choices, request, progress=progress(as_json), elsewhere=True)
    seconds = time.monotonic() - begun
    verdict = "no: see above" if prepared.refused else f"yes: {show.swap_line(prepared.plan)}"
    question = f"{click.style('Will it run?', bold=True)} {verdict}  ({seconds:.2f} s)"
    text = f"{show.findings_text(prepared.findings)}\n\n{question}"
    answer(as_json, "preflight", {**show.prepared_json(prepared), "seconds": seconds}, text)
    return ExitCode.PREFLIGHT_REFUSED if prepared.refused else ExitCode.DONE
