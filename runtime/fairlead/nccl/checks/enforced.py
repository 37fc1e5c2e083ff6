"""A plugin that cannot be enforced: should it fail, NCCL uses TCP and says so in its log only."""

from __future__ import annotations

from collections.abc import Iterator

from fairlead.base.errors import Finding, error, warning
from fairlead.nccl.checks.model import Case, Check
from fairlead.nccl.selection import NET


class Enforced(Check):
    about = "a plugin that fails ends the run, and never leads to TCP"

    def look(self, case: Case) -> Iterator[Finding]:
        if case.plan is None:
            return
        if case.loader and case.decision.by_name:
            yield error("nccl-loader", library=case.library)
        if not case.across:
            return
        for name, why in case.decision.left_out:
            if name == NET:
                yield warning("nccl-not-enforced", library=case.library, variable=name, why=why)


CHECK = Enforced()
