"""A plugin for another processor: the loader refuses it, and NCCL uses TCP."""

from __future__ import annotations

from collections.abc import Iterator

from fairlead.base.errors import Finding, error
from fairlead.nccl.checks.model import Case, Check


class Architecture(Check):
    about = "plugin and NCCL are for the same processor architecture"

    def look(self, case: Case) -> Iterator[Finding]:
        for elf in case.host.parts if case.host else ():
            if elf.machine != case.library.elf.machine:
                machine = case.library.elf.machine
                yield error("nccl-architecture", elf=elf, machine=machine, library=case.library)
                return


CHECK = Architecture()
