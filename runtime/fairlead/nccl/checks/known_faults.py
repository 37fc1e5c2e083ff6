"""Releases that do not work together.

Sources: aws/aws-ofi-nccl#1055, ofiwg/libfabric#8963; its 1.16 over TCP: src/cm/nccl_ofi_cm_reqs.cpp of v1.16.3, and
tests/recorded/nccl/wire.json.
"""

from __future__ import annotations

from collections.abc import Iterator

from fairlead.base.errors import Finding, error, warning
from fairlead.elf.facts import Elf
from fairlead.elf.reader import version_key
from fairlead.nccl.checks.model import Case, Check
from fairlead.nccl.model import HostNetwork
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
        if libfabric := _unregistered(case, case.host):
            yield error("nccl-fault-registration", plugin=plugin, libfabric=libfabric)


def _unregistered(case: Case, host: HostNetwork) -> Elf | None:
    """The libfabric whose TCP providers register no memory, under a plugin that needs them to; newer ones do."""
    if version_key(host.plugin.release)[:2] != (1, 16) or case.ask.fabric in FAST:
        return None
    found = next((elf for elf in host.closure if elf.name.startswith("libfabric.so")), None)
    old = found and version_key(found.offers.get("FABRIC", "")) < (1, 7)
    return found if old else None


CHECK = KnownFaults()
