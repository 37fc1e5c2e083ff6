"""Events that a program in an image reports while it runs: one JSON object per line, in a file.

The file lies in a folder that is bound into the image; :class:`Tail` reads it on the other side.
Without a file, the same events are lines of text on stdout.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fairlead.base.errors import FairleadError


class EventLog:
    """Writes events; each is complete once written."""

    def __init__(self, path: Path | None):
        self._path = path

    def write(self, event: str, **fields: Any) -> None:
        """One event of kind ``event``; fields are JSON values."""
        if self._path is None:
            shown = (
                f"{k}={v:.4g}" if isinstance(v, float) else f"{k}={v}" for k, v in fields.items()
            )
            print(event, *shown, flush=True)
            return
        # Opened for each: one append is one write, so ranks cannot cut each other's lines
        with self._path.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps({"event": event, **fields}) + "\n")

    def errors(self, failed: FairleadError, **fields: Any) -> None:
        """An event ``error`` for each finding."""
        for finding in failed.findings:
            self.write("error", **fields, **finding.to_json())


class Tail:
    """Reads events that were appended since the last look."""

    def __init__(self, path: Path):
        self._path, self._at = path, 0

    def read(self) -> Iterator[dict[str, Any]]:
        """The new events, whole lines only. A file that is not there yet has none."""
        try:
            with self._path.open("rb") as stream:
                stream.seek(self._at)
                text = stream.read()
        except FileNotFoundError:
            return
        whole = text[: text.rfind(b"\n") + 1]
        self._at += len(whole)
        for line in whole.splitlines():
            yield json.loads(line)
