"""Cobalt. Grammar: qsub of Cobalt as in ALCF's "Running Jobs on XC40" and "Cobalt Job Control": -n nodes, -t
minutes, -A, -q, -O prefix, --jobname, --attrs."""

from __future__ import annotations

from fairlead.schedulers.model import Job, lacks


class Cobalt:
    """``#COBALT`` lines."""

    kind = "cobalt"
    sentinel = "#COBALT "
    submit = "qsub --mode script"
    index = ""
    folder = ""

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


DRIVER = Cobalt()
