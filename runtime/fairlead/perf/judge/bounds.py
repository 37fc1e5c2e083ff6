"""What the hardware allows: the least time, or the highest rate, that a measurement could have.

Bounds come from a site's profile (:func:`of_site`) or from a measurement of memory, link or disk by itself. A
bound is not a forecast: :data:`REACH` says how near to it a sound machine comes.

Sources: for the allreduce R. Thakur, R. Rabenseifner, W. Gropp, IJHPCA 19 (2005): every node sends at least
2 (N-1)/N n bytes, and ceil(log2 N) messages follow each other. For memory J. McCalpin, STREAM: bytes read and
bytes written count alike.
"""

from __future__ import annotations

import math

from fairlead.perf.projection.fabrics import link_numbers
from fairlead.perf.records.validation import Bound, Bounds, Measurement, What
from fairlead.site.model import Site

# How many times the bound a sound machine still is, judged: protocols, copies and the meeting of ranks cost
# time too. The published allreduce of 8 B on six nodes is 2.4 times its bound on Piz Daint, 1.2 times on Alps.
REACH = {What.PINGPONG: 2.0, What.ALLREDUCE: 3.0, What.BROADCAST: 3.0, What.CHECKPOINT: 2.0}
_BEYOND_CACHES = 64_000_000  # bytes; less may never leave the caches, which are faster than memory
_DOMINATES_S = 100e-6  # seconds on the link that make any latency small


_WITHOUT = {
    What.TRAIN: "a training's speed",
    What.INPUT: "the input's speed",
    What.START: "the time of a start",
}


def limit(m: Measurement, bounds: Bounds) -> Bound | str:
    """What no run of one measurement can better, in its unit; or why that is not known."""
    if m.what is What.CHECKPOINT:
        return bounds.disk or "the speed of the storage is not known"
    if m.what in _WITHOUT:
        return f"no bound is known for {_WITHOUT[m.what]}"
    size = m.bytes or 0
    return _on_one_node(m, size, bounds) if m.nodes < 2 else _between_nodes(m, size, bounds)


def _on_one_node(m: Measurement, size: int, bounds: Bounds) -> Bound | str:
    if bounds.memory is None:
        return "the bandwidth of a node's memory is not known"
    if size < _BEYOND_CACHES:
        return "so few bytes stay in the caches of the node, for which no bound is known"
    moved = {
        What.PINGPONG: 2 * size,  # read and written
        What.ALLREDUCE: 2 * size * m.ranks,  # every rank's is read, every rank's result written
        What.BROADCAST: size * m.ranks,  # read once, written by all others
    }[m.what]
    return Bound(moved / bounds.memory.value, f"memory of {_rate(bounds.memory)}")


def _between_nodes(m: Measurement, size: int, bounds: Bounds) -> Bound | str:
    if bounds.link is None:
        return "the bandwidth of the nodes' links is not known"
    sent = 2 * (m.nodes - 1) / m.nodes if m.what is What.ALLREDUCE else 1.0
    hops = 1 if m.what is What.PINGPONG else math.ceil(math.log2(m.nodes))
    moving = sent * size / bounds.link.value
    if bounds.latency is None:
        if moving < _DOMINATES_S:
            return "the fabric's latency is not known, and the message is too short for its rate to count"
        return Bound(moving, f"link of {_rate(bounds.link)}")
    return Bound(
        moving + hops * bounds.latency.value,
        f"link of {_rate(bounds.link)}, latency {1e6 * bounds.latency.value:.3g} µs"
        f" ({bounds.latency.source})",
    )


def _rate(bound: Bound) -> str:
    return f"{bound.value / 1e9:.3g} GB/s ({bound.source})"


def of_site(site: Site) -> Bounds:
    """What the site's profile says of its links (``[[performance]]``); of several values the best."""

    def bounds(what: str) -> list[Bound]:
        numbers = link_numbers(site, what)
        return [Bound(value, f"profile {site.name}: {source}") for value, source in numbers]

    return Bounds(
        link=max(bounds("bandwidth"), key=lambda b: b.value, default=None),
        latency=min(bounds("latency"), key=lambda b: b.value, default=None),
    )
