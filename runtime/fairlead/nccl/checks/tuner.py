"""A tuner that the image's NCCL does not know: NCCL leaves it out silently, and takes its own choice of algorithms."""

from __future__ import annotations

from collections.abc import Iterator

from fairlead.base.errors import Finding, warning
from fairlead.nccl.checks.interface import versions
from fairlead.nccl.checks.model import Case, Check
from fairlead.nccl.interfaces import common_tuner, tuner_versions


class Tuner(Check):
    about = "the network's tuner exports a version of its interface that the image's NCCL knows"

    def look(self, case: Case) -> Iterator[Finding]:
        tuner = case.host.tuner if case.host else None
        known = tuner_versions(case.library)
        if tuner and known and not common_tuner(case.library, tuner):
            offered = versions(tuner.interfaces.get("tuner", ()))
            yield warning(
                "nccl-tuner",
                library=case.library,
                tuner=tuner,
                known=versions(known),
                offered=offered,
            )


CHECK = Tuner()
