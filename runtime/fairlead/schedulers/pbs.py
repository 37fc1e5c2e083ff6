"""OpenPBS and PBS Professional. Grammar: qsub(1B); "Requesting resources" of the PBS User's Guide:
``-l select=N:ncpus=C:mpiprocs=P:ngpus=G``, a chunk a node."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby

from fairlead.base.process import Ran
from fairlead.base.system import View
from fairlead.base.timeboxed import settings
from fairlead.launchers.model import Shape, clock, given
from fairlead.schedulers.cobalt import is_cobalt
from fairlead.schedulers.model import Allocation, Job, Scheduler, first_words, lacks


class Pbs(Scheduler):
    kind = "pbs"
    title = "PBS"
    programs = ("qsub",)
    variables = ("PBS_CONF_FILE", "PBS_SERVER", "PBS_DEFAULT")
    config_files = (
        "/etc/pbs.conf", "/var/spool/pbs", "/var/spool/torque/server_name", "/var/lib/torque/server_name",
        "{prefix}/etc/pbs.conf",
    )  # fmt: skip
    version_command = ("qstat", "--version")
    job_variable = "PBS_JOBID"
    host = "PBS_O_HOST"
    sentinel = "#PBS "
    submit = "qsub"
    index = "PBS_ARRAY_INDEX"
    folder = "PBS_O_WORKDIR"
    interactive = "qsub -I -l select=1 -l walltime=0:10:00, and there: {command}"
    reframe = "pbs"
    requeue = ("qrerun",)
    spawner = "PBSSpawner"
    spawner_lines = (
        "#PBS -N jupyterhub",
        "#PBS -j oe",
        "#PBS -o {{homedir}}/.jupyterhub.log",
        "#PBS -v {{keepvars}}",
        "#PBS -l select={{nodes or 1}}:ncpus={{ranks_per_node or 1}}:mpiprocs={{ranks_per_node or 1}}",
        "#PBS -l place=scatter",
        '#PBS -l walltime={{runtime or "1:00:00"}}',
        "{% if account %}#PBS -A {{account}}",
        "{% endif %}{% if partition %}#PBS -q {{partition}}",
        "{% endif %}",
        "cd {{homedir}}",
    )

    def directives(self, job: Job) -> tuple[str, ...]:
        shape = job.shape
        if job.array and job.array.first == job.array.last:
            raise lacks("pbs", "an array of one", "leave out --array")
        if job.warn_s:
            raise lacks("pbs", "a signal before the time limit", "leave out --warn")
        words = given(
            ("-N {}", job.name),
            ("-l select={}", _chunks(shape)),
            ("-l place={}", shape.spread and "scatter"),
            ("-l walltime={}", clock(shape.time_s)),
            ("-A {}", shape.account),
            ("-q {}", shape.partition),
            ("-J {}", job.array and job.array.words()),
            ("-r {}", "y" if job.requeue or job.array else "n"),  # arrays have to be rerunnable
            ("-j {}", "oe"),
            ("-o {}", job.log),
        )
        return (*words, *job.options)

    def allocation(self, environ: Mapping[str, str]) -> Allocation | None:
        """Source: qsub(1B) of OpenPBS: $PBS_NODEFILE has a line a slot."""
        file = environ.get("PBS_NODEFILE")
        if not file:
            return None
        lines = first_words(file)
        hosts = tuple(dict.fromkeys(lines))
        # Without mpiprocs a chunk has one line, however many cores it has: then slots are not known.
        slots = len(lines) if len(lines) > len(hosts) else 0
        job = environ.get("PBS_JOBID", "")
        return Allocation(self.kind, job, len(hosts), hosts, slots, "PBS_NODEFILE")

    def is_present(self, view: View, version_text: str, answered: Ran | None) -> bool:
        # Cobalt and Grid Engine have programs of the same names.
        others = is_cobalt(view, version_text) or view.which("qconf") is not None
        return bool(view.environ.get(self.job_variable)) or not others

    def cluster(self, view: View, answers: Mapping[str, Ran]) -> tuple[str, str]:
        server = settings(view.read("/etc/pbs.conf") or "", ("PBS_SERVER",)).get("PBS_SERVER", "")
        return server, "/etc/pbs.conf" if server else ""


def _chunks(shape: Shape) -> str:
    """``2:ncpus=8:mpiprocs=4``; nodes with fewer ranks are chunks of their own."""
    spread = [n for n in shape.spread if n] or [1] * shape.ranks
    chunks = []
    for ranks, same in groupby(spread):
        chunk = f"{len(list(same))}:ncpus={ranks * max(shape.cores, 1)}:mpiprocs={ranks}"
        chunks.append(chunk + (f":ngpus={ranks * shape.gpus}" if shape.gpus else ""))
    return "+".join(chunks)


SCHEDULER = Pbs()
