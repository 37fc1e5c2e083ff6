"""A rank that starts and takes its first steps: ``first_step.py FOLDER KIND WORDS``; FOLDER gets what each part took.

KIND is ``train``, a rank of `fairlead train` with the configuration WORDS; or ``nets``, WORDS a network of
``benchmarks/peers`` and how its gradients are averaged: ``fairlead`` or ``horovod``. Times are of the wall clock, which all
processes of a machine share.
"""

import time

BEGUN = time.time_ns()

import json
import os
import sys
from contextlib import contextmanager
from pathlib import Path

parts = []


@contextmanager
def part(name, _=None):
    begun = time.time_ns()
    yield
    parts.append((name, begun, time.time_ns()))


def train(config):
    """By its own spans, which are recorded here without a timeline."""
    from fairlead.trace import spans

    spans.recorder = part
    with part("import fairlead's worker"):
        from fairlead.ml.train import loop, worker

    plain = loop.Loop._step

    def step(self, batch, start):
        late = plain(self, batch, start)
        at, marks = time.time_ns() - time.perf_counter_ns(), self.progress.marks[-1]
        names = [f"step {self.progress.step}: {name}" for name in marks.parts]
        border = [at + border for border in marks.borders]
        parts.extend(zip(names, border, border[1:], strict=False))
        return late

    loop.Loop._step = step
    connected = worker.comm.init

    def init():
        with part("start MPI"):
            return connected()

    worker.comm.init = init
    sys.argv = ["worker", "--config", config]
    worker.main()


def nets(model, side):
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
    if side == "fairlead":
        with part("start MPI"):
            from fairlead import comm

            rank = comm.init().rank
    with part("load the framework"):
        from benchmarks.peers import nets
        from benchmarks.peers import steps_tensorflow as steps
    steps.use_threads(1)
    if side == "horovod":
        with part("start MPI"):
            import horovod.tensorflow as hvd

            hvd.init()
            rank = hvd.rank()
    with part("build the network"):
        network = steps.Network(model, nets.TASKS[model], rank)
    with part("give all ranks the same weights"):
        made = (
            steps.synchronous(network)
            if side == "fairlead"
            else steps.horovod(network, grouped=False)
        )
    for number in (1, 2, 3, 4):
        with part(f"step {number}"):
            made.step()


def main(folder, kind, *words):
    {"train": train, "nets": nets}[kind](*words)
    Path(folder, f"{os.getpid()}.json").write_text(json.dumps({"begun": BEGUN, "parts": parts}))
    if kind == "nets":
        sys.stdout.flush()
        os._exit(0)  # Horovod's threads would not let go


main(*sys.argv[1:])
