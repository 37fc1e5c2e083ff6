"""FI_CXI_RDZV_PROTO=alt_read has no effect unless the job asks the network for it. Source: HPE, shs-ccl-docs."""

from __future__ import annotations

from collections.abc import Iterator

from fairlead.base.errors import Finding, warning
from fairlead.nccl.checks.model import Case, Check

VARIABLE, OPTION = "FI_CXI_RDZV_PROTO", "disable_rdzv_get"


class JobNetwork(Check):
    about = "the job has the network option that the rendezvous protocol needs"

    def look(self, case: Case) -> Iterator[Finding]:
        if not case.host or case.env.get(VARIABLE) != "alt_read":
            return
        if not any(OPTION in word for word in case.ask.job):
            yield warning("nccl-job-network", variable=VARIABLE, option=OPTION)


CHECK = JobNetwork()
