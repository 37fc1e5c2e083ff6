"""Stopped processes are distinguished from waiting ones."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

from fairlead.launch.stopped import Stopped


def state(pid: int) -> bytes:
    return Path(f"/proc/{pid}/stat").read_bytes().split()[2]


def test_rank_that_is_stopped_is_named_after_three_looks() -> None:
    sleeper = subprocess.Popen(["sleep", "60"], env={**os.environ, "PMI_RANK": "3"})
    now = 0.0
    try:
        looks = Stopped(lambda: [sleeper.pid, os.getpid()], lambda: now)

        def later() -> str | None:
            nonlocal now
            now += 6
            return looks.look()

        assert [later() for _ in range(4)] == [None] * 4
        sleeper.send_signal(signal.SIGSTOP)
        while b"T" not in state(sleeper.pid):
            time.sleep(0.01)
        assert looks.look() is None  # not yet time for a look
        assert [later() for _ in range(3)] == [None, None, "3"]
        sleeper.send_signal(signal.SIGCONT)
        while b"T" in state(sleeper.pid):
            time.sleep(0.01)
        assert later() is None
    finally:
        sleeper.kill()
        sleeper.wait()
