"""How the trials of ``fairlead tune`` are launched: on this machine, in a job, on hosts by name, or as jobs."""

from __future__ import annotations

import math
import os
import shlex
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from fairlead import site as sites
from fairlead.base.errors import ExitCode, fail
from fairlead.base.paths import cache_dir
from fairlead.cli import options
from fairlead.cli.screen import say
from fairlead.cli.within import LaunchFlags, Ready, plan_launch, within
from fairlead.launch import allocate, unpack
from fairlead.schedulers import model
from fairlead.schedulers import script as render
from fairlead.schedulers.registry import SCHEDULERS, find_allocation
from fairlead.session.prepare import refuse
from fairlead.tune import jobs
from fairlead.tune.jobs import Jobs
from fairlead.tune.launcher import Launcher, run_order
from fairlead.tune.places import Hosts, Place, Places, Steps, of_machine, visible_gpus
from fairlead.tune.tuner import Launches

# Of a trial's job: its name, and the folder of the trial, which this command runs instead of a search.
_JOB, _TRIAL = "FAIRLEAD_TUNE_JOB", "FAIRLEAD_TUNE_TRIAL"
_AT_ONCE = 10  # jobs


class Flags(LaunchFlags, Protocol):
    """What this module needs of the options of ``fairlead tune``."""

    @property
    def at_once(self) -> int | None: ...
    @property
    def as_jobs(self) -> bool: ...
    @property
    def quiet(self) -> bool: ...
    @property
    def env(self) -> tuple[str, ...]: ...


@dataclass(frozen=True)
class Trials:
    """The trials of a search.

    Attributes:
        asked: of each of them.
    """

    asked: options.Nodes
    planning: options.Planning
    flags: Flags

    def plan(self, image: str, command: tuple[str, ...]) -> Ready:
        """The launch that all trials share. On this machine, the tuner itself gives them cores.

        Raises:
            FairleadError: as :func:`plan_launch`, or the plan is refused.
        """
        asked, flags, hosts = self.asked, self.flags, self.asked.hosts
        if hosts:
            asked = replace(asked, hosts=hosts[: self._nodes], nodes=None)
        elif find_allocation(os.environ) is None and not flags.as_jobs:
            # A job of the scheduler has room for all trials that are to run at once.
            times = flags.at_once or 1
            nodes = asked.nodes * times if asked.nodes else None
            ranks = (asked.ranks or 1) * times
            whole = replace(asked, ranks=ranks, nodes=nodes, outlives=True)
            within(whole, self.planning, dry_run=flags.dry_run, quiet=flags.quiet)
            asked = replace(asked, cores=None)
        ready = plan_launch(
            image, asked, self.planning, _Dry(flags) if flags.as_jobs else flags, command=command,
            variables=options.variables(flags.env), quiet=flags.quiet,
        )  # fmt: skip
        prepared = ready.prepared
        if prepared.refused:
            raise refuse(prepared)
        if self._by_steps(ready):  # steps next to each other
            shape = prepared.plan.request.shape
            shape = replace(
                shape, cores=shape.cores or 1, extra=("--exact", "--mem=0", *shape.extra)
            )
            request = replace(prepared.plan.request, shape=shape)
            prepared = replace(prepared, plan=replace(prepared.plan, request=request))
            ready = replace(ready, prepared=prepared)
        return ready

    def _by_steps(self, ready: Ready) -> bool:
        return ready.allocation is not None and ready.prepared.plan.launcher.kind == "srun"

    @property
    def _nodes(self) -> int:
        """Nodes of a trial."""
        each, asked = self.asked.per_node, self.asked
        return asked.nodes or (math.ceil((asked.ranks or 1) / each) if each else 1)

    def places(self, ready: Ready) -> Places:
        """Where trials run at once.

        Raises:
            FairleadError: exit code 2; there is no room for a trial.
        """
        flags, job, shape = self.flags, ready.allocation, ready.prepared.plan.request.shape
        if flags.as_jobs:
            return Places([Place()] * (flags.at_once or _AT_ONCE))
        cores = shape.ranks * (self.asked.cores or 1)
        if self._by_steps(ready) and job and job.slots:
            return Steps(job, cores, flags.at_once)
        hosts = self.asked.hosts or (job.hosts if job else ())
        if len(hosts) > 1 or self.asked.hosts:
            return Hosts(hosts, self._nodes, flags.at_once, job)
        return Places(of_machine(cores, flags.at_once, shape.ranks * shape.gpus, visible_gpus()))

    def launches(self, ready: Ready) -> Launches:
        """What starts them.

        Raises:
            FairleadError: exit code 2; the site's scheduler cannot be asked about jobs.
        """
        if not self.flags.as_jobs:
            return Launcher(ready.prepared)
        site, _ = sites.resolve(self.planning.site)
        kind = site.scheduler.kind
        scheduler = SCHEDULERS.get(kind) if kind in SCHEDULERS else None
        if scheduler is None or not scheduler.cancel:
            known = ", ".join(s.kind for s in SCHEDULERS if s.cancel)
            raise fail("tune-jobs-scheduler", kind=kind, known=known)
        if site.scheduler.account and not self.asked.account:
            raise fail("script-no-account-named", own_name=site.name)
        own = model.options(site.scheduler.directives)
        leading = model.leading(own, (), self.asked.partition)

        def script(name: str, log: Path, folder: Path) -> str:
            job = model.Job(
                shape=ready.shape, name=name, log=str(log), body=_body(), leading=leading,
                launcher=self.planning.launcher or site.launcher.kinds[0], modules=site.engine.modules,
                exports=_exports(name, folder),
            )  # fmt: skip
            return render.script(kind, job)

        return Jobs(scheduler, script)


@dataclass(frozen=True)
class _Dry:
    """Options by which a launch is planned and no job is asked for."""

    flags: Flags
    timeline_file: str = ""
    dry_run: bool = True

    @property
    def as_json(self) -> bool:
        return self.flags.as_json


def _body() -> str:
    """The line of a trial's job: this very command, for one trial."""
    return f"exec {shlex.join([sys.executable, '-m', 'fairlead', *sys.argv[1:]])}"


def trial_of_job() -> Path | None:
    """The folder of the trial that this process is the job of; None for a search."""
    folder = os.environ.get(_TRIAL)
    return Path(folder) if folder else None


def _exports(name: str, folder: Path) -> tuple[tuple[str, str], ...]:
    kept = options.passed_on(os.environ)
    # The job was made with its time, account and partition.
    return (*kept, (_JOB, name), (_TRIAL, str(folder)), (allocate.CREATED, "1"))


def run_trial(ready: Ready, folder: Path) -> int:
    """Runs the trial in a folder, in its job.

    Raises:
        FairleadError: exit code 2; there is none.
    """
    folder = folder.absolute()
    order = jobs.order_in(folder)
    if not jobs.is_of(folder, os.environ.get(_JOB, "")):
        say(f"another job has taken the place of this one, of the trial in {folder}")
        return ExitCode.DONE
    unpack.ensure(ready.prepared.plan, cache_dir(), ready.progress)
    run_order(ready.prepared, order)
    return ExitCode.DONE
