"""Flux. Grammar: flux-batch(1) of flux-core, and RFC 36 for the directives: one sentinel, shell quoting."""

from __future__ import annotations

from fairlead.launchers.flux import allocation_words
from fairlead.schedulers.model import Job, lacks


class Flux:
    """``# flux:`` lines."""

    kind = "flux"
    sentinel = "# flux: "
    submit = "flux batch"
    index = ""
    folder = ""

    def directives(self, job: Job) -> tuple[str, ...]:
        if job.array:
            raise lacks(
                "flux", "an array", "send it by `flux bulksubmit`, which fills in a value a job"
            )
        if job.requeue:
            raise lacks("flux", "a requeue", "leave out --requeue")
        said = [f"--job-name={job.name}"] if job.name else []
        said += allocation_words(job.shape, "--nslots", "per-slot")
        if job.log:
            said.append(f"--output={job.log}")
        return (*said, *job.options)


DRIVER = Flux()
