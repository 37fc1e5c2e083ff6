"""What is known of networks: bandwidth and latency of one card, each with its source, or nothing.

A number that nobody has said is None, and a projection then asks for it: ``--bandwidth``, ``--latency``. What a
site itself says in ``[[performance]]`` of its profile comes before its family's (:func:`of_site`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from fairlead.base.errors import ExitCode, FairleadError, fail
from fairlead.base.suggest import suggest
from fairlead.site.model import Reference, Site


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


_LINE = "the line's rate; what MPI reaches of it was not found"

NETWORKS = {
    one.name: one
    for one in (
        Network(
            "aries",
            Known(
                8.8e9,
                1.15,
                "sitecfg/piz-daint.toml: osu_bw 9.6 GB/s; sitecfg/cori.toml: about 8 GB/s",
            ),
            Known(
                2.2e-6,
                1.8,
                "sitecfg/piz-daint.toml: osu_latency 1.3 and 1.6 us; sitecfg/cori.toml: the farthest nodes 3.7 us",
            ),
        ),
        Network(
            "slingshot-10",
            Known(
                12.5e9,
                1.25,
                f"100 Gbit/s a card (sitecfg/archer2.toml): {_LINE}",
            ),
            None,
        ),
        Network(
            "slingshot-11",
            Known(24.0e9, 1.15, "sitecfg/alps.toml: osu_bw 24.0 GB/s, a card"),
            Known(
                2.3e-6,
                1.6,
                "sitecfg/alps.toml: osu_latency of 256 B 2.3 us, up to 60 % more passes",
            ),
        ),
        Network("infiniband-edr", Known(12.5e9, 1.25, f"100 Gbit/s: {_LINE}"), None),
        Network("infiniband-hdr", Known(25.0e9, 1.25, f"200 Gbit/s: {_LINE}"), None),
        Network("infiniband-ndr", Known(50.0e9, 1.25, f"400 Gbit/s: {_LINE}"), None),
        Network("omni-path", None, None),
        Network("tcp", None, None),
    )
}


def network(name: str) -> Network:
    """
    Raises:
        FairleadError: exit code 2; there is no such network.
    """
    if name not in NETWORKS:
        raise fail(
            f"no fabric `{name}`",
            where="--fabric",
            why=suggest(name, NETWORKS),
            remedy=f"one of {', '.join(NETWORKS)}; or --bandwidth and --latency",
            check="project-fabric",
            code=ExitCode.USAGE,
        )
    return NETWORKS[name]


def of_site(site: Site) -> Network:
    """What the references of a profile say: pingpong between two nodes, host memory, its own MPI.

    Several values, as of near and far nodes, give their geometric middle and as much uncertainty; one value is taken
    to be right within a fifth. What the profile does not say is its network's, where there is one of that name.
    """
    kind = NETWORKS.get(site.fabric.kind, Network("", None, None))
    plain = [r for r in site.performance if not re.search(r"GPU to GPU|own MPI", r.what)]
    return Network(
        site.name,
        _middle(plain, r"^(osu_bw|pingpong bandwidth)", {"MB/s": 1e6, "GB/s": 1e9, "B/s": 1.0})
        or kind.bandwidth,
        _middle(plain, r"^(osu_latency|pingpong latency)", {"us": 1e-6, "s": 1.0})
        or kind.latency_s,
    )


def _middle(references: Iterable[Reference], what: str, units: dict[str, float]) -> Known | None:
    fitting = [r for r in references if re.match(what, r.what) and r.unit in units]
    if not fitting:
        return None
    values = [r.value * units[r.unit] for r in fitting]
    low, high = min(values), max(values)
    source = "; ".join(f"{r.what}: {r.value:g} {r.unit} ({r.origin.source})" for r in fitting)
    return Known(math.sqrt(low * high), max(1.2, math.sqrt(high / low)), source)


def given(bandwidth: float | None, latency_s: float | None, found: Network | None) -> Network:
    """What the command line says comes before what is known of the fabric.

    Raises:
        FairleadError: exit code 2; a number is neither given nor known.
    """
    if found is None and None in (bandwidth, latency_s):
        raise fail(
            "no fabric is named",
            where="the command line",
            why="what is between the nodes decides what a gradient costs, and a file of small runs does not tell it",
            remedy="add --fabric NAME, --site NAME, or --bandwidth GB/S and --latency US",
            check="project-fabric",
            code=ExitCode.USAGE,
        )
    base = found or Network("as given", None, None)
    told = "as given on the command line"
    network = Network(
        base.name,
        Known(bandwidth, 1.0, told) if bandwidth else base.bandwidth,
        Known(latency_s, 1.0, told) if latency_s is not None else base.latency_s,
    )
    absent = [
        f"{option} {unit}"
        for option, unit, value in (
            ("--bandwidth", "GB/S", network.bandwidth),
            ("--latency", "US", network.latency_s),
        )
        if value is None
    ]
    if absent:
        raise _unknown(network, absent)
    return network


def _unknown(network: Network, absent: list[str]) -> FairleadError:
    pingpong = "a pingpong between two nodes, as `osu_bw` and `osu_latency` of the site's MPI, measures them"
    other = "" if network.name in NETWORKS else ", or --fabric NAME instead of --site"
    return fail(
        f"{' and '.join(word.split()[0][2:] for word in absent)} of `{network.name}` cannot be told",
        where="the table of fabrics, and the site profiles",
        why=f"no source gives a number, and none is guessed; {pingpong}",
        remedy=f"add {' '.join(absent)}{other}",
        check="project-fabric",
        code=ExitCode.USAGE,
    )
