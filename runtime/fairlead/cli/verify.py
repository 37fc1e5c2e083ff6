"""``fairlead verify``: verifies who signed an image."""

from __future__ import annotations

import os
from pathlib import Path

import click

from fairlead.cli import show
from fairlead.cli.declare import JSON, declared, option
from fairlead.cli.screen import answer, progress
from fairlead.image import keys, signature

EPILOG = """\b
Examples:
  fairlead verify tensorflow
  fairlead verify ./app.sif --key their-key.pub
"""


@click.command(epilog=EPILOG)
@declared
def verify(
    image: str,
    key: Path | None = option(
        "--key PUB", "Accept only a signature by this public key, instead of the trusted keys."
    ),
    as_json: bool = JSON,
) -> None:
    """Verify who signed IMAGE, and that no byte has changed since.

    Exits with 0 if a trusted key has signed exactly this image, and with 1 otherwise.
    """
    bars = progress(as_json)
    path = signature.located(image, os.environ, bars)
    named = keys.read_public(key) if key else None
    verified = signature.verify(path, {named.id: named} if named else keys.trusted(), bars)
    document = {"image": path, "signature": show.signature_json(verified)}
    text = f"{path}: {show.signature_line(verified)}; no byte has changed since"
    answer(as_json, "verify", document, text)
