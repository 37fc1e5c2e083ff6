"""Nodes for a run that is started outside of any job: the scheduler's own interactive command runs it again
within the new job, and takes the nodes back when it ends.

Slurm and Flux can do that and keep output, signals and exit code. The others open a shell or lose the code, so
they are refused, with ``fairlead script`` as the way.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from typing import NoReturn

from fairlead.base.errors import fail
from fairlead.launch.request import Asked
from fairlead.launchers.model import Shape
from fairlead.launchers.registry import LAUNCHERS
from fairlead.schedulers.model import leading, options
from fairlead.schedulers.registry import SCHEDULERS
from fairlead.site.model import Site

CREATED = "FAIRLEAD_ALLOCATED"


def words(
    shape: Shape,
    asked: Asked,
    site: Site,
    launcher: str | None,
    argv: Sequence[str],
    environ: Mapping[str, str] = os.environ,
    *,
    quiet: bool = False,
) -> tuple[str, ...] | None:
    """What to become so that ``argv`` runs in a new job; None where none is needed.

    Args:
        launcher: as ``--launcher`` gives it.
        argv: this very command.
        quiet: the scheduler's command is to say nothing but errors.
    Raises:
        FairleadError: exit code 2; nodes are requested, and no scheduler can provide them.
    """
    kind = site.scheduler.kind
    scheduled = kind != "none" and site.launcher.kinds[0] != "mpiexec"
    by_own = _scheduler_of(launcher)
    asks = bool(asked.of_scheduler) or (shape.nodes > 1 and not shape.hosts)
    if kind == "none" and by_own:
        kind, scheduled = by_own, True
    if launcher and not by_own and not asks:
        return None  # a user's own mpiexec, on this node
    if not scheduled and not asks:
        return None
    scheduler = SCHEDULERS.get(kind) if kind != "none" else None
    if scheduler and (program := scheduler.allocates(environ)):
        if site.scheduler.account and not asked.account:
            raise fail("allocation-no-account", site=site)
        own = _sites(site, asked)
        own += [scheduler.outlives_nodes] if asked.outlives and scheduler.outlives_nodes else []
        return scheduler.allocate(program, shape, own, argv, quiet)
    wishes = list(asked.of_scheduler) or [f"{shape.nodes} nodes"]
    if scheduler is None:
        raise fail("allocation-no-scheduler", options=" and ".join(wishes), site=site)
    if scheduler.interactive_program:
        raise fail("allocation-interactive-not-on-path", scheduler=scheduler, site=site)
    raise fail("allocation-interactive-loses-exit-code", scheduler=scheduler, site=site)


def _scheduler_of(launcher: str | None) -> str:
    """The scheduler whose nodes a launcher asks for by itself; empty where it does not."""
    name = (launcher or "").rpartition("/")[2]
    return LAUNCHERS.get(name).scheduler if name in LAUNCHERS else ""


def _sites(site: Site, asked: Asked) -> list[str]:
    """The site's options, but for those of which the user says otherwise."""
    kept = leading(options(site.scheduler.directives), (), asked.partition)
    return [word for option in kept for word in shlex.split(option)]


def become(words: Sequence[str]) -> NoReturn:
    """This process becomes the scheduler's command."""
    os.execve(words[0], list(words), {**os.environ, CREATED: "1"})
