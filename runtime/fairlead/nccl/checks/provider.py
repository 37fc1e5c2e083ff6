"""A provider of libfabric that means TCP, on a machine with a faster network."""

from __future__ import annotations

from collections.abc import Iterator

from fairlead.base.errors import Finding, error, warning
from fairlead.nccl.checks.model import Case, Check
from fairlead.nccl.model import HostNetwork, NcclRules
from fairlead.site.fabrics import FAST

VARIABLE = "FI_PROVIDER"
_TCP = frozenset({"tcp", "sockets", "udp", "net"})
# The provider without which a network of this kind is not used.
_OF_FABRIC = {"slingshot": ("cxi",), "efa": ("efa",), "omni-path": ("psm2", "psm3", "opx")}


class Provider(Check):
    about = "libfabric has and may use a provider of the network between the nodes"

    def look(self, case: Case) -> Iterator[Finding]:
        if case.host is None or case.ask.fabric not in FAST:
            return
        names = wanted_of(case.ask.fabric, case.ask.rules)
        value = case.env.get(VARIABLE, "")
        asked = {name.strip().partition(";")[0] for name in value.split(",")} - {""}
        given = {"fabric": case.ask.fabric, "site": case.site, "wanted": " or ".join(names)}
        if asked and not value.startswith("^") and asked <= _TCP.difference(names):
            yield error("nccl-provider-tcp", variable=VARIABLE, value=value, **given)
        libfabric, has = _used(case, case.host)
        if not names or names == ("tcp",):
            return
        if not has:
            yield warning("nccl-provider-unknown", path=libfabric, **given)
        elif not set(names).intersection(has):
            yield error("nccl-provider-absent", path=libfabric, has=", ".join(has), **given)


def wanted_of(fabric: str, rules: NcclRules) -> tuple[str, ...]:
    """The providers that mean a kind of network, without layers: by the profile, else by the kind."""
    accepted = rules.providers or _OF_FABRIC.get(fabric, ())
    return tuple(dict.fromkeys(name.partition(";")[0] for name in accepted))


def _used(case: Case, host: HostNetwork) -> tuple[str, tuple[str, ...]]:
    """The libfabric under the plugin, and its providers: a process maps one, which may be that of the MPI."""
    own = next((e for e in host.closure if e.name.startswith("libfabric.so")), host.plugin.elf)
    other = case.of_mpi.get(own.name)
    if other is None or other.path == own.path:
        return own.path, host.providers
    return other.path, case.ask.mpi_providers


CHECK = Provider()
