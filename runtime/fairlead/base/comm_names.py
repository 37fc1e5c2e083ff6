"""Names of what carries gradients: for the command line, which loads no NumPy, and for every rank."""

from __future__ import annotations

from collections.abc import Mapping

from fairlead.base.errors import ExitCode, FairleadError, fail

BACKENDS = ("auto", "native", "mpi4py", "horovod", "dl_comm", "nccl")
VARIABLE = "FAIRLEAD_COMM_BACKEND"
PLUGIN = "FAIRLEAD_COMM_DL_COMM"  # the folder of a site's own dl_comm
ORDERED = "FAIRLEAD_COMM_DETERMINISTIC"
TIMELINE = "FAIRLEAD_COMM_TIMELINE"  # a file to be made of what every rank did
# In the folder of that file: whoever launched the ranks records too, and puts all of it together.
TIMELINE_HOST = "host.jsonl"


def is_ordered(environ: Mapping[str, str]) -> bool:
    """Whether sums are asked for in an order of ranks that never changes."""
    return environ.get(ORDERED, "") not in ("", "0")


UNORDERED = f"{ORDERED} is set, and the order of its sums is its own"


def unknown(name: str, where: str, remedy: str, code: ExitCode = ExitCode.FAILED) -> FairleadError:
    """That there is no backend called so."""
    from fairlead.base.suggest import suggest  # not wanted by ranks that are well

    near = suggest(name, BACKENDS)
    return fail(
        f"there is no backend `{name}`",
        where=where,
        why=near if near.startswith("Known") else f"{near} Known: {', '.join(BACKENDS)}.",
        remedy=remedy,
        check="comm-backend",
        code=code,
    )
