"""A step on every node of a job, started as the command will be.

Where it is left to the launcher on which nodes ranks are, it starts as many processes as the command has
ranks, and so on the very nodes that it will have; those that come second on a node find that
another one works, and end.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence

from fairlead.launch import processes
from fairlead.launch.launch import CommandLine
from fairlead.transfer.job import EachNode
from fairlead.transfer.place import job_here


def elsewhere(named_launcher: bool, environ: Mapping[str, str]) -> bool:
    """Whether ranks may come to be on other nodes than this one.

    In a job they may even where it has one node: this may be the login node that it was asked from.

    Args:
        named_launcher: the user has named a launcher, of which nobody knows where it starts ranks.
    """
    return named_launcher or bool(job_here(environ))


def through_launcher(
    launcher: Sequence[str], unset: Sequence[str] = (), environ: Mapping[str, str] = os.environ
) -> EachNode:
    """Starts steps by the words of a launcher.

    Args:
        unset: variables that must not reach them.
    """

    def each_node(words: Sequence[str]) -> int:
        line = CommandLine((*launcher, *words), {}, tuple(unset))
        started = processes.start(
            line.argv,
            line.environment(environ),
            f"stage-{os.urandom(4).hex()}",
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr.fileno(),
        )
        try:
            return started.process.wait()
        finally:
            # A step that is ended undoes what it has begun, for which it needs a moment.
            processes.end(started, 5.0)

    return each_node
