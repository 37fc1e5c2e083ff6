"""Start-up: how long until ranks are ready, by phase; and the clocks of the hosts."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fairlead.base.errors import Finding, warning
from fairlead.ml.train.runner import Runner
from fairlead.perf.measure.program import run_program
from fairlead.perf.measure.ranks import startup
from fairlead.perf.measure.step import Context, Step
from fairlead.perf.records.validation import Measurement, Way, What

# Clocks may differ by this much: nodes that keep time by NTP are within milliseconds.
_CLOCKS_S = 0.5
_PHASES = 4  # of a start: launcher and engine, interpreter, MPI_Init, a framework


def _measure(context: Context, way: Way, run: Runner) -> None:
    """Of the most ranks that have a core each: ranks that share cores wait for their turn."""
    options, observations = context.options, context.observations
    # A start of ranks that share cores only reports their hosts, and counts for no line.
    roomy = not options.crowded(options.most)
    first = _start(context, options.most, run, framework=roomy)
    observations.mpis[way.value] = first["mpi"]
    observations.placed = tuple(first["hosts"])
    if not any(f.check == "validate-clock" for f in observations.findings):
        observations.findings += clock_findings(first["clocks"])
    ranks = context.roomiest
    starts = [first] if ranks == options.most and roomy else []
    starts += [_start(context, ranks, run) for _ in range(options.repeats - len(starts))]
    nodes = observations.nodes(ranks)
    for phase in starts[0]["phases"]:
        seconds = tuple(start["phases"][phase] for start in starts)
        observations.measurements.append(
            Measurement(
                What.START, way, seconds, ranks, nodes, subject=phase,
                crowded=options.crowded(ranks, nodes), launcher=context.launcher,
            )
        )  # fmt: skip


def _start(context: Context, ranks: int, run: Runner, framework: bool = True) -> dict[str, Any]:
    """What one launch reports."""
    options = context.options
    module = "tensorflow" if framework and options.models and not options.quick else ""
    settings = startup.Settings(options.out / "start.json", time.time(), module)
    return run_program(startup.__name__, settings, run, ranks)


def clock_findings(offsets: Mapping[str, Sequence[float]]) -> Iterator[Finding]:
    """Clocks that differ by more than a timeline, a log or a lease of a file tolerates.

    Args:
        offsets: by host, how far its clock is ahead and the uncertainty, seconds.
    """
    for host, (ahead, uncertainty) in offsets.items():
        if abs(ahead) - uncertainty > _CLOCKS_S:
            yield warning(
                "validate-clock",
                host=host,
                ahead=abs(ahead),
                ahead_2="ahead" if ahead > 0 else "behind",
                uncertainty=uncertainty,
            )


STEP = Step(
    10,
    lambda context: context.each_way("start-up", _measure),
    lambda options: [f"start-up, {options.repeats} launches of {options.most} ranks"],
    lambda options: _PHASES,
)
