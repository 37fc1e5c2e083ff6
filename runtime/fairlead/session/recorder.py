"""What the host that launches ranks adds to a timeline: its own stages, and when each launch began, was proved, ended.

A :class:`Recorder` is made by a verb's ``--timeline FILE``. It appends to ``FILE.parts/host.jsonl``, gives each launch a
own folder next to it, and puts all of it together at the end; see :mod:`fairlead.trace.document`.
"""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from fairlead.base.comm_names import TIMELINE, TIMELINE_HOST
from fairlead.base.errors import FairleadError, Finding, info, warning
from fairlead.base.progress import Progress, Stage
from fairlead.swap.model import Bind
from fairlead.trace import document
from fairlead.trace.spans import clock_name

MOUNT = "/opt/fairlead/timeline"  # where the folder of the parts appears in every container


class Launching:
    """One launch that is recorded.

    Where the host does not record, as for a line that is only printed, rank 0 makes the file itself.
    """

    def __init__(self, recorder: Recorder, number: int, title: str):
        self._recorder, self._number = recorder, number
        by_host = recorder.records
        self._file = recorder.folder / str(number) if by_host else recorder.file
        recorder.put({"number": number, "title": title})

    @property
    def binds(self) -> tuple[Bind, ...]:
        """For the container."""
        return (Bind(str(self._file.parent), MOUNT),)

    @property
    def env(self) -> dict[str, str]:
        """Variables for ranks in a container."""
        return {TIMELINE: f"{MOUNT}/{self._file.name}"}

    @property
    def native_env(self) -> dict[str, str]:
        """Variables for ranks without one."""
        return {TIMELINE: str(self._file)}

    def begun(self) -> None:
        """The launcher starts now."""
        self._at("begun")

    def proved(self) -> None:
        """Every rank has been proved."""
        self._at("proved")

    def ended(self) -> None:
        """The launcher is gone."""
        self._at("ended")

    def _at(self, moment: str) -> None:
        self._recorder.put({"number": self._number, moment: time.monotonic_ns()})


class Recorder:
    """Records one run of a verb.

    Attributes:
        file: what it is to become.
        folder: of the parts.
    """

    def __init__(self, file: Path):
        self.file, self.folder = file, document.parts_of(file)
        self._lock = threading.Lock()
        self._launches = 0
        self._out = -1
        self._stages: list[str] = []

    @property
    def records(self) -> bool:
        """Between :meth:`begin` and :meth:`finish`."""
        return self._out >= 0

    def begin(self) -> None:
        """Clears what an earlier run has left, which must not look like this one's, and begins to record.

        Raises:
            FairleadError: the folder cannot be written.
        """
        try:
            shutil.rmtree(self.folder, ignore_errors=True)
            self.file.unlink(missing_ok=True)
            self.folder.mkdir(parents=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            self._out = os.open(self.folder / TIMELINE_HOST, flags, 0o666)
        except OSError as exc:
            raise document.unwritable(self.file, exc) from exc
        now = time.monotonic_ns()
        self.put(
            {"host": os.uname().nodename, "reads": clock_name(), "wall_ns": time.time_ns() - now}
        )

    def put(self, event: dict[str, Any]) -> None:
        """Adds a line; without space, the file stays as it is."""
        with self._lock, suppress(OSError):
            if self._out >= 0:
                os.write(self._out, (json.dumps(event) + "\n").encode())

    @contextmanager
    def span(self, name: str) -> Iterator[None]:
        """Records what is done within as a stage. Of the main thread."""
        begin = time.monotonic_ns()
        self._stages.append(name)
        try:
            yield
        finally:
            self._stages.pop()
            self.put({
                "thread": "stages", "name": name, "kind": "stage", "begin": begin, "end": time.monotonic_ns(),
            })  # fmt: skip

    def progress(self, inner: Progress) -> Progress:
        """``inner``, whose stages are recorded."""
        return _Recorded(inner, self)

    def launch(self, title: str = "") -> Launching:
        """A launch that is recorded; without a title, it is named after the stage that it is of."""
        number, self._launches = self._launches, self._launches + 1
        return Launching(self, number, title or (self._stages[-1] if self._stages else ""))

    def finish(self, missing: str) -> Finding:
        """Merges all parts; returns the outcome, for the user.

        Args:
            missing: why there may be no part of any rank.
        """
        with self._lock:
            if self._out >= 0:
                os.close(self._out)
            self._out = -1
        try:
            merged = document.merge(self.file)
        except FairleadError as exc:
            return exc.findings[0]
        if merged:
            return info("comm-timeline-written", line=merged.line(), file=self.file)
        shutil.rmtree(self.folder, ignore_errors=True)
        return warning("comm-timeline-missing", file=self.file, missing=missing)


class _Recorded:
    """A progress display that a recorder sees."""

    def __init__(self, inner: Progress, recorder: Recorder):
        self._inner, self._recorder = inner, recorder

    @contextmanager
    def stage(self, title: str, total: float | None = None, unit: str = "") -> Iterator[Stage]:
        with self._recorder.span(title), self._inner.stage(title, total, unit) as stage:
            yield stage
