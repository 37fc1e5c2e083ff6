"""Slurm. Grammar: sbatch(1)."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from fairlead.base.process import Ran, run
from fairlead.base.system import View
from fairlead.base.timeboxed import first, settings, words
from fairlead.launchers.model import Shape, given
from fairlead.launchers.srun import allocation_words
from fairlead.schedulers.model import Allocation, Job, Scheduler


class Slurm(Scheduler):
    kind = "slurm"
    title = "Slurm"
    programs = ("sbatch", "srun", "sinfo")
    variables = ("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_CLUSTER_NAME")
    config_files = ("{prefix}/etc/slurm.conf", "{prefix}/etc/slurm/slurm.conf")
    version_command = ("sinfo", "--version")
    job_variable = "SLURM_JOB_ID"
    host = "SLURM_SUBMIT_HOST"
    sentinel = "#SBATCH "
    submit = "sbatch"
    index = "SLURM_ARRAY_TASK_ID"
    launcher = "srun"
    interactive = "srun -N 1 -n 1 {command}"
    spawner = "SlurmSpawner"
    spawner_lines = (
        "#SBATCH --job-name=jupyterhub",
        "#SBATCH --output={{homedir}}/.jupyterhub-%j.log",
        "#SBATCH --chdir={{homedir}}",
        "#SBATCH --export={{keepvars}}",
        "#SBATCH --nodes={{nodes or 1}}",
        '#SBATCH --time={{runtime or "1:00:00"}}',
        "{% if account %}#SBATCH --account={{account}}",
        "{% endif %}{% if partition %}#SBATCH --partition={{partition}}",
        "{% endif %}",
        "# What srun gives to ranks: all, and not only what sbatch was to give to this script.",
        "export SLURM_EXPORT_ENV=ALL",
    )
    interactive_program = "salloc"
    reframe = "slurm"
    requeue = ("scontrol", "requeue")
    shown = ("show",)
    outlives_nodes = "--no-kill"
    cancel = ("scancel",)

    def configured(self, view: View) -> str:
        return super().configured(view) or slurm_conf(view)

    def directives(self, job: Job) -> tuple[str, ...]:
        words = [*given(("--job-name={}", job.name)), *allocation_words(job.shape)]
        words += given(
            ("--array={}", job.array and job.array.words()),
            ("--{}", "requeue" if job.requeue else "no-requeue"),
            ("--output={}", job.log),
            ("--signal=B:USR1@{}", job.warn_s),
            ("{}", self.outlives_nodes if job.outlives_nodes else ""),
        )
        return (*words, *job.options)

    def names_of_job(self, environ: Mapping[str, str]) -> tuple[str, ...]:
        array, task = environ.get("SLURM_ARRAY_JOB_ID"), environ.get("SLURM_ARRAY_TASK_ID")
        of_array = (f"{array}_{task}",) if array and task else ()
        return (*super().names_of_job(environ), *of_array)

    def allocation(self, environ: Mapping[str, str]) -> Allocation | None:
        """Source: sbatch(1), "OUTPUT ENVIRONMENT VARIABLES"."""
        job = environ.get("SLURM_JOB_ID") or environ.get("SLURM_JOBID")
        if not job:
            return None
        names = environ.get("SLURM_JOB_NODELIST", "")
        hosts = expand(names)
        cpus = sum(counts(environ.get("SLURM_JOB_CPUS_PER_NODE", "")))
        count = environ.get("SLURM_JOB_NUM_NODES", "")
        nodes = int(count) if count.isdigit() else len(hosts)
        return Allocation(self.kind, job, nodes, hosts, cpus, "SLURM_JOB_ID")

    def down(self, hosts: Sequence[str], environ: Mapping[str, str]) -> dict[str, str]:
        """Source: sinfo(1), "NODE STATE CODES"; ``*``: the node does not respond."""
        if not hosts:
            return {}
        question = ("sinfo", "--noheader", "--Node", f"--nodes={','.join(hosts)}", "--format=%N %T")
        answer = run(question, environ=environ, timeout_s=_ANSWER_S)
        states = dict(line.split(None, 1) for line in answer.stdout.splitlines() if " " in line)
        return {
            host: f"Slurm: {state.strip()}"
            for host, state in states.items()
            if state.startswith(("down", "fail")) or state.strip().endswith("*")
        }

    def guard(
        self, allocation: Allocation, environ: Mapping[str, str]
    ) -> tuple[tuple[str, ...], dict[str, str]]:
        """Slurm keeps a job with --no-kill whose first node has died, and its batch script with it, until its time limit."""
        here, job = environ.get("SLURMD_NODENAME", ""), allocation.job
        others = [host for host in allocation.hosts if host != here]
        if here not in allocation.hosts or not others:
            return (), {}
        # A node that is down is still shown as mixed, for a minute, while it counts as allocated: the reason tells.
        asked = f"timeout {_GUARD_S} sinfo --noheader --Node --nodes={here} --format='%T %E'"
        script = (
            f'while sleep {_GUARD_S}; do case "$({asked})" in down*|fail*|*"* Not responding"*) {_noted(here, job)}'
            f"scontrol requeue {job} || scancel {job}; exit ;; esac; done"
        )
        words = (
            "srun", f"--jobid={job}", "--overlap", "--nodes=1", "--ntasks=1", f"--nodelist={others[-1]}", "--mpi=none",
            "--quiet", "--output=none", "sh", "-c", script,
        )  # fmt: skip
        # What sbatch sets for the job's ranks would count for this step, too.
        return words, {
            n: v for n, v in environ.items() if n == "SLURM_CONF" or not n.startswith("SLURM")
        }

    def waits(self, job: str, environ: Mapping[str, str]) -> bool:
        """Source: squeue(1), "JOB STATE CODES"; a job that Slurm has requeued itself is pending, or about to be."""
        question = ("squeue", "--noheader", f"--jobs={job}", "--format=%T")
        answer = run(question, environ=environ, timeout_s=_ANSWER_S)
        return bool({"PENDING", "REQUEUED", "REQUEUE_HOLD"} & set(answer.stdout.split()))

    def queued(self, environ: Mapping[str, str]) -> dict[str, str] | None:
        """Source: squeue(1): without --states, jobs that are pending, running or completing."""
        question = ("squeue", "--noheader", f"--user={os.getuid()}", "--format=%i %T %j")
        answer = run(question, environ=environ, timeout_s=_ANSWER_S)
        if answer.returncode:
            return None
        rows = [line.split(None, 2) for line in answer.stdout.splitlines()]
        return {row[2]: row[0] for row in rows if len(row) == 3 and row[1] != "COMPLETING"}

    def allocate(
        self, program: str, shape: Shape, options: Sequence[str], argv: Sequence[str], quiet: bool
    ) -> tuple[str, ...]:
        # Without --quiet it reports that the job waits, and when it has its nodes.
        silence = ["--quiet"] if quiet else []
        return (program, *silence, *options, *allocation_words(shape), "--", *argv)

    def questions(self, view: View) -> dict[str, tuple[str, ...]]:
        return {} if self.cluster_names(view) else {"ClusterName": ("scontrol", "show", "config")}

    def cluster(self, view: View, answers: Mapping[str, Ran]) -> tuple[str, str]:
        if name := view.environ.get("SLURM_CLUSTER_NAME"):
            return name, "$SLURM_CLUSTER_NAME"
        conf = slurm_conf(view)
        if name := _cluster_in(view, conf):
            return name, conf
        text = words(answers["ClusterName"]) if "ClusterName" in answers else ""
        match = re.search(r"^ClusterName\s*=\s*(\S+)", text, re.MULTILINE)
        return (match[1], "`scontrol show config`") if match else ("", "")

    def cluster_names(self, view: View) -> dict[str, str]:
        names = {}
        if value := view.environ.get("SLURM_CLUSTER_NAME"):
            names[value] = "$SLURM_CLUSTER_NAME"
        conf = slurm_conf(view)
        if name := _cluster_in(view, conf):
            names.setdefault(name, f"ClusterName in {conf}")
        return names


SCHEDULER = Slurm()
_ANSWER_S = 10.0  # to wait for the controller


def _noted(node: str, job: str) -> str:
    """A command that reports the loss where this process writes, since it is gone itself then; empty if that is not a file."""
    log = Path("/proc/self/fd/2")
    with suppress(OSError):
        if log.is_file():
            note = (
                f"error[node-lost]: {node} is lost, and with it the script of job {job}: requeued"
            )
            return f"echo {shlex.quote(note)} >>{shlex.quote(str(log.readlink()))}; "
    return ""


_GUARD_S = 15  # between two questions to it


# Slurm's configuration, and where a node without files keeps what the controller sent.
SLURM_CONF = (
    "/etc/slurm/slurm.conf",
    "/etc/slurm-llnl/slurm.conf",
    "/etc/opt/slurm/slurm.conf",
    "/run/slurm/conf/slurm.conf",
    "/var/spool/slurmd/conf-cache/slurm.conf",
    "/var/spool/slurm/d/conf-cache/slurm.conf",
)
_CLUSTER = ("ClusterName", "clustername", "CLUSTERNAME")


def slurm_conf(view: View) -> str:
    """The path of Slurm's configuration; empty where it cannot be seen."""
    return first(view, *filter(None, [view.environ.get("SLURM_CONF", "")]), *SLURM_CONF)


