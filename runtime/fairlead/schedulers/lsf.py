"""LSF. Grammar: bsub(1), "span string" and "affinity string" of the LSF 10.1 documentation; ``-nnodes`` is that of
its CSM integration, which jsrun works under (OLCF's batch script examples)."""

from __future__ import annotations

from fairlead.schedulers.model import Job, lacks


class Lsf:
    """``#BSUB`` lines."""

    kind = "lsf"
    sentinel = "#BSUB "
    submit = "bsub <"
    index = "LSB_JOBINDEX"
    folder = ""

    def directives(self, job: Job) -> tuple[str, ...]:
        shape, said = job.shape, []
        name = job.name
        if a := job.array:
            if a.first < 1:
                raise lacks("lsf", "an array from 0", f"--array 1-{a.last - a.first + 1}")
            step = f":{a.step}" if a.step > 1 else ""
            limit = f"%{a.limit}" if a.limit else ""
            name = f'"{name or "fairlead"}[{a.first}-{a.last}{step}]{limit}"'
        if name:
            said.append(f"-J {name}")
        nodes = len([n for n in shape.spread if n])
        if job.launcher == "jsrun":
            if not nodes:
                raise lacks("lsf", "ranks without a number of nodes for jsrun", "add -N NODES")
            said.append(f"-nnodes {nodes}")
        else:
            said.append(f"-n {shape.ranks}")
            if shape.each:
                said.append(f'-R "span[ptile={shape.each}]"')
            if shape.cores:
                said.append(f'-R "affinity[core({shape.cores})]"')
            if shape.gpus:
                said.append(f'-gpu "num={shape.gpus}/task"')
        if shape.time_s:
            minutes = -(-shape.time_s // 60)
            said.append(f"-W {minutes // 60}:{minutes % 60:02}")
        if shape.account:
            said.append(f"-P {shape.account}")
        if shape.partition:
            said.append(f"-q {shape.partition}")
        said.append("-r" if job.requeue else "-rn")
        if job.log:
            said.append(f"-o {job.log}")
        return (*said, *job.options)


DRIVER = Lsf()
