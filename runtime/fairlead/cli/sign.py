"""``fairlead sign``: signs an image with an offline key."""

from __future__ import annotations

import os
from pathlib import Path

import click

from fairlead.base.progress import human_bytes
from fairlead.cli.key import passphrase
from fairlead.cli.screen import json_option, print_json, progress
from fairlead.image import keys, signature

EPILOG = """\b
Examples:
  fairlead sign tensorflow
  fairlead sign ./app.sif --key /media/stick/site.key
"""


@click.command(epilog=EPILOG, short_help="Sign an image with an offline key.")
@click.argument("image")
@click.option(
    "--key",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Private key.  [default: the one made by `fairlead key new`]",
)
@click.option("--dry-run", is_flag=True, help="Print what would be signed, and write nothing.")
@json_option
def sign(image: str, key: Path | None, dry_run: bool, as_json: bool) -> None:
    """Sign every byte of IMAGE as it is now, by its sha256.

    Writes the signature to IMAGE.sig, next to the image; keep the two together. IMAGE is a SIF, a
    squashfs (with its .meta, if it has one), an OCI layout, or the name of a built recipe.
    """
    bars = progress(as_json)
    path = signature.located(image, os.environ, bars)
    file = signature.signature_file(path)
    if dry_run:
        statement = signature.statement_of(path, bars)
    else:
        source = (key or keys.default_key()).absolute()
        opened = keys.open_private(source, lambda: passphrase(source))
        statement = signature.sign(path, opened, progress=bars)
    if as_json:
        document = {"image": path, "signature": file, "dry_run": dry_run}
        print_json("sign", {**document, "signed": statement})
        return
    for part in statement.files:
        name = path if part.name == "image" else part.name
        click.echo(f"{part.sha256}  {name}  {human_bytes(part.size)}")
    click.echo(f"would write {file}" if dry_run else f"signed with key {statement.key}: {file}")
