"""A rank that trains: ``train_steps.py SOCKET SIZE SIDE``; ``benchmarks/sides.py`` says when.

SIDE is ``fairlead`` (modes ``none``, ``sync``, ``delayed``, ``only``: communication without a step), ``horovod``,
``horovod-best``, ``mwms``, ``ps``, or ``torch`` (modes of
``benchmarks/peers/steps_torch.py``). The steps are those of
``python -m benchmarks.peers``. SIZE is ``full`` or ``tiny``.
"""

import os
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import turns

RANK = turns.rank_of()
if sys.argv[3] == "torch":
    os.environ["OMP_NUM_THREADS"] = "1"
if not (sys.argv[3] == "ps" and RANK == 2):  # the server serves from any core
    turns.pin(RANK)

import hashlib

import numpy as np
from benchmarks.peers import nets

from fairlead.comm.overlap import BLOCK, BLOCKS


def only(net):
    """Communication without a step."""
    from fairlead import comm
    from fairlead.comm import tensorflow as ours

    ours.broadcast([*net.variables, *net.momenta])
    ranks, arrays = comm.init(), [np.ones(v.shape, np.float32) for v in net.variables]
    return net.training(lambda: float(ranks.aggregate(arrays, out=arrays)[0].flat[0]))


def torch_side(tasks):
    """Makes a training of a model and mode."""
    import torch
    from benchmarks.peers import steps_torch

    from fairlead.comm.torch import init_process_group

    torch.set_num_threads(1)
    init_process_group()
    return lambda model, mode: steps_torch.training(model, tasks[model], mode, RANK)


def tensorflow_side(tasks, side):
    """The same."""
    from benchmarks.peers import parameter_server
    from benchmarks.peers import steps_tensorflow as steps

    def network(model):
        return steps.Network(model, tasks[model], RANK)

    steps.use_threads(1)
    at = [f"127.0.0.1:{port}" for port in os.environ.get("BENCH_PORTS", "").split(",")]
    if side == "mwms":
        strategy = steps.mirrored_strategy(at, RANK)
        # It kills the process when the other does not answer for a while, and both are paused here.
        strategy.extended._stop_check_health_thread()
        return lambda model, mode: steps.mirrored(network(model), strategy)
    if side == "ps":
        cluster = {"worker": at[:2], "ps": at[2:]}
        if RANK == 2:
            server = parameter_server.server(cluster, "ps", 0, 1)
            return lambda model, mode: nets.Training(lambda: 0.0 * bool(server), list, list)
        worker = parameter_server.Worker(cluster, RANK, 1)

    def served(model, mode):
        start = [v.numpy() for v in network(model).variables]
        batch = steps.batch_of(tasks[model], RANK)
        return worker.training(model, tasks[model], batch, start)

    ours = {"none": steps.alone, "sync": steps.synchronous, "delayed": steps.delayed, "only": only}
    return {
        "ps": served,
        "fairlead": lambda model, mode: ours[mode](network(model)),
        "horovod": lambda model, mode: steps.horovod(network(model), grouped=False),
        "horovod-best": lambda model, mode: steps.horovod(network(model), grouped=True),
    }[side]


def main(path, size, side):
    tasks, made = nets.SIZES[size], {}
    training = torch_side(tasks) if side == "torch" else tensorflow_side(tasks, side)

    def warm(model, mode):
        made[model, mode] = training(model, mode)
        # Until it is decided whether means move in the background.
        steps = BLOCK * BLOCKS + 8 if mode in ("delayed", "fairlead", "optimizer") else 2
        return [made[model, mode].step() for _ in range(steps)]

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

    turns.serve(path, {"warm": warm, "step": step, "digest": digest, "drop": drop})
    sys.stdout.flush()
    os._exit(0)  # servers and health checks of TensorFlow, and torch's group, would not let go


main(*sys.argv[1:4])
