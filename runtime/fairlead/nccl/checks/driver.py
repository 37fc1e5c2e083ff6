"""A driver older than the image's CUDA: no communicator can be made.

Source: NVIDIA, CUDA Compatibility, "minor version compatibility"; the oldest driver for Linux of each major version.
"""

from __future__ import annotations

from collections.abc import Iterator

from fairlead.base.errors import Finding, error, warning
from fairlead.elf.reader import version_key
from fairlead.nccl.checks.model import Case, Check

_OLDEST = {"cuda11": "450.80.02", "cuda12": "525.60.13", "cuda13": "580.65.06"}


class Driver(Check):
    about = "the driver is new enough for the image's CUDA"

    def look(self, case: Case) -> Iterator[Finding]:
        there = case.ask.host
        oldest = _OLDEST.get(case.library.runtime.partition(".")[0], "")
        if there is None or there.gpu != "nvidia" or not there.driver or not oldest:
            return
        if version_key(there.driver) >= version_key(oldest):
            return
        given = {"library": case.library, "driver": there.driver, "oldest": oldest}
        if case.facts.drivers:
            yield warning("nccl-driver-compatibility", path=case.facts.drivers[0], **given)
        else:
            yield error("nccl-driver", **given)


CHECK = Driver()
