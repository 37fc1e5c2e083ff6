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
            error(
                f"{path.name} is not a whole {kind} file",
                where=str(path),
                why=why,
                remedy=f"rm {shlex.quote(str(path))}; generated files come back with what made them,"
                " others must be copied again",
                check="data-damaged",
            )
        )
