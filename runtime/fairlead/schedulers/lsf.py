"""LSF. Grammar: bsub(1), "span string" and "affinity string" of the LSF 10.1 documentation; ``-nnodes`` is that of
its CSM integration, which jsrun works under (OLCF's batch script examples)."""

from __future__ import annotations

import re
from collections.abc import Mapping

from fairlead.base.process import Ran
from fairlead.base.system import View
from fairlead.base.timeboxed import words
from fairlead.launchers.model import given
from fairlead.schedulers.model import (
    SPLIT_RUNTIME,
    Allocation,
    Job,
    Scheduler,
    first_words,
    lacks,
)

_SLOTS = (
    "#BSUB -n {{(nodes or 1)|int * (ranks_per_node or 1)|int}}",
    '#BSUB -R "span[ptile={{ranks_per_node or 1}}]"',
)
_SERVER = (
    "#BSUB -J jupyterhub",
    "#BSUB -o {{homedir}}/.jupyterhub.log",
    SPLIT_RUNTIME,
    "{% set minutes = t[0]|int * 60 + t[1]|int + (t[2]|int > 0)|int -%}",
    "#BSUB -W {{minutes // 60}}:{{'%02d' % (minutes % 60)}}",
    "{% if account %}#BSUB -P {{account}}",
    "{% endif %}{% if partition %}#BSUB -q {{partition}}",
    "{% endif %}",
    "cd {{homedir}}",
)


class Lsf(Scheduler):
    kind = "lsf"
    title = "LSF"
    programs = ("bsub",)
    variables = ("LSF_ENVDIR", "LSF_SERVERDIR")
    config_files = ("/etc/lsf.conf", "{prefix}/conf/lsf.conf")
    version_command = ("bsub", "-V")
    version_after = "LSF"
    job_variable = "LSB_JOBID"
    host = "LSB_SUB_HOST"
    sentinel = "#BSUB "
    submit = "bsub <"
    index = "LSB_JOBINDEX"
    launcher = "jsrun"
    interactive = "bsub -Is -nnodes 1 -W 10 jsrun -n 1 {command}"
    reframe = "lsf"
    requeue = ("brequeue",)
    spawner = "LsfSpawner"

    def directives(self, job: Job) -> tuple[str, ...]:
        shape = job.shape
        minutes = -(-shape.time_s // 60)
        lines = [*given(("-J {}", _name(job))), *_size(job)]
        lines += given(
            ("-W {}", minutes and f"{minutes // 60}:{minutes % 60:02}"),
            ("-P {}", shape.account),
            ("-q {}", shape.partition),
            ("{}", "-r" if job.requeue else "-rn"),
            ("-o {}", job.log),
            ("-wa USR1 -wt {}", -(-job.warn_s // 60)),
        )
        return (*lines, *job.options)

    def server_lines(self, launcher: str) -> tuple[str, ...]:
        size = ("#BSUB -nnodes {{nodes or 1}}",) if launcher == "jsrun" else _SLOTS
        return (*size, *_SERVER)

    def allocation(self, environ: Mapping[str, str]) -> Allocation | None:
        """Source: bsub(1), "Environment variables": $LSB_DJOB_HOSTFILE has a line a slot, the launch node first under CSM."""
        job = environ.get("LSB_JOBID")
        if not job:
            return None
        slots = (
            first_words(environ.get("LSB_DJOB_HOSTFILE", ""))
            or environ.get("LSB_HOSTS", "").split()
        )
        if not slots:
            words = environ.get("LSB_MCPU_HOSTS", "").split()
            pairs = zip(words[::2], words[1::2], strict=False)
            slots = [host for host, n in pairs for _ in range(int(n) if n.isdigit() else 0)]
        hosts = list(dict.fromkeys(slots))
        if len(hosts) > 1 and slots.count(hosts[0]) == 1 and slots.count(hosts[1]) > 1:
            # Under CSM the first line is the node that the script runs on, which has no ranks.
            slots, hosts = slots[1:], hosts[1:]
        return Allocation(self.kind, job, len(hosts), tuple(hosts), len(slots), "LSB_JOBID")

    def questions(self, view: View) -> dict[str, tuple[str, ...]]:
        return {"lsid": ("lsid",)}

    def cluster(self, view: View, answers: Mapping[str, Ran]) -> tuple[str, str]:
        text = words(answers["lsid"]) if "lsid" in answers else ""
        match = re.search(r"My cluster name is (\S+)", text)
        return (match[1], "`lsid`") if match else ("", "")


SCHEDULER = Lsf()


def _name(job: Job) -> str:
    """The job's name; an array's indexes are a part of it."""
    if (array := job.array) is None:
        return job.name
    if array.first < 1:
        raise lacks("lsf", "an array from 0", f"--array 1-{array.last - array.first + 1}")
    return f'"{job.name or "fairlead"}{array.words("[{}]")}"'


def _size(job: Job) -> list[str]:
    """Nodes for jsrun, which places ranks by itself; else slots, with cores and GPUs for each."""
    shape = job.shape
    if job.launcher == "jsrun":
        if not shape.filled:
            raise lacks("lsf", "ranks without a number of nodes for jsrun", "add -N NODES")
        return [f"-nnodes {shape.filled}"]
    return given(
        ("-n {}", shape.ranks),
        ('-R "span[ptile={}]"', shape.each),
        ('-R "affinity[core({})]"', shape.cores),
        ('-gpu "num={}/task"', shape.gpus),
    )
