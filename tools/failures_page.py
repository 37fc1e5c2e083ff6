"""Generate docs/reference/failures.md from the kept record of failures: ``python -m tools.failures_page``.

``python -m tests.system.kills.run --out tests/recorded/kills/kills.json`` makes the record.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RECORD = ROOT / "tests/recorded/kills/kills.json"
PAGE = "docs/reference/failures.md"
KINDS = {
    "rank": "a rank's process gets SIGKILL",
    "stop": "a rank's process gets SIGSTOP",
    "node": "a node dies: its slurmd, and all that runs there, at once",
    "link": "a node's cable is pulled",
    "warning": "the batch script gets SIGUSR1, as before a time limit",
    "preemption": "a job of higher priority takes the nodes (`PreemptMode=REQUEUE`)",
}
_HEAD = """\
# Failures against a training

Generated from [kills.json](../../tests/recorded/kills/kills.json), the record of `python -m tests.system.kills.run`: {model}
on 2 ranks, on 2 of 4 nodes of a real Slurm, one node to spare, a checkpoint every {steps_between_checkpoints} steps. The nodes
are simulated on one machine of {cores} cores: each has a network, processes and a /dev/shm of its own. Failures come at
random times. See [Jobs that outlive failures](../howto/recovery.md).

{summary}

| failure | count | training resumed | named, s | at work again, s | steps done twice, at most |
| --- | --- | --- | --- | --- | --- |
"""


def page() -> str:
    """The page's text."""
    record = json.loads(RECORD.read_text("utf-8"))
    kills, equal = record["kills"], record["trainings_equal"]
    resumed = sum(map(_survived, kills))
    summary = (
        f"{resumed} of {len(kills)} were survived, and {sum(equal)} of {len(equal)} trainings ended with the losses of one"
        " that nothing had interrupted, step for step and bit for bit."
    )
    text = _HEAD.format(**record, cores=record["machine"]["cores"], summary=summary)
    rows = [_row(kind, [kill for kill in kills if kill["kind"] == kind]) for kind in KINDS]
    return text + "\n".join(filter(None, rows)) + "\n"


def _row(kind: str, kills: list[Mapping[str, Any]]) -> str:
    if not kills:
        return ""
    resumed = sum(map(_survived, kills))
    lost = max((kill["lost"] or 0 for kill in kills), default=0)
    cells = (KINDS[kind], len(kills), resumed, _range(kills, "named_s"), _range(kills, "resumed_s"))
    return "| " + " | ".join(map(str, (*cells, lost))) + " |"


def _survived(kill: Mapping[str, Any]) -> bool:
    return kill["resumed"] is not None or kill["finished"]


def _range(kills: list[Mapping[str, Any]], key: str) -> str:
    found = [kill[key] for kill in kills if kill[key] is not None]
    return f"{min(found):.0f} to {max(found):.0f}" if found else "by Slurm"


if __name__ == "__main__":
    (ROOT / PAGE).write_text(page(), "utf-8")
