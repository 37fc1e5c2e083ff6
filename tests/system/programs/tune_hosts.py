"""A trial of several ranks that says where they are, and notes in a ledger that it began and ended."""

import argparse
import os
import platform
import time

from mpi4py import MPI

parser = argparse.ArgumentParser()
parser.add_argument("--x", type=float, default=1.0)
parser.add_argument("--seconds", type=float, default=0.0)
parser.add_argument("--trial", default="0")
parser.add_argument("--ledger", default=os.devnull)
given = parser.parse_args()
world = MPI.COMM_WORLD
names = world.allgather(platform.node())


def note(what: str) -> None:
    if world.rank == 0:
        with open(given.ledger, "a") as stream:
            stream.write(f"{what} {given.trial} {given.x!r} {','.join(names)}\n")


note("begun")
time.sleep(given.seconds)
world.Barrier()
note("ended")
if world.rank == 0:
    print("FoM:", (given.x - 0.5) ** 2)
