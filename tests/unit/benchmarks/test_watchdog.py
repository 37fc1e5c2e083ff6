"""Launches that make no progress: what is written down about them, and that nothing is left of them."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest
from benchmarks import watchdog

# A launcher whose rank is in another session, as a proxy's are, waits for it.
LAUNCHER = """
import subprocess, sys
rank = subprocess.Popen([sys.executable, "-c", sys.argv[1]], start_new_session=True)
sys.exit(rank.wait())
"""
STANDS = "import os, time; print('8 bytes', os.getpid(), flush=True); time.sleep(600)"


def launch(rank: str) -> list[str]:
    return [sys.executable, "-c", LAUNCHER, rank]


def test_launch_that_prints_nothing_is_described_and_ended(tmp_path: Path) -> None:
    with pytest.raises(watchdog.Stuck) as caught:
        watchdog.run(launch(STANDS), os.environ, quiet_s=1.5, folder=tmp_path)
    (file,) = tmp_path.iterdir()
    assert str(file) in str(caught.value)
    text = file.read_text()
    (rank,) = [line.split()[2] for line in text.splitlines() if line.startswith("8 bytes")]
    described = text[text.index(f"== process {rank}: {sys.executable}") :]
    assert f"thread {rank}: S, last on core " in described
    assert "Cpus_allowed_list:" in described and "system call " in described
    assert text.count("== process ") == 2
    ended = Path("/proc", rank, "status")  # init may not have asked for it yet
    assert not ended.exists() or "\nState:\tZ" in ended.read_text()


def test_launch_that_prints_now_and_then_may_take_longer(tmp_path: Path) -> None:
    rank = "import time\nfor i in range(8): print(i, flush=True); time.sleep(0.5)"
    begun = time.monotonic()
    output = watchdog.run(launch(rank), os.environ, quiet_s=3, folder=tmp_path)
    assert output.split() == list("01234567") and time.monotonic() - begun > 3
    assert list(tmp_path.iterdir()) == []


def test_launch_that_fails_brings_what_it_said(tmp_path: Path) -> None:
    rank = "import sys; print('a row'); sys.exit('no such MPI')"
    with pytest.raises(RuntimeError, match="ended with code 1: no such MPI"):
        watchdog.run(launch(rank), os.environ, folder=tmp_path)
