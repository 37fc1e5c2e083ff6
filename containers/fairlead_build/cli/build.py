"""The verb ``fairlead build``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fairlead.base.errors import ExitCode
from fairlead.base.progress import human_bytes
from fairlead.cli.declare import FOLDER_HERE, JSON, OUTPUT, argument, declared, option
from fairlead.cli.screen import print_findings, print_json, progress, table

if TYPE_CHECKING:
    from fairlead_build.build import BuildResult
    from fairlead_build.check import CheckResult


def _format_names() -> tuple[str, ...]:
    from fairlead_build.formats.registry import FORMATS

    return FORMATS.names()


def _complete_formats(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    before, comma, last = incomplete.rpartition(",")
    return [before + comma + name for name in _format_names() if name.startswith(last)]


@click.command()
@declared
def build(
    name: str = argument(metavar="RECIPE"),
    formats: str = option(
        "--format F[,F]",
        "Any of {names}.",
        default="sif",
        names=_format_names,
        shell_complete=_complete_formats,
    ),
    output: Path | None = option(
        "-o --output", "Also copy the image to this file or into this folder.", type=OUTPUT
    ),
    archive: Path | None = option(
        "--archive",
        "Take files from this archive before any index. [default: $FAIRLEAD_ARCHIVE]",
        type=FOLDER_HERE,
    ),
    dry_run: bool = option("--dry-run", "Print the stages and what is cached; build nothing."),
    check: bool = option("--check", "Rebuild under other conditions; exit 1 if a bit differs."),
    as_json: bool = JSON,
) -> None:
    """Build an image from a recipe's lock.

    The image goes to the cache, where `fairlead run RECIPE` finds it. If interrupted, run it
    again to resume. An unchanged recipe is not rebuilt.

    \b
    fairlead build tensorflow
    fairlead build ./my-image -o /scratch/images
    fairlead build mpi-base --format sif,shifter,oci -o images/
    fairlead build mpi-base --archive /project/archive
    fairlead build mpi-base --check
    """
    from fairlead_build.build import build as make
    from fairlead_build.cache.store import Cache

    chosen = [part.strip() for part in formats.split(",")]
    cache, shown = Cache.default(archive), progress(as_json)
    result = make(name, formats=chosen, progress=shown, cache=cache, output=output, dry_run=dry_run)
    checked = None
    if check and not dry_run:
        from fairlead_build.check import check as build_again

        checked = build_again(name, chosen, result.outputs, cache, shown)
    if as_json:
        print_json("build", _document(result, checked, dry_run))
    else:
        print_findings(result.warnings)
        if dry_run:
            rows = [(s.name, "cached" if s.cached else "to do", s.detail) for s in result.stages]
            click.echo(table(rows, ("STAGE", "STATE", "WHAT")))
        else:
            _print(result, checked)
    if checked is not None and not checked.same:
        sys.exit(ExitCode.FAILED)


def _document(result: BuildResult, checked: CheckResult | None, dry_run: bool) -> dict[str, Any]:
    document = {
        "recipe": result.recipe,
        "key": result.key,
        "dry_run": dry_run,
        "cached": result.cached,
        "image": result.entry,
        "outputs": result.outputs,
        "stages": result.stages,
        "findings": result.warnings,
    }
    return document | ({"check": {"same": checked.same, **vars(checked)}} if checked else {})


def _print(result: BuildResult, checked: CheckResult | None) -> None:
    assert result.entry is not None
    for path in result.outputs:
        click.echo(str(path))
    state, size = "unchanged" if result.cached else "built", human_bytes(result.entry.bytes)
    digest = result.entry.squashfs_sha256
    click.echo(f"{state}: {result.recipe}, {size}, squashfs sha256 {digest}", err=True)
    if checked is None:
        return
    words = {True: "same", False: "differs"}
    rows = [(c.what, words[c.first == c.second], c.first) for c in checked.compared]
    click.echo(table(rows, ("FORMAT", "SECOND BUILD", "DIGEST")))
    click.echo(f"the second build ran as {checked.user}", err=True)
    if checked.left_out:
        click.echo(f"left out, a build by an ordinary user: {checked.left_out}", err=True)
    if not checked.same:
        click.echo(f"the first difference: {checked.difference or 'outside the files'}", err=True)
