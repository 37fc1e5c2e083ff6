"""The verb ``fairlead recipe import``."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from fairlead.base.errors import ExitCode, FairleadError, Severity
from fairlead.cli.screen import json_option, print_findings, print_json


@click.command("import")
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="The recipe's folder, which must be new. [default: the file's name]",
)
@click.option("--allow-loss", is_flag=True, help="Write the recipe even if parts are lost.")
@click.option("--dry-run", is_flag=True, help="Show the recipe and what is lost; write nothing.")
@json_option
def import_(
    file: Path, output: Path | None, allow_loss: bool, dry_run: bool, as_json: bool
) -> int | None:
    """Convert a Containerfile or a Singularity.def to a recipe, and list what was lost.

    A recipe says what is in an image; these files say what to run. Whatever may not carry over
    exactly is listed with its line, the reason, and what to do instead. Then nothing is written
    and the exit code is 2, unless you pass --allow-loss.

    \b
    fairlead recipe import hep.def --dry-run
    fairlead recipe import hep.def -o hep --allow-loss
    """
    from fairlead_build.importing.folder import import_file, lossy

    result = import_file(file, output, allow_loss=allow_loss, dry_run=dry_run)
    severity = Severity.WARNING if allow_loss else Severity.ERROR
    findings = [loss.finding(severity) for loss in result.losses]
    refused = bool(findings) and not allow_loss
    if refused and not dry_run:
        raise FairleadError([*findings, lossy(file)], ExitCode.USAGE)
    if as_json:
        print_json(
            "recipe-import",
            {
                "name": result.name,
                "folder": str(result.folder),
                "written": result.written,
                "recipe": result.recipe,
                "files": result.files,
                "losses": [asdict(loss) for loss in result.losses],
            },
        )
        return int(ExitCode.USAGE) if refused else None
    if dry_run:
        click.echo(result.recipe, nl=False)
    if findings:
        print_findings(findings)
    if result.written:
        click.echo(str(result.folder / "recipe.toml"))
        click.echo(f"next: fairlead recipe lock {result.folder}", err=True)
    return int(ExitCode.USAGE) if refused else None
