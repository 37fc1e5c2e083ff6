"""Releases that do not work together.

Sources: aws/aws-ofi-nccl#1055, ofiwg/libfabric#8963; its 1.16 over TCP: src/cm/nccl_ofi_cm_reqs.cpp of v1.16.3, and
tests/recorded/nccl/wire.json.
"""

from __future__ import annotations

from collections.abc import Iterator

from fairlead.base.errors import Finding, error, warning
from fairlead.elf.reader import version_key
from fairlead.nccl.checks.model import Case, Check
from fairlead.site.fabrics import FAST


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
        libfabric = next((e for e in case.host.closure if e.name.startswith("libfabric.so")), None)
        if version_key(plugin.release)[:2] == (1, 16) and case.ask.fabric not in FAST and libfabric:
            # Newer ones register memory for TCP as well.
            if version_key(libfabric.offers.get("FABRIC", "")) < (1, 7):
                yield error("nccl-fault-registration", plugin=plugin, libfabric=libfabric)


CHECK = KnownFaults()
