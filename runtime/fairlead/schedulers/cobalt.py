"""Cobalt. Grammar: qsub of Cobalt as in ALCF's "Running Jobs on XC40" and "Cobalt Job Control": -n nodes, -t
minutes, -A, -q, -O prefix, --jobname, --attrs."""

from __future__ import annotations

from collections.abc import Mapping

from fairlead.base.process import Ran
from fairlead.base.system import View
from fairlead.launchers.model import given
from fairlead.schedulers.model import Allocation, Job, Scheduler, first_words, lacks


class Cobalt(Scheduler):
    kind = "cobalt"
    title = "Cobalt"
    programs = ("cqsub", "cobalt-mpirun", "qsub")
    config_files = ("/etc/cobalt.conf", "{prefix}/etc/cobalt.conf")
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
        if job.warn_s:
            raise lacks("cobalt", "a signal before the time limit", "leave out --warn")
        if not shape.time_s:
            raise lacks("cobalt", "no time limit", "add --time, e.g. --time 30m")
        if not shape.filled:
            raise lacks("cobalt", "ranks without a number of nodes", "add -N NODES")
        words = given(
            ("-n {}", shape.filled),
            ("-t {}", -(-shape.time_s // 60)),
            ("-A {}", shape.account),
            ("-q {}", shape.partition),
            ("--jobname {}", job.name),
            ("-O {}", job.log),
        )
        return (*words, *job.options)

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