def _cluster_in(view: View, conf: str) -> str:
    lines = {k.lower(): v for k, v in settings(view.read(conf) or "", _CLUSTER).items()}
    return lines.get("clustername", "") if conf else ""


def counts(text: str) -> tuple[int, ...]:
    """What SLURM_JOB_CPUS_PER_NODE says, a number a node.

    >>> counts("72(x2),36")
    (72, 72, 36)
    """
    numbers: list[int] = []
    for number, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", text):
        numbers += [int(number)] * int(times or 1)
    return tuple(numbers)


def expand(names: str) -> tuple[str, ...]:
    """A list of hosts as Slurm writes it, name by name: ``scontrol show hostnames`` without Slurm.

    >>> expand("nid[0008-0010,12],login1,r[1-2]c[3,4]-x")
    ('nid0008', 'nid0009', 'nid0010', 'nid12', 'login1', 'r1c3-x', 'r1c4-x', 'r2c3-x', 'r2c4-x')
    """
    hosts: list[str] = []
    for word in re.findall(r"(?:[^,\[]|\[[^\]]*\])+", names):
        made = [""]
        for plain, ranges in re.findall(r"([^\[]+)|\[([^\]]*)\]", word):
            ends = [plain] if plain else list(_numbers(ranges))
            made = [before + end for before in made for end in ends]
        hosts += made
    return tuple(hosts)


def _numbers(ranges: str) -> list[str]:
    numbers = []
    for part in ranges.split(","):
        first, dash, last = part.partition("-")
        if dash and first.isdigit() and last.isdigit():
            numbers += [f"{n:0{len(first)}}" for n in range(int(first), int(last) + 1)]
        else:
            numbers.append(part)
    return numbers
