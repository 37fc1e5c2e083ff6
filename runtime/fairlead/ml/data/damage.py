"""What is said of a file that is not whole: one exception, which skipping can catch by its type."""

from __future__ import annotations

import shlex
from pathlib import Path

from fairlead.base.errors import FairleadError, error


class DamagedFile(FairleadError):
    """A file is truncated, altered, or of another kind than its name says.

    Attributes:
        path: the file.
        why: the record and the byte, where they are known, and what is wrong there.
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
