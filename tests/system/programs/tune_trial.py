"""A trial that ends as its parameters say, and notes in a ledger that it began and ended."""

import argparse
import os
import resource
import signal
import time

parser = argparse.ArgumentParser()
parser.add_argument("--mode", default="good")
parser.add_argument("--x", type=float, default=1.0)
parser.add_argument("--seconds", type=float, default=0.0)
parser.add_argument("--trial", default="0")
parser.add_argument("--ledger", default=os.devnull)
given = parser.parse_args()


def note(what: str) -> None:
    with open(given.ledger, "a") as stream:
        stream.write(f"{what} {given.trial} {given.x!r}\n")


note("begun")
print(f"mode {given.mode} on", *sorted(os.sched_getaffinity(0)), flush=True)
time.sleep(600 if given.mode == "hang" else given.seconds)
if given.mode == "crash":
    raise RuntimeError("asked to crash")
if given.mode == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
if given.mode == "memory":
    resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
    bytes(8 << 30)
if given.mode != "silent":
    print("FoM:", "nan" if given.mode == "nan" else (given.x - 0.5) ** 2)
note("ended")
