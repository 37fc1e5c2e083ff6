"""Known sums over the GPUs of all ranks, by the NCCL or RCCL of the image."""

from __future__ import annotations

from fairlead.base import nccl_sums
from fairlead.base.errors import error, info, warning
from fairlead.perf.measure.program import run_program
from fairlead.perf.measure.ranks import sums as ranks
from fairlead.perf.measure.step import Context, Options, Step

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
        context.seen.findings.append(warning("validate-nccl-sums-not-made", why=why))
        return
    results = document["ranks"]
    if bad := nccl_sums.differences(results):
        where = results[0]["host"]
        more = "; ".join(bad[:4])
        context.seen.findings.append(
            error("validate-nccl-sums-wrong", line=nccl_sums.line(results), where=where, more=more)
        )
        return
    context.seen.findings.append(info("validate-nccl-sums", line=nccl_sums.line(results)))


def _titles(options: Options) -> list[str]:
    return ["NCCL's sums over the ranks' GPUs"] if options.gpus else []


STEP = Step(36, _measure, _titles, lambda options: 0)
