"""Flux. Grammar: flux-batch(1) of flux-core, and RFC 36 for the directives: one sentinel, shell quoting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from fairlead.base.process import Ran
from fairlead.base.system import View
from fairlead.launchers.flux import allocation_words
from fairlead.launchers.model import Shape, given
from fairlead.schedulers.model import SPLIT_RUNTIME, Allocation, Job, Scheduler, lacks


class Flux(Scheduler):
    kind = "flux"
    title = "Flux"
    programs = ("flux",)
    variables = ("FLUX_URI",)
    config_files = (
        "/run/flux/local",
        "/etc/flux/system/conf.d/*",
        "{prefix}/etc/flux/system/conf.d/*",
    )
    version_command = ("flux", "version")
    version_after = "commands:"
    job_variable = "FLUX_JOB_ID"
    nests = True
    sentinel = "# flux: "
    submit = "flux batch"
    launcher = "flux"
    interactive = "flux run -N 1 -n 1 {command}"
    interactive_program = "flux"
    reframe = "flux"
    spawner = "BatchSpawnerRegexStates"
    spawner_settings = MappingProxyType(
        {
            "batch_submit_cmd": "flux batch",
            # flux-jobs(1); of the nodes `[a-c]` of a job the first one runs the script.
            "batch_query_cmd": 'flux jobs -n -o "{% raw %}{state} {nodelist}{% endraw %}" {{job_id}}',
            "batch_cancel_cmd": "flux cancel {{job_id}}",
            "state_pending_re": r"^(DEPEND|PRIORITY|SCHED)\b",
            "state_running_re": r"^RUN\b",
            "state_exechost_re": r"^\w+ ([\w.-]+)(?:\[(\w+))?",
            "state_exechost_exp": r"\1\2",
        }
    )
    spawner_lines = (
        "# flux: --job-name=jupyterhub",
        "# flux: --output={{homedir}}/.jupyterhub.log",
        "# flux: -N {{nodes or 1}} -n {{(nodes or 1)|int * (ranks_per_node or 1)|int}}",
        SPLIT_RUNTIME,
        "# flux: -t {{t[0]|int * 3600 + t[1]|int * 60 + t[2]|int}}s",
        "{% if account %}# flux: -B {{account}}",
        "{% endif %}{% if partition %}# flux: -q {{partition}}",
        "{% endif %}",
        "cd {{homedir}}",
    )

    def directives(self, job: Job) -> tuple[str, ...]:
        if job.array:
            raise lacks(
                "flux", "an array", "send it by `flux bulksubmit`, which fills in a value a job"
            )
        if job.requeue:
            raise lacks("flux", "a requeue", "leave out --requeue")
        size = allocation_words(job.shape, "--nslots", "per-slot")
        name, log = given(("--job-name={}", job.name)), given(("--output={}", job.log))
        warned = given(("--signal=SIGUSR1@{}s", job.warn_s))
        return (*name, *size, *log, *warned, *job.options)

    def allocation(self, environ: Mapping[str, str]) -> Allocation | None:
        """Source: flux-environment(7)."""
        if "FLUX_URI" not in environ:
            return None
        size = environ.get("FLUX_JOB_NNODES", "")
        nodes = int(size) if size.isdigit() else 0
        return Allocation(self.kind, environ.get("FLUX_JOB_ID", "here"), nodes, by="FLUX_URI")

    def allocate(
        self, program: str, shape: Shape, options: Sequence[str], argv: Sequence[str], quiet: bool
    ) -> tuple[str, ...]:
        size = allocation_words(shape, "--nslots", "per-slot")
        return (program, "alloc", *options, *size, "--", *argv)

    def is_present(self, view: View, version_text: str, answered: Ran | None) -> bool:
        """Other programs are called ``flux`` too: one serves containers, another queries a database."""
        inside = "FLUX_URI" in view.environ or "FLUX_JOB_ID" in view.environ
        timed_out = answered is not None and answered.returncode == 124
        return inside or "flux-core" in version_text or timed_out


SCHEDULER = Flux()
