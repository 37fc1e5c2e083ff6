"""A TensorFlow rank that trains: ``tf_steps.py SOCKET SIZE SIDE``; ``benchmarks/sides.py`` says when.

SIDE is ``fairlead`` (modes ``none``, ``sync``, ``delayed``, ``only``: communication without a step), ``horovod``, ``horovod-best``, ``mwms`` or ``ps``.
The steps are those of ``fairlead bench peers``. SIZE is ``full`` or ``tiny``.
"""

import os
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import told

RANK = told.rank_of()
if not (sys.argv[3] == "ps" and RANK == 2):  # the server serves from any core
    told.pin(RANK)

import hashlib

import numpy as np

from fairlead.perf.bench import nets
from fairlead.perf.bench import parameter_server as servers
from fairlead.perf.bench import steps_tensorflow as steps
from fairlead.perf.bench.training import Training


def only(net):
    """Communication without a step."""
    from fairlead import comm
    from fairlead.comm import tensorflow as ours

    ours.broadcast([*net.variables, *net.momenta])
    ranks, arrays = comm.init(), [np.ones(v.shape, np.float32) for v in net.variables]
    return net.training(lambda: float(ranks.aggregate(arrays, out=arrays)[0].flat[0]))


OURS = {"none": steps.alone, "sync": steps.synchronous, "delayed": steps.delayed, "only": only}


def main(path, size, side):
    steps.use_threads(1)
    tasks = nets.SIZES[size]
    at = [f"127.0.0.1:{port}" for port in os.environ.get("BENCH_PORTS", "").split(",")]
    strategy = worker = None
    if side == "mwms":
        strategy = steps.mirrored_strategy(at, RANK)
        # It kills the process when the other does not answer for a while, and both are paused here.
        strategy.extended._stop_check_health_thread()
    if side == "ps":
        cluster = {"worker": at[:2], "ps": at[2:]}
        serving = RANK == 2
        worker = (
            servers.server(cluster, "ps", 0, 1) if serving else servers.Worker(cluster, RANK, 1)
        )
    made = {}

    def training(model, mode):
        if side == "ps" and RANK == 2:
            return Training(lambda: 0.0, list, list)
        net = steps.Network(model, tasks[model], RANK)
        if side == "ps":
            batch = steps.batch_of(tasks[model], RANK)
            return worker.training(model, tasks[model], batch, [v.numpy() for v in net.variables])
        if side == "fairlead":
            return OURS[mode](net)
        if side == "mwms":
            return steps.mirrored(net, strategy)
        return steps.horovod(net, grouped=side == "horovod-best")

    def warm(model, mode):
        made[model, mode] = training(model, mode)
        return [made[model, mode].step() for _ in range(2)]

    def step(model, mode):
        own = made[model, mode].step
        begun = time.perf_counter()
        loss = own()
        seconds = time.perf_counter() - begun
        assert np.isfinite(loss), f"{model} {mode}: loss {loss}"
        return seconds

    def digest(model, mode):
        made[model, mode].settle()
        whole = b"".join(a.tobytes() for a in made[model, mode].weights())
        return hashlib.sha256(whole).hexdigest()

    def drop(model):
        for key in [key for key in made if key[0] == model]:
            del made[key]

    told.serve(path, {"warm": warm, "step": step, "digest": digest, "drop": drop})
    sys.stdout.flush()
    os._exit(0)  # servers and health checks of TensorFlow would not let go


main(*sys.argv[1:4])
