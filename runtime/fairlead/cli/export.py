"""``fairlead site export``: a site as configuration of other tools."""

from __future__ import annotations

from pathlib import Path

import click

from fairlead import export as exports
from fairlead.cli.lazy import LazyCommand, NameIn
from fairlead.cli.options import collected
from fairlead.cli.screen import json_option, print_json
from fairlead.export.gather import Wanted, gather

EPILOG = """\b
Targets:
{listing}

\b
Examples:
  fairlead site export --for shifter -o shifter-module
  fairlead site export --for podman-hpc --site login1.json -o modules.d
  fairlead site export --for lmod --image tensorflow -o modulefiles
  fairlead site export --for ce --image docker://registry.example.org/ml/train:1 --dry-run
"""


def _listing() -> str:
    names = exports.TARGETS.names()
    return "\n".join(f"  {name:<11} {exports.TARGETS.get(name).about}" for name in names)


@click.command(
    "export",
    cls=LazyCommand,
    listing=_listing,
    epilog=EPILOG,
    short_help="Export a site as configuration of other tools.",
)
@click.option(
    "--for",
    "target",
    required=True,
    type=NameIn(exports.TARGETS),
    metavar="TARGET",
    help="The tool to export for; see below.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    help="Output folder.  [default: TARGET-SITE, here]",
)
@click.option(
    "--site",
    metavar="NAME|FILE",
    help="Use this site profile, or this capture of another machine, instead of the detected one.",
)
@click.option(
    "--mpi",
    default="host",
    show_default=True,
    metavar="host|PREFIX",
    help="The machine's MPI to use: the preferred one, or the one installed in PREFIX.",
)
@click.option(
    "--image",
    default="",
    metavar="IMAGE",
    help="Export for this image; lmod, jupyter and reframe need one.  [default: for every image]",
)
@click.option(
    "--engine",
    metavar="KIND",
    help="The engine with which lmod, jupyter and reframe start the image.",
)
@click.option(
    "--program",
    "programs",
    multiple=True,
    metavar="NAME",
    help="A program of the image for lmod to offer.  [default: those that use MPI, python3]  Repeatable.",
)
@click.option(
    "--stage",
    "stage_root",
    default="/opt/fairlead/stage",
    show_default=True,
    metavar="DIR",
    help="Folder on the machine in which to stage its MPI.",
)
@click.option(
    "--form",
    default="copy",
    show_default=True,
    type=click.Choice(["copy", "bind"]),
    help="How Shifter passes the staged folder to a container.",
)
@click.option(
    "--name", default="", metavar="NAME", help="Name of the module, kernel or environment."
)
@click.option("--dry-run", is_flag=True, help="Print the files, and write nothing.")
@json_option
@collected(Wanted, "wanted")
def export_site(
    target: str, output: Path | None, wanted: Wanted, dry_run: bool, as_json: bool
) -> None:
    """Export what fairlead knows of a site as complete configuration of TARGET.

    Exports this machine, or with `--site FILE.json` the machine that was captured in FILE.json. With
    --image, the image's needs are included, and an export that would not work is refused.
    """
    if not wanted.stage_root.startswith("/"):
        raise click.UsageError(f"--stage {wanted.stage_root}: it must be an absolute path")
    facts = gather(wanted)
    exported = exports.export(target, facts)
    folder = output or Path(f"{target}-{facts.site.name}")
    paths = (
        [folder / file.path for file in exported] if dry_run else exports.write(exported, folder)
    )
    if as_json:
        files = [
            {
                "path": str(path),
                "mode": f"{file.mode:04o}",
                "goes": file.goes,
                **({"text": file.text} if dry_run else {}),
            }
            for path, file in zip(paths, exported, strict=True)
        ]
        print_json(
            "site-export",
            {"target": target, "site": facts.site.name, "dry_run": dry_run, "files": files},
        )
        return
    for path, file in zip(paths, exported, strict=True):
        if dry_run:
            click.echo(f"==> {path}  ({file.mode:04o}; {file.goes})\n{file.text}")
        else:
            click.echo(str(path))
            click.echo(f"  {file.goes}", err=True)
