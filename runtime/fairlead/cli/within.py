"""Where a verb's ranks go: within the job that this shell is in, or in a new one."""

from __future__ import annotations

import os
import shlex
import sys
from dataclasses import replace

from fairlead import site as sites
from fairlead.cli.options import Planning
from fairlead.cli.screen import say
from fairlead.detect.capture import is_capture
from fairlead.launch import allocate
from fairlead.launch.request import Asked, on_this_machine
from fairlead.launch.request import shape as make_shape
from fairlead.launchers.model import Shape
from fairlead.schedulers.model import Allocation
from fairlead.schedulers.registry import find_allocation


def within(
    asked: Asked, planning: Planning, *, dry_run: bool = False, quiet: bool = False
) -> tuple[Shape, Allocation | None]:
    """The requested shape, and the job that it is in; None on a machine without one.

    Outside of a job, where the site has a scheduler that can run this very command again in a new one, it does not
    return: this process becomes that scheduler's command.

    Raises:
        FairleadError: exit code 2; the request contradicts itself or the job, or no scheduler can provide it.
    """
    allocation = find_allocation(os.environ)
    created = os.environ.pop(allocate.CREATED, "")
    if created and allocation:  # the job was made with these
        asked = replace(asked, time="", account="", partition="")
    shape = make_shape(asked, allocation)
    elsewhere = is_capture(planning.choices.site or "")  # which launching refuses
    if allocation is None and not dry_run and not elsewhere:
        site, _ = sites.resolve(planning.choices.site)
        again = [sys.executable, "-m", "fairlead", *sys.argv[1:]]
        if words := allocate.words(
            shape, asked, site, planning.choices.launcher, again, quiet=quiet
        ):
            if not quiet:
                job = shlex.join(words[: words.index("--")])
                say(f"asking {site.scheduler.kind} for nodes: {job}")
            allocate.become(words)
        if not planning.choices.launcher:  # a user's own launcher may start them anywhere
            on_this_machine(shape, len(os.sched_getaffinity(0)), os.environ)
    return shape, allocation
