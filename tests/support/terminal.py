"""A program at a terminal of its own, and what a user types there."""

from __future__ import annotations

import os
import pty
import select
import time
from collections.abc import Mapping, Sequence


class Terminal:
    """Runs ``argv`` at a new pseudo-terminal, as its session's leader.

    Attributes:
        text: all that it has shown so far.
    """

    def __init__(self, argv: Sequence[str], environ: Mapping[str, str]):
        self.text = ""
        self._seen = 0
        self._pid, self._handle = pty.fork()
        if not self._pid:
            os.execvpe(argv[0], list(argv), dict(environ))

    def until(self, text: str, limit_s: float = 60.0) -> str:
        """Reads on until ``text`` comes; what was shown since the last call, up to there."""
        end = time.monotonic() + limit_s
        while text not in self.text[self._seen :] and time.monotonic() < end and self._read(1.0):
            pass
        before, found, _ = self.text[self._seen :].partition(text)
        assert found, self.text
        self._seen += len(before + found)
        return before + found

    def type(self, line: str) -> None:
        os.write(self._handle, line.encode())

    def end(self) -> int:
        """Waits for the program's end; its exit code."""
        while self._read(60.0):
            pass
        os.close(self._handle)
        return os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])

    def _read(self, seconds: float) -> bool:
        ready, _, _ = select.select([self._handle], [], [], seconds)
        try:
            read = os.read(self._handle, 65536) if ready else b""
        except OSError:  # nobody has it open any more
            return False
        self.text += read.decode(errors="replace")
        return bool(read) or not ready
