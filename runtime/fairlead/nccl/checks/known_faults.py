"""Releases that do not work together. Sources: aws/aws-ofi-nccl#1055, ofiwg/libfabric#8963."""

from __future__ import annotations

from collections.abc import Iterator

from fairlead.base.errors import Finding, warning
from fairlead.elf.reader import version_key
from fairlead.nccl.checks.model import Case, Check


class KnownFaults(Check):
    about = "no release of NCCL meets a plugin or provider with which it is known to hang"

    def look(self, case: Case) -> Iterator[Finding]:
        if case.host is None:
            return
        plugin = case.host.plugin
        efa = case.ask.fabric == "efa" or "efa" in case.ask.rules.providers
        if case.library.version == "2.28.9" and version_key(plugin.release)[:2] == (1, 17) and efa:
            yield warning("nccl-fault-gin", library=case.library, plugin=plugin)
        if case.env.get("FI_PROVIDER") == "tcp" and plugin.release:
            yield warning("nccl-fault-tcp", plugin=plugin)


CHECK = KnownFaults()
