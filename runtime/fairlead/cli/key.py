"""``fairlead key``: keys that sign images, and which of them are trusted here."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

import click

from fairlead.base.errors import fail
from fairlead.cli.declare import FILE, JSON, PATH, argument, declared, option
from fairlead.cli.group import Group
from fairlead.cli.screen import answer, table
from fairlead.image import keys

EPILOG = """\b
Examples:
  fairlead key new
  fairlead key trust their-key.pub
  fairlead key list
"""


def passphrase(key: Path, new: bool = False) -> bytes:
    """The passphrase of ``key``, from a terminal or from the environment; never an option.

    Args:
        new: it is a new passphrase, so ask twice.
    Raises:
        FairleadError: exit code 2; there is no terminal to ask on, or it is empty.
    """
    given = os.environ.get("FAIRLEAD_KEY_PASSPHRASE")
    if given is None and sys.stdin.isatty():
        given = click.prompt(
            f"Passphrase of {key}", hide_input=True, confirmation_prompt=new, err=True
        )
    if not given:
        raise fail("key-passphrase-empty" if given == "" else "key-passphrase-no-terminal", key=key)
    return given.encode("utf-8", "surrogateescape")


@click.group(cls=Group, epilog=EPILOG)
def key() -> None:
    """Manage the keys that sign images, and which of them are trusted here.

    A key is a pair. The private half signs, is encrypted with a passphrase, and stays with its
    owner; the public half goes to everyone who checks signatures. No command here uses a network.
    """


@key.command(short_help="Make a key.")
@declared
def new(
    output: Path | None = option(
        "-o --output",
        "File for the private half; the public half goes next to it.  [default: the user's own key]",
        type=FILE,
    ),
    dry_run: bool = option("--dry-run", "Print which files would be made, and make none."),
    as_json: bool = JSON,
) -> None:
    """Make a key: an ed25519 pair, the private half encrypted with a passphrase.

    Asks for the passphrase, or takes it from $FAIRLEAD_KEY_PASSPHRASE. Signing needs it, and it
    cannot be recovered.

    \b
    fairlead key new
    fairlead key new -o /media/stick/site.key
    """
    path = (output or keys.default_key()).absolute()
    public = keys.public_file(path)
    keys.check_new(path)
    made = None if dry_run else keys.new_key(path, passphrase(path, new=True))
    files = {
        "private": path,
        "public": public,
        "dry_run": dry_run,
        "key": made.id if made else None,
    }
    if made is None:
        answer(as_json, "key", files, f"would make {path} and {public}")
    else:
        text = f"key {made.id}\nprivate half: {path}\npublic half:  {public}"
        answer(as_json, "key", files, text, f"next: fairlead key trust {shlex.quote(str(public))}")


@key.command("list", short_help="List the trusted keys.")
@declared
def list_keys(as_json: bool = JSON) -> None:
    """List the trusted keys, from the user's folder and the system's.

    \b
    fairlead key list
    """
    rows = [{"key": k.id, "path": k.path} for k in keys.trusted().values()]
    text = table([row.values() for row in rows], ("KEY", "FILE"))
    text = text if rows else "no key is trusted: `fairlead key trust FILE`"
    answer(as_json, "keys", {"keys": rows, "folders": keys.key_folders()}, text)


@key.command(short_help="Trust images signed with a key.")
@declared
def trust(
    file: Path = argument(type=PATH),
    dry_run: bool = option("--dry-run", "Print what would be trusted, and change nothing."),
    as_json: bool = JSON,
) -> None:
    """Trust images signed with the key whose public half is FILE.

    Get FILE, or at least its identifier, through a channel that you trust: anyone who can replace it
    decides which images you run.

    \b
    fairlead key trust site.key.pub
    """
    public = keys.read_public(file)
    path = keys.key_folders()[0] / f"{public.id}{keys.SUFFIX}" if dry_run else keys.trust(public)
    text = f"{'would trust' if dry_run else 'trusted'}: key {public.id} ({path})"
    answer(as_json, "key", {"key": public.id, "public": path, "dry_run": dry_run}, text)


@key.command(short_help="Stop trusting a key.")
@declared
def untrust(
    identifier: str = argument(metavar="KEY"),
    dry_run: bool = option("--dry-run", "Print what would be removed, and remove nothing."),
    as_json: bool = JSON,
) -> None:
    """Stop trusting KEY, given by the beginning of its identifier as in `fairlead key list`.

    \b
    fairlead key untrust 3f9a
    """
    path = keys.find_trusted(identifier)
    if not dry_run:
        keys.distrust(path)
    text = f"{'would remove' if dry_run else 'removed'}: key {path.stem} ({path})"
    answer(as_json, "key", {"key": path.stem, "public": path, "dry_run": dry_run}, text)
