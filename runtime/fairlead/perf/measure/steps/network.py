"""NCCL's network plugin between two ranks of the container, on two nodes where there are two."""

from __future__ import annotations

import random
import shutil
from dataclasses import replace

from fairlead import native
from fairlead.base.errors import Severity, info
from fairlead.base.paths import cache_dir
from fairlead.base.serde import from_json
from fairlead.native.wire import Settings as Traffic
from fairlead.perf.measure.program import run_program
from fairlead.perf.measure.ranks import wire as ranks
from fairlead.perf.measure.step import Context, Options, Step
from fairlead.proof.wire import Ended, Wire, side_of

_MESSAGES = 1000  # of 1 MiB, in either direction


def _measure(context: Context) -> None:
    if _titles(context.options):
        context.attempt("NCCL's plugin", lambda: _move(context))


def _move(context: Context) -> None:
    options, planned = context.options, context.options.network
    assert planned is not None
    library = options.out / native.WIRE.name
    shutil.copy(native.ensure(native.WIRE, cache_dir()), library)
    traffic = Traffic(count=_MESSAGES // 10 if options.quick else _MESSAGES, wait_s=30, limit_s=300)
    settings = ranks.Settings(
        options.out / "wire.json", str(library), planned.file, traffic, random.getrandbits(48)
    )
    document = run_program(ranks.__name__, settings, context.container, options.most)
    sides = tuple(side_of(from_json(Ended, side)) for side in document["sides"])
    done = Wire(planned.file, traffic, sides)
    # On one node the plugin need not find a network, where the plan lets NCCL do without.
    lax = "Socket" in planned.networks
    context.observations.findings += [
        replace(f, severity=Severity.WARNING) if lax else f for f in done.findings(planned)
    ]
    if done.holds:
        context.observations.findings.append(info("validate-nccl-wire", line=done.line))


def _titles(options: Options) -> list[str]:
    return ["NCCL's plugin between two ranks"] if options.network and options.most > 1 else []


STEP = Step(35, _measure, _titles, lambda options: 0)
