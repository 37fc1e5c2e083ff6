"""The folder of tokens and runs: its owner's only, and one server's at a time."""

from __future__ import annotations

import fcntl
import os
import shlex
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fairlead.base.errors import fail, os_error_as
from fairlead.base.paths import data_dir


def opened(given: Path | None) -> Path:
    """The folder of runs and tokens, which only its owner may open.

    Raises:
        FairleadError: exit code 2; it cannot be made, or others may open it.
    """
    folder = (given or data_dir() / "serve").absolute()
    with os_error_as("serve-folder", folder=folder):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        state = folder.stat()
        if state.st_uid != os.geteuid() or stat.S_IMODE(state.st_mode) & 0o077:
            raise fail(
                "serve-folder-open", folder=folder, mode=f"{stat.S_IMODE(state.st_mode):04o}", owner=state.st_uid,
                quoted=shlex.quote(str(folder)),
            )  # fmt: skip
    return folder


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """One server at a time on a folder."""
    with os_error_as("serve-folder", folder=folder), (folder / ".server.lock").open("ab") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise fail("serve-busy", folder=folder) from None
        yield
