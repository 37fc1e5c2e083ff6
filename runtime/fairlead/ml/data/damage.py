"""The exception for a damaged file, by which skipping recognises it."""

from __future__ import annotations

import shlex
from pathlib import Path

from fairlead.base.errors import FairleadError, error


class DamagedFile(FairleadError):
    """A file is truncated, altered, or of another kind than its name says.

    Attributes:
        path: the file.
        why: the damage, with its record and byte where they are known.
    """

    def __init__(self, path: Path, why: str, kind: str = "data"):
        self.path, self.why = path, why
        super().__init__(
            error("data-damaged", path=path, kind=kind, why=why, quoted_path=shlex.quote(str(path)))
        )
