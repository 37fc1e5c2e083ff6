"""OpenPBS and PBS Professional. Grammar: qsub(1B); "Requesting resources" of the PBS User's Guide:
``-l select=N:ncpus=C:mpiprocs=P:ngpus=G``, a chunk a node."""

from __future__ import annotations

from itertools import groupby

from fairlead.launchers.model import Shape, clock
from fairlead.schedulers.model import Job, lacks


class Pbs:
    """``#PBS`` lines."""

    kind = "pbs"
    sentinel = "#PBS "
    submit = "qsub"
    index = "PBS_ARRAY_INDEX"
    folder = "PBS_O_WORKDIR"

    def directives(self, job: Job) -> tuple[str, ...]:
        shape = job.shape
        said = [f"-N {job.name}"] if job.name else []
        said.append(f"-l select={_chunks(shape)}")
        if shape.spread:
            said.append("-l place=scatter")
        if shape.time_s:
            said.append(f"-l walltime={clock(shape.time_s)}")
        if shape.account:
            said.append(f"-A {shape.account}")
        if shape.partition:
            said.append(f"-q {shape.partition}")
        if job.array:
            a = job.array
            if a.first == a.last:
                raise lacks("pbs", "an array of one", "leave out --array")
            step = f":{a.step}" if a.step > 1 else ""
            limit = f"%{a.limit}" if a.limit else ""
            said.append(f"-J {a.first}-{a.last}{step}{limit}")
        said.append(
            f"-r {'y' if job.requeue or job.array else 'n'}"
        )  # arrays have to be rerunnable
        said.append("-j oe")
        if job.log:
            said.append(f"-o {job.log}")
        return (*said, *job.options)


def _chunks(shape: Shape) -> str:
    """``2:ncpus=8:mpiprocs=4``; nodes with fewer ranks are chunks of their own."""
    spread = [n for n in shape.spread if n] or [1] * shape.ranks
    chunks = []
    for ranks, same in groupby(spread):
        chunk = f"{len(list(same))}:ncpus={ranks * max(shape.cores, 1)}:mpiprocs={ranks}"
        chunks.append(chunk + (f":ngpus={ranks * shape.gpus}" if shape.gpus else ""))
    return "+".join(chunks)


DRIVER = Pbs()
