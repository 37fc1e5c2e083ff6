"""``horovod``'s timeline: what rank 0 asks for, waits for and carries out, as Chrome's tracing and Perfetto read it.

Of the engine's collectives only. Gradients of optimizers go past it; ``fairlead run --timeline`` has everything.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fairlead.comm.dropin.requests import Request


class Timeline:
    """A file of events, one a line. It ends with the list's bracket, without which readers take it, too."""

    def __init__(self, path: str | Path, *, marks_turns: bool = False):
        """
        Args:
            marks_turns: whether the exchanges of requests are events.
        Raises:
            OSError: the file cannot be written.
        """
        self._out = Path(path).open("w", encoding="utf-8")  # noqa: SIM115, until it is closed
        self._marks_turns = marks_turns
        self._begun, self._rows = time.monotonic_ns(), dict[str, int]()
        self._out.write("[\n")
        self._separator = ""
        self._write(
            ph="M", pid=0, name="process_name",
            args={"name": "engine", "start_time_since_epoch_in_micros": time.time_ns() // 1000},
        )  # fmt: skip

    def asked(self, request: Request) -> None:
        self._event(request, ph="B", name=f"NEGOTIATE_{request.kind.upper()}")

    @contextmanager
    def carrying_out(self, request: Request) -> Iterator[None]:
        """While its bytes move, after it was negotiated."""
        self._event(request, ph="E")
        self._event(request, ph="B", name=request.kind.upper())
        try:
            yield
        finally:
            self._event(request, ph="E")

    def turn(self) -> None:
        """All ranks have exchanged their requests."""
        if self._marks_turns:
            self._write(ph="i", pid=0, name="CYCLE_START", s="g", ts=self._now())

    def close(self) -> None:
        self._out.write("\n]\n")
        self._out.close()

    def _event(self, request: Request, **event: Any) -> None:
        named = request.name.startswith(f"{request.kind}.")
        row = request.name if named else f"{request.kind}.{request.name}"
        if row not in self._rows:
            self._rows[row] = len(self._rows) + 1
            self._write(ph="M", pid=self._rows[row], name="process_name", args={"name": row})
        self._write(pid=self._rows[row], ts=self._now(), **event)

    def _now(self) -> float:
        """Microseconds since it was begun."""
        return (time.monotonic_ns() - self._begun) / 1000

    def _write(self, **event: Any) -> None:
        self._out.write(self._separator + json.dumps(event))
        self._separator = ",\n"
        self._out.flush()
