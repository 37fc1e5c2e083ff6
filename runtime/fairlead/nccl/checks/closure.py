"""A library that the plugin needs and nobody has: the loader refuses the plugin, and NCCL uses TCP."""

from __future__ import annotations

from collections.abc import Iterator

from fairlead.base.errors import Finding, error
from fairlead.nccl.checks.model import Case, Check


class Closure(Check):
    about = "every library behind the plugin is on the host"

    def look(self, case: Case) -> Iterator[Finding]:
        for name, by in case.host.missing if case.host else ():
            yield error("nccl-closure", name=name, by=by, plugin=case.host and case.host.plugin)


CHECK = Closure()
