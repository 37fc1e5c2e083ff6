"""MPI that sends from GPU to GPU next to NCCL: both may wait for each other. Source: CSCS, communication/nccl."""

from __future__ import annotations

from collections.abc import Iterator

from fairlead.base.errors import Finding, warning
from fairlead.nccl.checks.model import Case, Check


class GpuMpi(Check):
    about = "MPI does not use the GPUs next to NCCL"

    def look(self, case: Case) -> Iterator[Finding]:
        if case.host and case.ask.gpu_mpi:
            yield warning("nccl-gpu-mpi", library=case.library)


CHECK = GpuMpi()
