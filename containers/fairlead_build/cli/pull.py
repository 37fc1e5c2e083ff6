"""The verb ``fairlead pull``."""

from __future__ import annotations

from pathlib import Path

import click

from fairlead.base.errors import warning
from fairlead.base.progress import human_bytes
from fairlead.cli.declare import JSON, OUTPUT, argument, declared, option
from fairlead.cli.screen import answer, print_findings, progress
from fairlead_build.cli.push import INSECURE


@click.command()
@declared
def pull(
    reference: str = argument(metavar="REF"),
    output: Path | None = option(
        "-o --output", "Also copy the image to this file or into this folder.", type=OUTPUT
    ),
    arch: str | None = option(
        "--arch ARCH", "The variant for this architecture. [default: this machine's]"
    ),
    layers: bool = option(
        "--layers", "Build the SIF from the layers, even where the registry has one."
    ),
    insecure: bool = INSECURE,
    dry_run: bool = option("--dry-run", "Show what would be transferred; write nothing."),
    as_json: bool = JSON,
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
    document = {
        "reference": result.reference,
        "digest": result.digest,
        "digest_before": result.digest_before,
        "moved": result.moved,
        "dry_run": dry_run,
        "cached": result.cached,
        "source": result.source,
        "bytes_transferred": 0 if dry_run else result.to_transfer,
        "bytes_to_transfer": result.to_transfer if dry_run else 0,
        "image": result.image,
        "output": result.output,
        "signed": result.signed,
    }
    if result.moved:
        print_findings([warning("tag-moved", result=result)])
    what = "its SIF" if result.source == "sif" else "a SIF made of its layers"
    if dry_run:
        todo = f"{human_bytes(result.to_transfer)} to transfer" if not result.cached else "here"
        answer(as_json, "pull", document, f"{result.reference}  {result.digest}  {what}, {todo}")
        return
    assert result.image is not None
    state = "unchanged" if result.cached else "pulled"
    what += ", with a signature" if result.signed else ""
    size = human_bytes(result.image.bytes)
    more = f"{state}: {result.reference}, {what}, {size}, digest {result.digest}"
    answer(as_json, "pull", document, str(result.output or result.image.path), more)
