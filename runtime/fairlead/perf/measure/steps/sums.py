"""Known sums over the GPUs of all ranks, by the NCCL or RCCL of the image."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from fairlead.base import nccl_sums
from fairlead.base.errors import Finding, error, info, warning
from fairlead.perf.measure.program import run_program
from fairlead.perf.measure.ranks import sums as ranks
from fairlead.perf.measure.step import Context, Options, Step
from fairlead.site.model import Reference

# Profiles quote nccl-tests; their conditions are words, so less than this part of the figure is a question, no verdict.
_QUOTED, _LEAST = re.compile(r"nccl-tests all_reduce\b.*bus bandwidth"), 0.8
_QUICK_MOST, _QUICK_REPEAT = 2 << 20, 5


def _measure(context: Context) -> None:
    if _titles(context.options):
        context.attempt("NCCL's sums", lambda: _add_up(context))


def _add_up(context: Context) -> None:
    options = context.options
    settings = ranks.Settings(options.out / "sums.json")
    if options.quick:
        settings = ranks.Settings(settings.out, _QUICK_MOST, _QUICK_REPEAT)
    document = run_program(ranks.__name__, settings, context.container, options.most)
    if document["failed"]:
        why = "; ".join(document["failed"][:2])
        context.observations.findings.append(warning("validate-nccl-sums-not-made", why=why))
        return
    results = document["ranks"]
    if bad := nccl_sums.differences(results):
        where = results[0]["host"]
        more = "; ".join(bad[:4])
        context.observations.findings.append(
            error("validate-nccl-sums-wrong", line=nccl_sums.line(results), where=where, more=more)
        )
        return
    context.observations.findings.append(info("validate-nccl-sums", line=nccl_sums.line(results)))
    context.observations.findings += against_profile(results, options.performance)


def against_profile(
    results: Sequence[Mapping[str, Any]], performance: Sequence[Reference]
) -> list[Finding]:
    """The bus bandwidth between nodes next to each figure that the site's profile quotes for it.

    Within a node there is nothing to compare: figures of profiles are of the network.
    """
    if len({result["host"] for result in results}) == 1:
        return []
    rate, findings = nccl_sums.bus_gb_s(results), []
    for quoted in performance:
        if not (_QUOTED.match(quoted.what) and quoted.unit == "GB/s"):
            continue
        words = {
            "rate": rate, "part": rate / quoted.value, "value": quoted.value, "what": quoted.what,
            "conditions": quoted.conditions, "source": quoted.origin.source,
        }  # fmt: skip
        if rate >= _LEAST * quoted.value:
            findings.append(info("validate-nccl-rate", **words))
        else:
            findings.append(warning("validate-nccl-rate-low", **words))
    return findings


def _titles(options: Options) -> list[str]:
    return ["NCCL's sums over the ranks' GPUs"] if options.gpus else []


STEP = Step(36, _measure, _titles, lambda options: 0)
