"""The verb ``fairlead recipe render``."""

from __future__ import annotations

from pathlib import Path

import click

from fairlead.cli.screen import json_option, print_json


@click.command()
@click.argument("name", metavar="RECIPE")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="The folder to write; containers/rendered/NAME of a checkout, or rendered/NAME, otherwise.",
)
@click.option("--dry-run", is_flag=True, help="Show which files would change; write nothing.")
@json_option
def render(name: str, output: Path | None, dry_run: bool, as_json: bool) -> None:
    """Write a recipe as a Containerfile and a Singularity.def, for people without fairlead.

    Both install exactly the packages of the lock. Base image, mirror and Python index are arguments
    of the build; everything else they need is in the same folder.

    \b
    fairlead recipe render mpi-base -o for-colleagues
    podman build -t mpi-base for-colleagues
    """
    from fairlead_build.render.folder import render_recipe

    result = render_recipe(name, output, dry_run=dry_run)
    if as_json:
        print_json(
            "recipe-render",
            {
                "recipe": result.recipe,
                "folder": str(result.folder),
                "pinned": result.pinned,
                "dry_run": dry_run,
                "files": [{"path": f.path, "change": f.change} for f in result.files],
            },
        )
        return
    for file in result.files:
        click.echo(f"{file.change:<9}  {result.folder / file.path}")
    if not result.pinned:
        click.echo("versions are not pinned: the recipe has no lock", err=True)
