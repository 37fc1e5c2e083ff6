"""``fairlead sign``: signs an image with an offline key."""

from __future__ import annotations

import os
from pathlib import Path

import click

from fairlead.base.progress import human_bytes
from fairlead.cli.declare import JSON, declared, option
from fairlead.cli.key import passphrase
from fairlead.cli.screen import answer, progress
from fairlead.image import keys, signature

EPILOG = """\b
Examples:
  fairlead sign tensorflow
  fairlead sign ./app.sif --key /media/stick/site.key
"""


@click.command(epilog=EPILOG)
@declared
def sign(
    image: str,
    key: Path | None = option(
        "--key FILE", "Private key.  [default: the one made by `fairlead key new`]"
    ),
    dry_run: bool = option("--dry-run", "Print what would be signed, and write nothing."),
    as_json: bool = JSON,
) -> None:
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
    lines = [
        f"{p.sha256}  {path if p.name == 'image' else p.name}  {human_bytes(p.size)}"
        for p in statement.files
    ]
    lines.append(f"would write {file}" if dry_run else f"signed with key {statement.key}: {file}")
    document = {"image": path, "signature": file, "dry_run": dry_run, "signed": statement}
    answer(as_json, "sign", document, "\n".join(lines))
