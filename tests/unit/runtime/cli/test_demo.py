"""The demo's steps: what interrupts them does not rob them of their cleaning up."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tools import demo

# A step that takes a second to clean up, and ends with 130 as every interrupted verb does.
_STEP = """
import pathlib, signal, sys, time
def stop(number, frame):
    raise KeyboardInterrupt
signal.signal(signal.SIGTERM, stop)
try:
    pathlib.Path("started").touch()
    time.sleep(60)
except KeyboardInterrupt:
    time.sleep(1)
    pathlib.Path("cleaned").touch()
    sys.exit(130)
"""
ROOT = Path(__file__).parents[4]
_DEMO = "import sys; from tools.demo import run_step; sys.exit(run_step(sys.argv[1:]))"


@pytest.mark.parametrize("to_all", [True, False], ids=["ctrl-c", "sigterm"])
def test_step_interrupted_cleans_up_before_the_demo_ends(tmp_path: Path, to_all: bool) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", _DEMO, sys.executable, "-c", _STEP],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        start_new_session=True,
    )
    until = time.monotonic() + 60
    while not (tmp_path / "started").exists():
        assert process.poll() is None and time.monotonic() < until
        time.sleep(0.02)
    if to_all:
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    else:
        process.terminate()
    assert process.wait(60) == 130
    assert (tmp_path / "cleaned").exists()


def test_step_code_is_the_programs_own() -> None:
    assert demo.run_step([sys.executable, "-c", "raise SystemExit(7)"]) == 7
