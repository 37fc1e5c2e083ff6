"""A plugin for another major version of CUDA or ROCm than the image's: it finds no run time, or the wrong one."""

from __future__ import annotations

from collections.abc import Iterator

from fairlead.base.errors import Finding, error
from fairlead.elf.facts import ImageFacts, NetPlugin
from fairlead.elf.nccl_symbols import is_run_time
from fairlead.nccl.checks.model import Case, Check
from fairlead.nccl.choose import same_runtime


class Runtime(Check):
    about = "the plugin is built for the image's major version of CUDA or ROCm"

    def look(self, case: Case) -> Iterator[Finding]:
        plugin = case.host.plugin if case.host else None
        if plugin and not same_runtime(plugin.runtime, case.library.runtime):
            major = case.library.runtime.partition(".")[0]
            yield error("nccl-runtime", plugin=plugin, library=case.library, major=major)
        elif plugin and (name := _lacks(plugin, case.facts)):
            yield error("nccl-runtime-absent", plugin=plugin, name=name)


def _lacks(plugin: NetPlugin, facts: ImageFacts) -> str:
    """A run time that the plugin needs or opens, and the image has not; empty if there is none."""
    for name in (*plugin.elf.needed, *plugin.opens):
        if is_run_time(name) and not any(have.startswith(name) for have in facts.gpu_libraries):
            return name
    return ""


CHECK = Runtime()
