"""``fairlead site export``: a site as configuration of other tools."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click

from fairlead import export as exports
from fairlead.base.suggest import suggest
from fairlead.cli.declare import FOLDER, JSON, SITE, declared, option
from fairlead.cli.screen import print_json
from fairlead.export.gather import Wanted, gather, placed

EPILOG = """\b
Targets:
{listing}

\b
Examples:
  fairlead site export --for shifter -o shifter-module
  fairlead site export --for podman-hpc --site login1.json -o modules.d
  fairlead site export --for lmod --image tensorflow -o modulefiles
  fairlead site export --for ce --image docker://registry.example.org/ml/train:1 --dry-run
  fairlead site export --for cdi --nccl -o cdi
"""


class _ExportCommand(click.Command):
    """``fairlead site export``, whose help lists the targets; only help looks for them."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        listing = "\n".join(
            f"  {name:<11} {exports.TARGETS.get(name).about}" for name in exports.TARGETS.names()
        )
        self.epilog = EPILOG.format(listing=listing)
        super().format_epilog(ctx, formatter)


def _target(context: click.Context, option: click.Parameter, value: str) -> str:
    """The name of a target; unknown ones are refused with the nearest."""
    if value not in exports.TARGETS:
        nearest = suggest(value, exports.TARGETS.names())
        raise click.BadParameter(f"{value!r} is not known. {nearest}")
    return value


def _complete(context: click.Context, option: click.Parameter, incomplete: str) -> list[str]:
    return [name for name in exports.TARGETS.names() if name.startswith(incomplete)]


@dataclass(frozen=True, kw_only=True)
class ExportFlags(Wanted):
    """What to export, by options."""

    site: str | None = SITE
    mpi: str = option(
        "--mpi host|PREFIX",
        "The machine's MPI to use: the preferred one, or the one installed in PREFIX.",
        default="host",
    )
    image: str = option(
        "--image IMAGE",
        "Export for this image; lmod, jupyter, jupyterhub and reframe need one.  [default: for every image]",
    )
    engine: str | None = option(
        "--engine KIND",
        "The engine with which lmod, jupyter, jupyterhub and reframe start the image.",
    )
    programs: tuple[str, ...] = option(
        "--program NAME",
        "A program of the image for lmod to offer.  [default: those that use MPI, python3]  Repeatable.",
    )
    stage_root: str = option(
        "--stage DIR",
        "Folder on the machine in which to stage its MPI.",
        default="/opt/fairlead/stage",
    )
    form: str = option(
        "--form",
        "How Shifter passes the staged folder to a container.",
        default="copy",
        type=click.Choice(["copy", "bind"]),
    )
    name: str = option("--name NAME", "Name of the module, kernel or environment.")
    private: bool = option(
        "--private", "Export for yourself alone; it may name what other users cannot read."
    )
    nccl: bool = option("--nccl", "Export NCCL's network plugin of the machine instead of its MPI.")
    dry_run: bool = option("--dry-run", "Print the files, and write nothing.")
    as_json: bool = JSON


@click.command(
    "export",
    cls=_ExportCommand,
    epilog=EPILOG,
    short_help="Export a site as configuration of other tools.",
)
@declared
def export_site(
    target: str = option(
        "--for TARGET",
        "The tool to export for; see below.",
        required=True,
        callback=_target,
        shell_complete=_complete,
    ),
    output: Path | None = option(
        "-o --output", "Output folder.  [default: TARGET-SITE, here]", type=FOLDER
    ),
    *,
    flags: ExportFlags,
) -> None:
    """Export what fairlead knows of a site as complete configuration of TARGET.

    Exports this machine, or with `--site FILE.json` the machine that was captured in FILE.json. With
    --image, the image's needs are included, and an export that would not work is refused. With
    --nccl, the export carries NCCL's network plugin with the site's variables for it.
    """
    if not flags.stage_root.startswith("/"):
        raise click.UsageError(f"--stage {flags.stage_root}: it must be an absolute path")
    facts = gather(flags)
    folder = output or Path(f"{target}-{facts.site.name}")
    exported = exports.export(target, placed(facts, folder))
    paths = (
        [folder / file.path for file in exported]
        if flags.dry_run
        else exports.write(exported, folder)
    )
    if flags.as_json:
        files = [
            {"path": path, "mode": f"{file.mode:04o}", "goes": file.goes}
            | ({"text": file.text} if flags.dry_run else {})
            for path, file in zip(paths, exported, strict=True)
        ]
        document = {"target": target, "site": facts.site.name, "dry_run": flags.dry_run}
        print_json("site-export", {**document, "files": files})
        return
    for path, file in zip(paths, exported, strict=True):
        if flags.dry_run:
            click.echo(f"==> {path}  ({file.mode:04o}; {file.goes})\n{file.text}")
        else:
            click.echo(str(path))
            click.echo(f"  {file.goes}", err=True)
