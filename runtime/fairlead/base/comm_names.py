"""Names of the variables that ranks and the command line share."""

from __future__ import annotations

from collections.abc import Mapping

VARIABLE = "FAIRLEAD_COMM_BACKEND"
PLUGIN = "FAIRLEAD_COMM_DL_COMM"  # the folder of a site's own dl_comm
ORDERED = "FAIRLEAD_COMM_DETERMINISTIC"
TIMELINE = "FAIRLEAD_COMM_TIMELINE"  # the file for what every rank did
# In the folder of that file: the launching process records too, and merges all parts.
TIMELINE_HOST = "host.jsonl"


def is_ordered(environ: Mapping[str, str]) -> bool:
    """Whether sums in a fixed order of ranks are requested."""
    return environ.get(ORDERED, "") not in ("", "0")


UNORDERED = f"{ORDERED} is set, and the order of its sums is its own"
