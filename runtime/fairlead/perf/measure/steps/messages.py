"""Messages of all ranks, and the collectives of each count of ranks."""

from __future__ import annotations

import json

from fairlead.base.errors import error
from fairlead.ml.train.runner import Runner
from fairlead.perf.measure.program import run_program
from fairlead.perf.measure.ranks import messages
from fairlead.perf.measure.step import Context, Options, Step
from fairlead.perf.records.validation import Way, What

_MORE = 2  # samples beyond what is needed: they take milliseconds, and an outlier costs a verdict


def _measure(context: Context, way: Way, run: Runner) -> None:
    options, observations = context.options, context.observations
    counts = [n for n in _counts(options) if n > 1]
    for ranks in counts:
        brief = options.quick or context.crowded(ranks)
        settings = messages.Settings(
            out=options.out / "messages.json",
            sizes=messages.SIZES[::2] if brief else messages.SIZES,
            through=("mpi", "comm"),
            repeats=options.repeats + _MORE,
            least=options.repeats,
            limit_s=12 if options.quick else 45,
        )
        document = run_program(messages.__name__, settings, run, ranks)
        observations.crowded = observations.crowded or document["crowded"]
        observations.measurements += [
            m
            for m in messages.measurements(document, way, context.launcher)
            if m.what is not What.PINGPONG or ranks == counts[-1]
        ]
        if document["wrong_answers"]:
            observations.findings.append(
                error(
                    "validate-wrong",
                    wrong=document["wrong"],
                    ranks=ranks,
                    way_value=way.value,
                    dumps=json.dumps(document["wrong_answers"][0]),
                )
            )


def _lines(options: Options) -> int:
    """A ping-pong each on a host and between two, and each collective by MPI and by fairlead.comm."""
    counts = len([n for n in _counts(options) if n > 1])
    return 2 * len(messages.SIZES) * (1 + counts * (len(messages.OPERATIONS) - 1)) if counts else 0


def _counts(options: Options) -> tuple[int, ...]:
    return (options.most,) if options.quick else options.ranks


STEP = Step(
    30,
    lambda context: context.each_way("messages", _measure),
    lambda options: [
        f"ping-pong, allreduce, broadcast on {', '.join(map(str, _counts(options)))} ranks"
    ],
    _lines,
)
