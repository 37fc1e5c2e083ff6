"""The scheduler, the name it has for the machine, and whether this process is in one of its jobs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fairlead.base.process import Ran
from fairlead.base.system import View
from fairlead.base.timeboxed import answers, failed, words
from fairlead.detect.model import SchedulerFact, Unknown
from fairlead.schedulers.model import Scheduler
from fairlead.schedulers.registry import ordered


def probe(view: View) -> dict[str, Any]:
    schedulers = ordered()
    programs = {
        s.kind: path
        for s in schedulers
        if (path := next(filter(None, map(view.which, s.programs)), None))
    }
    commands: dict[tuple[str, str], tuple[str, ...]] = {}
    for scheduler in schedulers:
        if scheduler.kind in programs:
            commands[scheduler.kind, ""] = scheduler.version_command
            questions = scheduler.questions(view)
            commands |= {(scheduler.kind, key): argv for key, argv in questions.items()}
    answered = answers(view, commands)
    facts: list[SchedulerFact] = []
    unknown: list[Unknown] = []
    for scheduler in schedulers:
        own = {key: ran for (kind, key), ran in answered.items() if kind == scheduler.kind}
        fact = _fact(view, scheduler, programs.get(scheduler.kind, ""), own)
        if fact is None:
            continue
        facts.append(fact)
        if (ran := own.get("")) and ran.returncode not in (0, 127) and not fact.version:
            unknown.append(Unknown(f"version of {scheduler.kind}", failed(ran)))
        if (ran := own.get("ClusterName")) and ran.returncode:
            unknown.append(Unknown(f"what {scheduler.title} calls this cluster", failed(ran)))
    return {"schedulers": tuple(facts), "unknown": tuple(unknown)}


def _fact(
    view: View, scheduler: Scheduler, path: str, answered: Mapping[str, Ran]
) -> SchedulerFact | None:
    job = view.environ.get(scheduler.job_variable, "")
    ran = answered.get("")
    text = words(ran) if ran else ""
    evidence = [f"`{path.rpartition('/')[2]}` at {path}"] if path else []
    evidence += [f"${scheduler.job_variable}"] if job else []
    if not evidence or not scheduler.is_present(view, text, ran):
        return None
    cluster, where = scheduler.cluster(view, answered)
    evidence += [where] if where else []
    return SchedulerFact(scheduler.kind, scheduler.version(text), cluster, job, ", ".join(evidence))
