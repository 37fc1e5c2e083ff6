"""FI_MR_CACHE_MONITOR=memhooks together with NCCL or RCCL: a deadlock. Source: OLCF, PyTorch on Frontier."""

from __future__ import annotations

from collections.abc import Iterator

from fairlead.base.errors import Finding, error
from fairlead.nccl.checks.model import Case, Check

VARIABLE = "FI_MR_CACHE_MONITOR"


class MemoryMonitor(Check):
    about = "libfabric does not watch memory by hooks in the allocator"

    def look(self, case: Case) -> Iterator[Finding]:
        if case.host and case.env.get(VARIABLE, "").lower() == "memhooks":
            wish = case.ask.rules.env.get(VARIABLE, "userfaultfd")
            wish = wish if wish != "memhooks" else "userfaultfd"
            yield error("nccl-memhooks", library=case.library, variable=VARIABLE, wish=wish)


CHECK = MemoryMonitor()
