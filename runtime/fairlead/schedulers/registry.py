"""The registry of schedulers: one module each, and entry points of the group ``fairlead.schedulers``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fairlead.base.registry import Registry
from fairlead.base.system import View
from fairlead.schedulers.model import Allocation, Scheduler

SCHEDULERS: Registry[Scheduler] = Registry("fairlead.schedulers", "SCHEDULER", ("script",))


def ordered() -> tuple[Scheduler, ...]:
    """Every scheduler; one that can run inside another's job comes after it."""
    return tuple(sorted(SCHEDULERS, key=lambda scheduler: (scheduler.nests, scheduler.kind)))


def with_scripts() -> tuple[str, ...]:
    """Kinds whose job scripts fairlead writes."""
    return tuple(scheduler.kind for scheduler in ordered() if scheduler.sentinel)


def find_allocation(environ: Mapping[str, str]) -> Allocation | None:
    """The allocation of this shell; None outside any job. Reads at most one small file."""
    return next(filter(None, (scheduler.allocation(environ) for scheduler in ordered())), None)


def down(
    allocation: Allocation | None, environ: Mapping[str, str], hosts: Sequence[str] = ()
) -> dict[str, str]:
    """The nodes of a job that its scheduler counts as failed, each with its word for it. May start a program.

    Args:
        hosts: those to ask about; empty for all of the job's.
    """
    scheduler = SCHEDULERS.get(allocation.scheduler) if allocation else None
    if allocation is None or scheduler is None:
        return {}
    return scheduler.down(hosts or allocation.hosts, environ)


def job_variables() -> tuple[str, ...]:
    """The variables by which schedulers' own jobs are known."""
    return tuple(s.job_variable for s in ordered() if s.job_variable_is_own)


def in_job(environ: Mapping[str, str]) -> bool:
    """Whether this process is in a scheduler's job."""
    return any(name in environ for name in job_variables())


def cluster_names(view: View) -> dict[str, str]:
    """The machine's names by variables and files, each with where it stands; starts no program."""
    names: dict[str, str] = {}
    for scheduler in ordered():
        names |= {n: where for n, where in scheduler.cluster_names(view).items() if n not in names}
    if value := view.environ.get("LMOD_SYSTEM_NAME"):
        names.setdefault(value, "$LMOD_SYSTEM_NAME")
    return names


def in_use(view: View) -> str:
    """What shows that a scheduler allocates this machine's nodes; empty if nothing does."""
    return next(filter(None, (scheduler.configured(view) for scheduler in ordered())), "")


def programs_of(name: str) -> bool:
    """Whether ``name`` is a program of a scheduler, which may be installed where that is not in use."""
    return any(name in scheduler.programs for scheduler in ordered())
