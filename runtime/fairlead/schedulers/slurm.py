"""Slurm. Grammar: sbatch(1)."""

from __future__ import annotations

from fairlead.launchers.srun import allocation_words
from fairlead.schedulers.model import Job


class Slurm:
    """``#SBATCH`` lines."""

    kind = "slurm"
    sentinel = "#SBATCH "
    submit = "sbatch"
    index = "SLURM_ARRAY_TASK_ID"
    folder = ""

    def directives(self, job: Job) -> tuple[str, ...]:
        said = [f"--job-name={job.name}"] if job.name else []
        said += allocation_words(job.shape)
        if job.array:
            a = job.array
            said.append(f"--array={a.first}-{a.last}{_more(':', a.step)}{_more('%', a.limit)}")
        said.append("--requeue" if job.requeue else "--no-requeue")
        if job.log:
            said.append(f"--output={job.log}")
        return (*said, *job.options)


def _more(sign: str, number: int) -> str:
    return f"{sign}{number}" if number > (sign == ":") else ""


DRIVER = Slurm()
