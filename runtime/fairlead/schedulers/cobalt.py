"""Cobalt. Grammar: qsub of Cobalt as in ALCF's "Running Jobs on XC40" and "Cobalt Job Control": -n nodes, -t
minutes, -A, -q, -O prefix, --jobname, --attrs."""

from __future__ import annotations

from collections.abc import Mapping

from fairlead.base.process import Ran
from fairlead.base.system import View
from fairlead.schedulers.hostlist import first_words
from fairlead.schedulers.model import Allocation, Job, Scheduler, lacks


class Cobalt(Scheduler):
    """``#COBALT`` lines."""

    kind = "cobalt"
    title = "Cobalt"
    programs = ("cqsub", "cobalt-mpirun", "qsub")
    version_command = ("qstat", "--version")
    job_variable = "COBALT_JOBID"
    sentinel = "#COBALT "
    submit = "qsub --mode script"
    launcher = "aprun"
    interactive = "qsub -I -n 1 -t 10, and there: aprun -n 1 {command}"

    def directives(self, job: Job) -> tuple[str, ...]:
        shape = job.shape
        if job.array:
            raise lacks("cobalt", "an array", "send the script once for each value")
        if job.requeue:
            raise lacks("cobalt", "a requeue", "leave out --requeue")
        if not shape.time_s:
            raise lacks("cobalt", "no time limit", "add --time, e.g. --time 30m")
        nodes = len([n for n in shape.spread if n])
        if not nodes:
            raise lacks("cobalt", "ranks without a number of nodes", "add -N NODES")
        said = [f"-n {nodes}", f"-t {-(-shape.time_s // 60)}"]
        if shape.account:
            said.append(f"-A {shape.account}")
        if shape.partition:
            said.append(f"-q {shape.partition}")
        if job.name:
            said.append(f"--jobname {job.name}")
        if job.log:
            said.append(f"-O {job.log}")
        return (*said, *job.options)

    def allocation(self, environ: Mapping[str, str]) -> Allocation | None:
        """Source: ALCF's "Running Jobs on XC40": $COBALT_NODEFILE has a line a node."""
        job = environ.get("COBALT_JOBID")
        if not job:
            return None
        hosts = tuple(dict.fromkeys(first_words(environ.get("COBALT_NODEFILE", ""))))
        size = environ.get("COBALT_JOBSIZE", "")
        nodes = int(size) if size.isdigit() else len(hosts)
        return Allocation(self.kind, job, nodes, hosts, 0, "COBALT_JOBID")

    def is_present(self, view: View, version_text: str, answered: Ran | None) -> bool:
        return is_cobalt(view, version_text)

    def submit_line(self, path: str) -> str:
        # It executes the file itself, by its path.
        return super().submit_line(path if "/" in path else f"./{path}")


SCHEDULER = Cobalt()


def is_cobalt(view: View, version_text: str) -> bool:
    """Whether ``qsub`` and ``qstat`` here are Cobalt's: PBS has programs of the same names."""
    qsub = view.which("qsub") or ""
    return bool(
        view.environ.get("COBALT_JOBID")
        or view.access("/etc/cobalt.conf", 0)
        or "cobalt" in version_text.lower()
        or (qsub and "cobalt" in view.real(qsub))
    )
