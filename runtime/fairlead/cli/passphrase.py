"""Asks for the passphrase of a key: on a terminal, or from the environment; never as an option."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from fairlead.base.errors import fail


def passphrase(key: Path, new: bool = False) -> bytes:
    """The passphrase of ``key``.

    Args:
        new: it is a new passphrase, so ask twice.
    Raises:
        FairleadError: exit code 2; there is nobody to ask, or it is empty.
    """
    given = os.environ.get("FAIRLEAD_KEY_PASSPHRASE")
    if given is None and sys.stdin.isatty():
        given = click.prompt(
            f"Passphrase of {key}", hide_input=True, confirmation_prompt=new, err=True
        )
    if not given:
        raise fail("key-passphrase-empty" if given == "" else "key-passphrase-no-terminal", key=key)
    return given.encode("utf-8", "surrogateescape")
