"""Releases that do not work together.

Sources: aws/aws-ofi-nccl#1055, ofiwg/libfabric#8963; its 1.16 over TCP: src/cm/nccl_ofi_cm_reqs.cpp of v1.16.3, and
tests/recorded/nccl/wire.json; NCCL 2.28: src/plugin/net.cc of v2.28.9-1, and tests/recorded/nccl/gpu.json.
"""

from __future__ import annotations

from collections.abc import Iterator

from fairlead.base.errors import Finding, error, warning
from fairlead.elf.facts import Elf
from fairlead.elf.reader import version_key
from fairlead.nccl.checks.model import Case, Check
from fairlead.nccl.model import HostNetwork
from fairlead.nccl.selection import NET
from fairlead.site.fabrics import FAST


class KnownFaults(Check):
    about = "no release of NCCL meets a plugin or provider with which it is known to hang or crash"

    def look(self, case: Case) -> Iterator[Finding]:
        if case.host is None:
            return
        plugin = case.host.plugin
        efa = case.ask.fabric == "efa" or "efa" in case.ask.rules.providers
        if case.library.version == "2.28.9" and version_key(plugin.release)[:2] == (1, 17) and efa:
            yield warning("nccl-fault-gin", library=case.library, plugin=plugin)
        alone = case.env.get("FI_PROVIDER") == "tcp" and plugin.release
        if alone and _libfabric_before((1, 8), case.host):  # libfabric 2 carries messages by it
            yield warning("nccl-fault-tcp", plugin=plugin)
        if libfabric := _unregistered(case, case.host):
            yield error("nccl-fault-registration", plugin=plugin, libfabric=libfabric)
        if _crashes(case):
            yield warning("nccl-fault-finalize", library=case.library, plugin=plugin)


def _crashes(case: Case) -> bool:
    """Whether NCCL ends its process, should the plugin find no network, which is not an error on a single node.

    2.28 calls a function that a plugin with an interface before v11 is only given once it has begun.
    """
    release = version_key(case.library.version)[:2]
    may_fail = not case.across and NET not in case.env
    return may_fail and release == (2, 28) and 0 < (case.plan.interface if case.plan else 0) < 11


def _unregistered(case: Case, host: HostNetwork) -> Elf | None:
    """The libfabric whose TCP providers register no memory, under a plugin that needs them to; newer ones do."""
    if version_key(host.plugin.release)[:2] != (1, 16) or case.ask.fabric in FAST:
        return None
    return _libfabric_before((1, 7), host)


def _libfabric_before(version: tuple[int, int], host: HostNetwork) -> Elf | None:
    """The libfabric behind the plugin, if it has no FABRIC_N as new as that."""
    libfabric = next((elf for elf in host.closure if elf.name.startswith("libfabric.so")), None)
    old = libfabric and version_key(libfabric.offers.get("FABRIC", "")) < version
    return libfabric if old else None


CHECK = KnownFaults()
