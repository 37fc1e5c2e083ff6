"""``--timeline FILE`` of the verbs that launch ranks: one trace of the whole run, whatever becomes of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import click

from fairlead.base.errors import Severity
from fairlead.cli.screen import print_findings
from fairlead.session.recorder import Recorder

timeline_option = click.option(
    "--timeline",
    "timeline_file",
    default="",
    metavar="FILE",
    help="Write a timeline of every rank for Perfetto; FILE.gz is compressed.",
)
_NOBODY = "no rank of the command called fairlead.comm.init"
NO_TRAINING = "no rank of a training came as far as fairlead.comm.init"


def recording(
    file: str, *, dry_run: bool, quiet: bool = False, nobody: str = _NOBODY
) -> Recorder | None:
    """What records this command until it ends; None if no timeline is requested.

    Args:
        nobody: why there may be no part of any rank.
    Raises:
        click.UsageError: there cannot be such a file.
        FairleadError: no folder can be made next to it.
    """
    if not file:
        return None
    path = Path(file).absolute()
    if path.is_dir() or not path.parent.is_dir():
        why = "is a folder" if path.is_dir() else f"{path.parent} is not a folder"
        raise click.UsageError(f"--timeline {file}: {why}")
    recorder = Recorder(path)
    if not dry_run:
        click.get_current_context().with_resource(_until_the_end(recorder, quiet, nobody))
    return recorder


@contextmanager
def _until_the_end(recorder: Recorder, quiet: bool, nobody: str) -> Iterator[None]:
    recorder.begin()
    try:
        yield
    finally:
        finding = recorder.finish(nobody)
        if finding.severity is Severity.INFO:
            if not quiet:
                click.echo(f"{click.style('fairlead:', bold=True)} {finding.what}", err=True)
        elif finding.severity is Severity.ERROR or not quiet:
            print_findings([finding])


def stage(recorder: Recorder | None, name: str) -> AbstractContextManager[Any]:
    """A stage of the host's own, where it is recorded."""
    return recorder.span(name) if recorder else nullcontext()
