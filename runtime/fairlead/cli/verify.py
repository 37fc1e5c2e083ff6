"""``fairlead verify``: verifies who signed an image, or the record of a run."""

from __future__ import annotations

import os
from pathlib import Path

import click

from fairlead.base.errors import fail
from fairlead.cli import show
from fairlead.cli.declare import JSON, declared, option
from fairlead.cli.screen import answer, progress
from fairlead.image import keys, signature
from fairlead.record import folder

EPILOG = """\b
Examples:
  fairlead verify tensorflow
  fairlead verify ./app.sif --key their-key.pub
  fairlead verify run-1
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
    """Verify who signed IMAGE, and that no byte has changed since. It may be a record of a run, too.

    Exits with 0 if a trusted key has signed exactly this image, and with 1 otherwise.
    """
    bars = progress(as_json)
    named = keys.read_public(key) if key else None
    accepted = {named.id: named} if named else keys.trusted()
    if folder.is_record(Path(image)):
        opened = folder.read(Path(image).absolute(), accepted)
        if not opened.key:
            raise fail("record-unsigned", folder=opened.path)
        text = f"{opened.path}: signed with key {opened.key}; no byte has changed since"
        answer(as_json, "verify-record", {"record": opened.path, "key": opened.key}, text)
        return
    path = signature.located(image, os.environ, bars)
    verified = signature.verify(path, accepted, bars)
    document = {"image": path, "signature": show.signature_json(verified)}
    text = f"{path}: {show.signature_line(verified)}; no byte has changed since"
    answer(as_json, "verify", document, text)
