"""From launches to a table: speeds, efficiencies and ratios with intervals, and whether the answers were right."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median

from benchmarks.peers.catalogue import Peer
from benchmarks.peers.launches import PeerRuns, PeersOptions
from benchmarks.peers.results import Estimate, Launch, Outcome, PeerResult
from fairlead.perf import stats

# As a part of a mean's largest element: float32 sums in another order differ by less.
WITHIN = 1e-3
_APART = 10 * WITHIN
_BASES = {"tensorflow": "alone", "torch": "alone-torch"}


def results(options: PeersOptions, runs: Mapping[str, PeerRuns]) -> tuple[PeerResult, ...]:
    """A result a peer, the fastest first; those without a speed last."""
    rates = {peer.name: _rates(options, peer, runs[peer.name].launches) for peer in options.peers}
    rows = [_result(options, peer, runs[peer.name], rates) for peer in options.peers]
    return tuple(
        sorted(rows, key=lambda r: -r.samples_per_s.value if r.samples_per_s else math.inf)
    )


def _rates(
    options: PeersOptions, peer: Peer, launches: Sequence[Launch | None]
) -> list[float | None]:
    """Samples/s of all ranks together, by round."""
    ranks = 1 if peer.alone else options.ranks
    return [
        None if one is None else ranks * options.task.batch / median(max(b.own) for b in one.blocks)
        for one in launches
    ]


def _result(
    options: PeersOptions, peer: Peer, runs: PeerRuns, rates: Mapping[str, Sequence[float | None]]
) -> PeerResult:
    outcome, why, following = judged(peer, runs)
    own = rates[peer.name]
    efficiency = None
    if not peer.alone:
        efficiency = estimate(
            [
                median(max(b.base) / max(b.own) for b in one.blocks)
                for one in runs.launches
                if one is not None
            ]
        )
    base = _BASES[peer.framework]
    of_alone = None
    if not peer.alone and base in rates:
        of_alone = estimate(_over(own, rates[base], 1 / options.ranks))
    times = None
    if not peer.alone and peer.ours in rates and peer.name != peer.ours:
        times = estimate(_over(rates[peer.ours], own))
    return PeerResult(
        name=peer.name,
        title=peer.title,
        framework=peer.framework,
        recipe=peer.recipe,
        outcome=outcome,
        guarantee=peer.guarantee,
        why=why,
        next=following,
        samples_per_s=estimate([rate for rate in own if rate is not None]),
        efficiency=efficiency,
        of_alone=of_alone,
        fairlead_times=times,
        launches=tuple(runs.launches),
    )


def _over(
    above: Sequence[float | None], below: Sequence[float | None], scale: float = 1.0
) -> list[float]:
    """Ratios of those rounds that both have."""
    pairs = zip(above, below, strict=False)
    return [scale * a / b for a, b in pairs if a is not None and b is not None]


def estimate(values: Sequence[float]) -> Estimate | None:
    """The median and its interval; None of nothing. A value is a round: what is measured within one launch is not
    independent of the rest of it."""
    if not values:
        return None
    summary = stats.summarize(values)
    return Estimate(summary.median, summary.low, summary.high, summary.confidence, summary.n)


def judged(peer: Peer, runs: PeerRuns) -> tuple[Outcome, str, str]:
    """How a peer did, why, and the next command unless it was right."""
    if runs.refused is not None:
        return Outcome.NOT_RUN, runs.refused.what, runs.refused.remedy
    if runs.failures:
        number, one = min(runs.failures.items())
        why = "; ".join(filter(None, [f"round {number + 1}: {one.what}", one.where, one.why]))
        return Outcome.FAILED, why, one.remedy
    for launch in filter(None, runs.launches):
        if why := wrong(launch):
            return (
                Outcome.WRONG,
                why,
                f"python -m benchmarks.peers --peers {peer.name}; fairlead doctor",
            )
    return Outcome.RIGHT, "", ""


def wrong(launch: Launch) -> str:
    """What is wrong; empty if nothing is."""
    if not launch.alike:
        return "ranks hold different weights at the end"
    if launch.updates != launch.expected_updates:
        return f"the servers made {launch.updates} updates of {launch.expected_updates}"
    if launch.error is None or launch.apart is None:
        return ""
    # Written so that NaN is wrong.
    if not launch.error <= WITHIN:
        return f"the first step's means are off by {launch.error:.1%} of their largest element"
    if not launch.apart >= _APART:
        return "all ranks had the same gradients, so a missing sum would not show"
    return ""
