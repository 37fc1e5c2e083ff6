"""``make demo``: the main job, step by step, each step a command that can be typed.

Every step is the ``fairlead`` command itself, so what is seen here is what a user gets; the first
that fails ends the demo with its exit code.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress

import click

IMAGE = "tensorflow"
REPORT = "fairlead-report"

STEPS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("Build the image from its lock: the same bits on any machine", ("build", IMAGE)),
    ("Detect the site: what this machine is, and which MPIs it has", ("site", "detect")),
    ("Plan the swap: which library replaces which, and why", ("explain", IMAGE)),
    ("Check the plan before anything is launched", ("preflight", IMAGE)),
    (
        "Launch 2 ranks, and prove on each that the swap came true",
        ("run", "-n", "2", "-v", IMAGE, "--", "python3", "-m", "mpi4py.bench", "helloworld"),
    ),
    (
        "Train HEP-CNN data-parallel on 2 ranks, and report",
        ("train", "hepcnn", "-n", "2", "--image", IMAGE, "-o", REPORT),
    ),
)


def run_step(argv: Sequence[str]) -> int:
    """Runs one step to its end, also when it is interrupted: it has ranks and mounts to clean up.

    Returns:
        Its exit code, negative for a signal.
    """
    process = subprocess.Popen(argv)
    before = signal.signal(signal.SIGTERM, lambda number, frame: process.terminate())
    try:
        while True:
            # A terminal sends Ctrl-C to the step as well; `subprocess.run` would kill it on top.
            with suppress(KeyboardInterrupt):
                return process.wait()
    finally:
        signal.signal(signal.SIGTERM, before)


def main() -> int:
    """Runs the steps; returns the exit code of the first that fails."""
    begun = time.monotonic()
    for number, (title, words) in enumerate(STEPS, start=1):
        heading = click.style(f"{number}/{len(STEPS)}  {title}", bold=True)
        click.echo(f"\n{heading}\n{click.style('$ fairlead ' + ' '.join(words), fg='cyan')}\n")
        if code := run_step([sys.executable, "-m", "fairlead", *words]):
            again = "run `make demo` again to go on where it stopped"
            click.echo(f"\nstopped at step {number} with exit code {code}; {again}", err=True)
            return code if code > 0 else 128 - code
    click.echo(
        f"\nDone in {time.monotonic() - begun:.0f} s. Open {REPORT}/report.html in a browser."
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
