"""The verb ``fairlead pull``."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from fairlead.base.progress import human_bytes
from fairlead.cli.screen import json_option, print_json, progress


@click.command(short_help="Pull an image from a registry, as a SIF.")
@click.argument("reference", metavar="REF")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="Also copy the image to this file or into this folder.",
)
@click.option(
    "--arch", metavar="ARCH", help="The variant for this architecture. [default: this machine's]"
)
@click.option(
    "--layers", is_flag=True, help="Build the SIF from the layers, even where the registry has one."
)
@click.option(
    "--insecure", is_flag=True, help="Allow plain HTTP where the host does not speak HTTPS."
)
@click.option("--dry-run", is_flag=True, help="Show what would be transferred; write nothing.")
@json_option
def pull(
    reference: str,
    output: Path | None,
    arch: str | None,
    layers: bool,
    insecure: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Pull an image from a registry.

    The image goes to the cache, where `fairlead run REF` and other commands find it. Images
    pushed by fairlead arrive as the SIF that was built, with the same bits; any other image is
    converted to a SIF from its layers. If interrupted, run it again to resume. Logins are those
    of `podman login`, `docker login` and `apptainer registry login`.

    \b
    fairlead pull docker://registry.example.org/ml/mpi-base:1
    fairlead pull docker://docker.io/library/debian:12 -o debian.sif
    fairlead pull oras://registry.example.org/ml/mpi-base:1-sif --dry-run
    """
    from fairlead_build.distribution.pull import PullOptions
    from fairlead_build.distribution.pull import pull as fetch

    options = PullOptions(output, arch or "", layers, insecure, dry_run)
    result = fetch(reference, options, progress=progress(as_json))
    if as_json:
        payload = {
            "reference": result.reference,
            "digest": result.digest,
            "dry_run": dry_run,
            "cached": result.cached,
            "source": result.source,
            "bytes_transferred": 0 if dry_run else result.to_transfer,
            "bytes_to_transfer": result.to_transfer if dry_run else 0,
            "image": asdict(result.image) if result.image else None,
            "output": str(result.output) if result.output else None,
            "signed": result.signed,
        }
        print_json("pull", payload)
        return
    what = "its SIF" if result.source == "sif" else "a SIF made of its layers"
    if dry_run:
        todo = f"{human_bytes(result.to_transfer)} to transfer" if not result.cached else "here"
        click.echo(f"{result.reference}  {result.digest}  {what}, {todo}")
        return
    assert result.image is not None
    click.echo(str(result.output or result.image.path))
    state = "unchanged" if result.cached else "pulled"
    size = human_bytes(result.image.bytes)
    signed = ", with a signature" if result.signed else ""
    click.echo(
        f"{state}: {result.reference}, {what}{signed}, {size}, digest {result.digest}", err=True
    )
