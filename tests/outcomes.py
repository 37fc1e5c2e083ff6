"""What tests came to, as the JSON that ``make test-full`` keeps: the last outcome of each, and of which run it is.

The long tests are more than a sitting: they may run in parts (``make test-full TESTS=tests/system/test_comm_core.py``),
and what a part did not run keeps the outcome, time and commit of when it did.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

VERSION = 2
OUTCOMES = ("passed", "failed", "skipped")


def merged(
    before: Mapping[str, Any],
    run: Mapping[str, Any],
    rows: Sequence[Mapping[str, Any]],
    known: Collection[str] | None,
) -> dict[str, Any]:
    """The document after one more run.

    Args:
        before: the document of the runs until now; empty, or of another version: as if there were none.
        run: what all rows of this run share: commit, time, machine.
        rows: ``test``, ``outcome`` and ``duration_s`` of each test that ran, and of what went wrong around it.
        known: all tests there are, where this run has looked for all; others are forgotten.
    """
    old = before if before.get("version") == VERSION else {}
    worst: dict[str, dict[str, Any]] = {}
    for row in rows:  # a test's teardown may fail after it has passed
        kept = worst.get(row["test"])
        if kept is None or row["outcome"] == "failed":
            worst[row["test"]] = {**row, "run": run["begun"]}
    tests = {row["test"]: row for row in old.get("tests", ())} | worst
    if known is not None:
        tests = {name: row for name, row in tests.items() if name in known}
    used = {row["run"] for row in tests.values()}
    runs = [r for r in (*old.get("runs", ()), run) if r["begun"] in used]
    counts = {o: sum(row["outcome"] == o for row in tests.values()) for o in OUTCOMES}
    found = [tests[name] for name in sorted(tests)]
    return {"schema": "fairlead/tests", "version": VERSION, **counts, "runs": runs, "tests": found}


def read(path: Path) -> dict[str, Any]:
    """A kept document; empty where there is none."""
    try:
        found: dict[str, Any] = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return {}
    return found


def commit(folder: Path) -> str:
    """Of a checkout, with ``+`` where files differ from it; empty without git."""
    words = [
        "git",
        "-C",
        str(folder),
        "describe",
        "--always",
        "--abbrev=12",
        "--dirty=+",
        "--exclude=*",
    ]
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip()
