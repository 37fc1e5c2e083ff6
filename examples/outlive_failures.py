"""Ranks that save what they have done, and go on after a failure and after the scheduler's warning.

    $ fairlead run -n 2 --restarts 2 mpi-base -- python3 examples/outlive_failures.py

The file goes on where it was left, on other nodes as well. Here rank 1 fails once, to show it.
"""

import os
import signal
import sys
from pathlib import Path

from mpi4py import MPI

world = MPI.COMM_WORLD
saved = Path(os.environ.get("SAVED", "outlive-failures.saved"))  # where every node sees it
# SIGTERM comes when the job ends: at its time limit, or for a job that is more urgent.
leaving = []
signal.signal(signal.SIGTERM, lambda number, frame: leaving.append(number))

step, total = map(int, saved.read_text().split()) if saved.exists() else (0, 0)
step, total = world.bcast((step, total))
if world.rank == 0 and step:
    print(f"goes on after step {step}", flush=True)
while step < 10:
    total = world.allreduce(step) + total
    step += 1
    if step % 3 == 0 and world.rank == 0:
        partial = saved.with_suffix(".partial")
        partial.write_text(f"{step} {total}")
        partial.replace(saved)  # whole, or not at all
    if step == 5 and world.rank == 1 and os.environ.get("FAIRLEAD_RESTART") == "0":
        os.kill(os.getpid(), signal.SIGKILL)
    if world.allreduce(len(leaving)):
        sys.exit(f"left after step {step}")
if world.rank == 0:
    saved.unlink(missing_ok=True)
    print(f"{total} after {step} steps")
