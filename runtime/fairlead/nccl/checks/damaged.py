"""A file of the host that has a plugin's name and cannot be read: cut short by a full disk, or no library."""

from __future__ import annotations

from collections.abc import Iterator

from fairlead.base.errors import Finding, warning
from fairlead.nccl.checks.model import Case, Check


class Damaged(Check):
    about = "every plugin of the host can be read"

    def look(self, case: Case) -> Iterator[Finding]:
        for path, why in case.ask.host.damaged if case.ask.host else ():
            yield warning("nccl-damaged", path=path, why=why)


CHECK = Damaged()
