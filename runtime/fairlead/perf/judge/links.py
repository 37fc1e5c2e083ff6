"""The link between two nodes, which nothing can be held against but what was expected of it.

Of three nodes and more :mod:`fairlead.perf.measure.straggler_search` finds the one whose link is slow beside the others'. Two nodes
have one link; that it is slow shows where messages between them are slow by a reference or a bound, and nothing else that was
looked at (another transport, a slow processor) is.
"""

from __future__ import annotations

from collections.abc import Sequence

from fairlead.perf import stats
from fairlead.perf.judge import diagnosis
from fairlead.perf.records.evidence import Culprit, Evidence
from fairlead.perf.records.validation import Expected, Measurement, State, Verdict, What

# Bytes, from which a link's bandwidth shows, and not its latency or a turn of another process.
LARGE = 1 << 20


def between_two(
    measurements: Sequence[Measurement],
    verdicts: Sequence[Verdict],
    evidence: Evidence,
    hosts: Sequence[str],
) -> Culprit | None:
    """The link between the only two hosts, where large ping-pongs over it are slow and none is normal; pure.

    Args:
        verdicts: of the measurements, in their order.
        hosts: of the largest launch.
    """
    if len(hosts) != 2 or evidence.culprits:
        return None
    over = [
        (m, v, v.expected)
        for m, v in zip(measurements, verdicts, strict=True)
        if m.what is What.PINGPONG and m.nodes == 2 and (m.bytes or 0) >= LARGE and v.expected
    ]
    slow = [one for one in over if one[1].state is State.SLOW]
    if not slow or any(v.state is State.NORMAL for _, v, _ in over):
        return None
    if any(
        diagnosis.transport(m, evidence) or diagnosis.other_mpi(m, evidence) for m, _, _ in over
    ):
        return None
    m, v, expected = max(slow, key=lambda one: one[0].bytes or 0)
    name = f"link between {hosts[0]} and {hosts[1]}"
    return Culprit(name, _numbers(m, expected), v.times or 1.0, tuple(hosts), 2, "expected")


def _numbers(m: Measurement, expected: Expected) -> str:
    took, size = stats.summarize(m.samples).median, m.bytes or 0
    return (
        f"{size >> 10} KiB one way took {took * 1e3:.3g} ms, {size / took / 1e6:.3g} MB/s;"
        f" {expected.value * 1e3:.3g} ms by {expected.source}"
    )
