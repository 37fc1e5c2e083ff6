"""Readers of FUSE file systems keep to one core; what started them does not."""

from __future__ import annotations

import os
import subprocess
import sys

CODE = """
import os
from fairlead.base.system import stay_on_one_core
stay_on_one_core()
print(sorted(os.sched_getaffinity(0)))
"""


def test_process_stays_on_the_core_that_it_runs_on() -> None:
    mine = os.sched_getaffinity(0)
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        [sys.executable, "-c", CODE], env=environ, capture_output=True, text=True, check=True
    )
    (core,) = map(int, done.stdout.strip().strip("[]").split(","))
    assert core in mine and os.sched_getaffinity(0) == mine
