"""The verb ``fairlead build``."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fairlead.base.errors import ExitCode
from fairlead.base.progress import human_bytes
from fairlead.cli.declare import LazyOption
from fairlead.cli.screen import (
    json_option,
    print_findings,
    print_json,
    progress,
    table,
)

if TYPE_CHECKING:
    from fairlead_build.build import BuildResult
    from fairlead_build.check import CheckResult


def _format_names() -> tuple[str, ...]:
    from fairlead_build.formats.registry import FORMATS

    return FORMATS.names()


def _complete_formats(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    before, comma, last = incomplete.rpartition(",")
    return [before + comma + name for name in _format_names() if name.startswith(last)]


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("name", metavar="RECIPE")
@click.option(
    "--format",
    "formats",
    cls=LazyOption,
    names=_format_names,
    default="sif",
    metavar="F[,F]",
    shell_complete=_complete_formats,
    help="Any of {names}.  [default: sif]",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="Also copy the image to this file or into this folder.",
)
@click.option(
    "--archive",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    help="Take files from this archive before any index. [default: $FAIRLEAD_ARCHIVE]",
)
@click.option("--dry-run", is_flag=True, help="Print the stages and what is cached; build nothing.")
@click.option(
    "--check", is_flag=True, help="Rebuild under other conditions; exit 1 if a bit differs."
)
@json_option
def build(
    name: str,
    formats: str,
    output: Path | None,
    archive: Path | None,
    dry_run: bool,
    check: bool,
    as_json: bool,
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
    if result.warnings and not as_json:
        print_findings(result.warnings)
    if as_json:
        _print_json(result, checked, dry_run)
    elif dry_run:
        rows = [(s.name, "cached" if s.cached else "to do", s.detail) for s in result.stages]
        click.echo(table(rows, ("STAGE", "STATE", "WHAT")))
    else:
        _print(result, checked)
    if checked is not None and not checked.same:
        sys.exit(ExitCode.FAILED)


def _print_json(result: BuildResult, checked: CheckResult | None, dry_run: bool) -> None:
    payload: dict[str, Any] = {
        "recipe": result.recipe,
        "key": result.key,
        "dry_run": dry_run,
        "cached": result.cached,
        "image": asdict(result.entry) if result.entry else None,
        "outputs": [str(path) for path in result.outputs],
        "stages": [asdict(stage) for stage in result.stages],
        "findings": [finding.to_json() for finding in result.warnings],
    }
    if checked is not None:
        payload["check"] = {"same": checked.same, **asdict(checked)}
    print_json("build", payload)


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
