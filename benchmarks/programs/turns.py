"""A rank that obeys commands from a socket, a line each: see ``benchmarks/sides.py``.

A line is a JSON object; ``do`` names one of the functions that :func:`serve` is given, whose result goes
back. An error goes back as text and ends the rank.
"""

import json
import os
import socket
import sys
import traceback


def rank_of(environ=os.environ):
    """This process among all, as its launcher says, before any MPI is started."""
    return int(environ.get("PMI_RANK", environ.get("PMIX_RANK", "0")))


def pin(rank):
    """One core for each rank, in turn; threads that are made later stay there too."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[rank % len(cores)]})


def serve(path, functions):
    """Answers until the command to end."""
    link = socket.socket(socket.AF_UNIX)
    link.connect(path)
    lines = link.makefile("rw")
    lines.write(json.dumps({"rank": rank_of()}) + "\n")
    lines.flush()
    for line in lines:
        asked = json.loads(line)
        if asked.pop("do") == "end":
            break
        try:
            answer = {"is": functions[asked.pop("what")](**asked)}
        except BaseException:
            answer = {"error": traceback.format_exc()}
        lines.write(json.dumps(answer) + "\n")
        lines.flush()
        if "error" in answer:
            # The other ranks wait in a collective: nothing is to be finalized.
            sys.stderr.write(answer["error"])
            os._exit(1)
