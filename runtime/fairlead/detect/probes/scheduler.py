"""What gives nodes here, what it calls the machine, and whether this process is in a job of it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from fairlead.base.process import Ran
from fairlead.base.system import View
from fairlead.base.timeboxed import answers, failed, first, settings, version, words
from fairlead.detect.model import SchedulerFact, Unknown

# Slurm's configuration, and where one without files keeps what it was sent.
SLURM_CONF = (
    "/etc/slurm/slurm.conf",
    "/etc/slurm-llnl/slurm.conf",
    "/etc/opt/slurm/slurm.conf",
    "/run/slurm/conf/slurm.conf",
    "/var/spool/slurmd/conf-cache/slurm.conf",
    "/var/spool/slurm/d/conf-cache/slurm.conf",
)
# kind: programs of which one shows it, its question for a version, the variable of a job.
_KINDS: dict[str, tuple[tuple[str, ...], tuple[str, ...], str]] = {
    "slurm": (("sbatch", "srun", "sinfo"), ("sinfo", "--version"), "SLURM_JOB_ID"),
    "pbs": (("qsub",), ("qstat", "--version"), "PBS_JOBID"),
    "cobalt": (("cqsub", "cobalt-mpirun", "qsub"), ("qstat", "--version"), "COBALT_JOBID"),
    "lsf": (("bsub",), ("bsub", "-V"), "LSB_JOBID"),
    "flux": (("flux",), ("flux", "version"), "FLUX_JOB_ID"),
    "gridengine": (("qconf",), ("qconf", "-help"), "JOB_ID"),
}

JOBS = tuple(variable for kind, (_, _, variable) in _KINDS.items() if kind != "gridengine")


def slurm_conf(world: View) -> str:
    """Where Slurm's configuration is; empty when it is not to be seen."""
    return first(world, *filter(None, [world.environ.get("SLURM_CONF", "")]), *SLURM_CONF)


def probe(world: View) -> dict[str, Any]:
    found: list[SchedulerFact] = []
    unknown: list[Unknown] = []
    programs = {
        kind: path
        for kind, (names, _, _) in _KINDS.items()
        if (path := next(filter(None, map(world.which, names)), None))
    }
    asked: dict[str, tuple[str, ...]] = {kind: _KINDS[kind][1] for kind in programs}
    conf = slurm_conf(world)
    if "slurm" in programs and not _cluster_named(world, conf):
        asked["ClusterName"] = ("scontrol", "show", "config")
    if "lsf" in programs:
        asked["lsid"] = ("lsid",)
    said = answers(world, asked)
    for kind, fact in _facts(world, programs, said, conf):
        found.append(fact)
        if kind in said and said[kind].returncode not in (0, 127) and not fact.version:
            unknown.append(Unknown(f"version of {kind}", failed(said[kind])))
    if (ran := said.get("ClusterName")) and ran.returncode:
        unknown.append(Unknown("what Slurm calls this cluster", failed(ran)))
    return {"schedulers": tuple(found), "unknown": tuple(unknown)}


def _facts(
    world: View, programs: dict[str, str], said: dict[str, Ran], conf: str
) -> Iterator[tuple[str, SchedulerFact]]:
    for kind, (_, _, variable) in _KINDS.items():
        path, job = programs.get(kind, ""), world.environ.get(variable, "")
        text = words(said[kind]) if kind in said else ""
        seen = [f"`{path.rpartition('/')[2]}` at {path}"] if path else []
        seen += [f"${variable}"] if job else []
        if kind in ("pbs", "cobalt") and not _is(kind, world, text, job):
            continue
        if kind == "gridengine" and not path:
            continue  # JOB_ID alone is anybody's
        if kind == "flux" and not _is_flux(world, text, said.get(kind)):
            continue
        if not seen:
            continue
        cluster, where = _cluster(kind, world, said, conf)
        yield (
            kind,
            SchedulerFact(
                kind, _version(kind, text), cluster, job, ", ".join([*seen, *filter(None, [where])])
            ),
        )


def _is(kind: str, world: View, text: str, job: str) -> bool:
    """PBS and Cobalt have programs of the same names."""
    cobalt = bool(
        world.environ.get("COBALT_JOBID")
        or world.access("/etc/cobalt.conf", 0)
        or "cobalt" in text.lower()
        or (world.which("qsub") and "cobalt" in world.real(world.which("qsub") or ""))
    )
    if kind == "cobalt":
        return cobalt
    engine = world.which("qconf") is not None
    return bool(job) or not (cobalt or engine)


def _is_flux(world: View, text: str, ran: Ran | None) -> bool:
    """Other programs are called `flux` too: one that serves containers, one that asks a database."""
    within = "FLUX_URI" in world.environ or "FLUX_JOB_ID" in world.environ
    return within or "flux-core" in text or (ran is not None and ran.returncode == 124)


def _version(kind: str, text: str) -> str:
    if kind == "lsf":
        return version(text, "LSF")
    if kind == "flux":
        return version(text, "commands:") or version(text)
    return version(text)


def _cluster_named(world: View, conf: str) -> bool:
    return bool(world.environ.get("SLURM_CLUSTER_NAME") or _in_conf(world, conf))


def _in_conf(world: View, conf: str) -> str:
    lines = {k.lower(): v for k, v in settings(world.read(conf) or "", _CLUSTER).items()}
    return lines.get("clustername", "") if conf else ""


_CLUSTER = ("ClusterName", "clustername", "CLUSTERNAME")


def _cluster(kind: str, world: View, said: dict[str, Ran], conf: str) -> tuple[str, str]:
    if kind == "slurm":
        if name := world.environ.get("SLURM_CLUSTER_NAME"):
            return name, "$SLURM_CLUSTER_NAME"
        if name := _in_conf(world, conf):
            return name, conf
        text = words(said["ClusterName"]) if "ClusterName" in said else ""
        found = re.search(r"^ClusterName\s*=\s*(\S+)", text, re.MULTILINE)
        return (found[1], "`scontrol show config`") if found else ("", "")
    if kind == "lsf" and "lsid" in said:
        found = re.search(r"My cluster name is (\S+)", words(said["lsid"]))
        return (found[1], "`lsid`") if found else ("", "")
    if kind == "pbs":
        server = settings(world.read("/etc/pbs.conf") or "", ("PBS_SERVER",)).get("PBS_SERVER", "")
        return server, "/etc/pbs.conf" if server else ""
    return "", ""


def cluster_names(world: View) -> dict[str, str]:
    """What the machine is called by variables and files, each with where that stands; runs nothing."""
    names = {
        value: f"${variable}"
        for variable in ("SLURM_CLUSTER_NAME", "LMOD_SYSTEM_NAME")
        if (value := world.environ.get(variable))
    }
    conf = slurm_conf(world)
    if name := _in_conf(world, conf):
        names.setdefault(name, f"ClusterName in {conf}")
    return names
