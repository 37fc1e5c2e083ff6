"""``fairlead sign``: signs an image, or the record of a run, with an offline key."""

from __future__ import annotations

import os
from pathlib import Path

import click

from fairlead.base.progress import human_bytes
from fairlead.cli.declare import JSON, declared, option
from fairlead.cli.key import passphrase
from fairlead.cli.screen import answer, progress
from fairlead.image import keys, signature
from fairlead.record import folder
from fairlead.record.statement import ENVELOPE

EPILOG = """\b
Examples:
  fairlead sign tensorflow
  fairlead sign ./app.sif --key /media/stick/site.key
  fairlead sign run-1
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
    squashfs (with its .meta, if it has one), an OCI layout, or the name of a built recipe; or a record of
    `fairlead run --record`, which gets its signature into its folder.
    """
    if folder.is_record(Path(image)):
        _sign_record(Path(image).absolute(), key, dry_run, as_json)
        return
    bars = progress(as_json)
    path = signature.located(image, os.environ, bars)
    file = signature.signature_file(path)
    if dry_run:
        statement = signature.statement_of(path, bars)
    else:
        statement = signature.sign(path, _opened(key), progress=bars)
    lines = [
        f"{p.sha256}  {path if p.name == 'image' else p.name}  {human_bytes(p.size)}"
        for p in statement.files
    ]
    lines.append(f"would write {file}" if dry_run else f"signed with key {statement.key}: {file}")
    document = {"image": path, "signature": file, "dry_run": dry_run, "signed": statement}
    answer(as_json, "sign", document, "\n".join(lines))


def _opened(key: Path | None) -> keys.PrivateKey:
    source = (key or keys.default_key()).absolute()
    return keys.open_private(source, lambda: passphrase(source))


def _sign_record(record: Path, key: Path | None, dry_run: bool, as_json: bool) -> None:
    """Sign a record; print where."""
    file, identifier = record / ENVELOPE, None
    if dry_run:
        folder.read(record, None)
    else:
        opened = _opened(key)
        folder.sign(record, opened)
        identifier = opened.public.id
    text = f"signed with key {identifier}: {file}" if identifier else f"would write {file}"
    document = {"record": record, "signature": file, "dry_run": dry_run, "key": identifier}
    answer(as_json, "sign-record", document, text)
