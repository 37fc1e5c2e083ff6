"""A plugin for another major version of CUDA or ROCm than the image's: it finds no run time, or the wrong one."""

from __future__ import annotations

from collections.abc import Iterator

from fairlead.base.errors import Finding, error
from fairlead.nccl.checks.model import Case, Check
from fairlead.nccl.choose import same_runtime


class Runtime(Check):
    about = "the plugin is built for the image's major version of CUDA or ROCm"

    def look(self, case: Case) -> Iterator[Finding]:
        plugin = case.host.plugin if case.host else None
        if plugin and not same_runtime(plugin.runtime, case.library.runtime):
            major = case.library.runtime.partition(".")[0]
            yield error("nccl-runtime", plugin=plugin, library=case.library, major=major)


CHECK = Runtime()
