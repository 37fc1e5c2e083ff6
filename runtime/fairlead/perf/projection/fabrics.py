"""What is known of networks: bandwidth and latency of one card, each with its source, or nothing.

A number without a source is None, and a projection then asks for it: ``--bandwidth``, ``--latency``. What a
site itself says in ``[[performance]]`` of its profile comes before its family's (:func:`of_site`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from fairlead.base.errors import fail
from fairlead.base.suggest import suggest
from fairlead.site.model import Site


@dataclass(frozen=True)
class Known:
    """A number with its source.

    Attributes:
        value: the geometric middle.
        factor: 95 % of what is likely lies between ``value / factor`` and ``value * factor``.
    """

    value: float
    factor: float
    source: str

    def draw(self, random: np.random.Generator) -> float:
        """A value that could be the true one, lognormal."""
        return self.value * math.exp(math.log(self.factor) / 1.96 * random.standard_normal())


@dataclass(frozen=True)
class Network:
    """Of one card of a node.

    Attributes:
        bandwidth: bytes a second, one way.
        latency_s: seconds of a small message from node to node, as MPI sees it.
    """

    name: str
    bandwidth: Known | None
    latency_s: Known | None

    def cards(self, count: int) -> Network:
        """Of a node with several: as many times the bandwidth."""
        if self.bandwidth is None or count == 1:
            return self
        more = replace(self.bandwidth, value=self.bandwidth.value * count)
        return replace(self, bandwidth=replace(more, source=f"{count} x {more.source}"))


_LINE = "the line's rate; no measurement found"
_ARIES = (
    "sitecfg/piz-daint.toml: osu_bw 9.6 GB/s; sitecfg/cori.toml: about 8 GB/s",
    "sitecfg/piz-daint.toml: osu_latency 1.3 and 1.6 us; sitecfg/cori.toml: the farthest nodes 3.7 us",
)
_SLINGSHOT_11 = (
    "sitecfg/alps.toml: osu_bw 24.0 GB/s, a card",
    "sitecfg/alps.toml: osu_latency of 256 B 2.3 us, up to 60 % more passes",
)


def _line_rate(gbit: float, where: str = "") -> Known:
    return Known(gbit * 1e9 / 8, 1.25, f"{gbit:g} Gbit/s{where}: {_LINE}")


NETWORKS = {
    fabric.name: fabric
    for fabric in (
        Network("aries", Known(8.8e9, 1.15, _ARIES[0]), Known(2.2e-6, 1.8, _ARIES[1])),
        Network("slingshot-10", _line_rate(100, " a card (sitecfg/archer2.toml)"), None),
        Network("slingshot-11", Known(24.0e9, 1.15, _SLINGSHOT_11[0]), Known(2.3e-6, 1.6, _SLINGSHOT_11[1])),
        Network("infiniband-edr", _line_rate(100), None),
        Network("infiniband-hdr", _line_rate(200), None),
        Network("infiniband-ndr", _line_rate(400), None),
        Network("omni-path", None, None),
        Network("tcp", None, None),
    )
}  # fmt: skip


def network(name: str) -> Network:
    """
    Raises:
        FairleadError: exit code 2; there is no such network.
    """
    if name not in NETWORKS:
        raise fail(
            "project-fabric-unknown",
            name=name,
            suggestion=suggest(name, NETWORKS),
            networks=", ".join(NETWORKS),
        )
    return NETWORKS[name]


def link_numbers(site: Site, what: str) -> list[tuple[float, str]]:
    """What the profile says of the links between its nodes as ranks use them.

    Args:
        what: ``bandwidth`` or ``latency``.
    Returns:
        (bytes/s or seconds, source) of each entry; numbers of GPUs and of the image's own MPI are left out.
    """
    pattern, scales = _LINK_NUMBERS[what]
    return [
        (r.value * scales[r.unit], f"{r.what}: {r.value:g} {r.unit} ({r.origin.source})")
        for r in site.performance
        if re.match(pattern, r.what)
        and r.unit in scales
        and not re.search(r"GPU to GPU|own MPI", r.what)
    ]


_LINK_NUMBERS = {
    "bandwidth": (r"(osu_bw|pingpong bandwidth)\b", {"B/s": 1.0, "MB/s": 1e6, "GB/s": 1e9}),
    "latency": (r"(osu_latency|pingpong latency)\b", {"us": 1e-6, "s": 1.0}),
}


def of_site(site: Site) -> Network:
    """What a profile says: ping-pong between two nodes, host memory, the host's MPI.

    Several values, as of near and far nodes, give their geometric mean and as much uncertainty; a single value is taken
    to be right within a fifth. What the profile does not say is taken from its network, if there is one of that name.
    """
    kind = NETWORKS.get(site.fabric.kind, Network("", None, None))
    return Network(
        site.name,
        _middle(link_numbers(site, "bandwidth")) or kind.bandwidth,
        _middle(link_numbers(site, "latency")) or kind.latency_s,
    )


def _middle(numbers: Sequence[tuple[float, str]]) -> Known | None:
    if not numbers:
        return None
    values = [value for value, _ in numbers]
    low, high = min(values), max(values)
    source = "; ".join(words for _, words in numbers)
    return Known(math.sqrt(low * high), max(1.2, math.sqrt(high / low)), source)


def given(bandwidth: float | None, latency_s: float | None, known: Network | None) -> Network:
    """What the command line says comes before what is known of the fabric.

    Raises:
        FairleadError: exit code 2; a number is neither given nor known.
    """
    if known is None and None in (bandwidth, latency_s):
        raise fail("project-fabric-missing")
    network, source = known or Network("as given", None, None), "as given on the command line"
    if bandwidth:
        network = replace(network, bandwidth=Known(bandwidth, 1.0, source))
    if latency_s is not None:
        network = replace(network, latency_s=Known(latency_s, 1.0, source))
    numbers = {"bandwidth GB/S": network.bandwidth, "latency US": network.latency_s}
    if absent := [name for name, value in numbers.items() if value is None]:
        raise fail(
            "project-fabric" if network.name in NETWORKS else "project-fabric-site-incomplete",
            absent=" and ".join(name.split()[0] for name in absent),
            network_name=network.name,
            absent_list=" ".join(f"--{name}" for name in absent),
        )
    return network
