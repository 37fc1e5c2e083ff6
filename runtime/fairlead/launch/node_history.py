"""Which nodes have failed, when and how: a line for each failure in ``nodes.jsonl`` of the cache."""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from fairlead.base import bounded_json
from fairlead.base.errors import Finding

FILE = "nodes.jsonl"
_MOST_BYTES = 1 << 20


@dataclass(frozen=True)
class Failure:
    """A failure that a node was named for.

    Attributes:
        time: when, in seconds since 1970.
        check: of the finding that named it: ``node-lost``, or what became of a rank there.
        what: the finding's sentence.
        job: the scheduler's number of the job; empty outside of jobs.
    """

    time: float
    host: str
    check: str
    what: str
    job: str = ""


def note(cache: Path, finding: Finding, job: str = "") -> None:
    """Adds the failure of a finding that names a node. A cache that cannot be written loses it: the run's own error says the same."""
    failure = Failure(round(time.time(), 1), finding.host, finding.check, finding.what[:300], job)
    line = json.dumps(asdict(failure)) + "\n"
    with suppress(OSError):
        path = cache / FILE
        if path.exists() and path.stat().st_size > _MOST_BYTES:
            path.rename(path.with_suffix(".old.jsonl"))
        # One write by several runs at once keeps lines whole.
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            os.write(file, line.encode())
        finally:
            os.close(file)


def failures(cache: Path) -> tuple[Failure, ...]:
    """What is known, the oldest first."""
    with suppress(OSError):
        return read((cache / FILE).read_text("utf-8", "replace"))
    return ()


def read(text: str) -> tuple[Failure, ...]:
    """The failures in the file's text; lines that are not records are left out."""
    entries = []
    for line in text.splitlines():
        with suppress(ValueError, TypeError, KeyError, RecursionError):
            entry = bounded_json.loads(line)
            words = (str(entry[name]) for name in ("host", "check", "what", "job"))
            entries.append(Failure(float(entry["time"]), *words))
    return tuple(entries)


def short(host: str) -> str:
    """A host's name without its domain, which not every source has."""
    return host.partition(".")[0]


def of_host(cache: Path, host: str) -> tuple[Failure, ...]:
    """The failures of one node."""
    return tuple(f for f in failures(cache) if short(f.host) == short(host))
