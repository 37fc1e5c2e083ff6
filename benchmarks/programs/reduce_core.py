"""A rank that reduces: ``reduce_core.py SOCKET LIBRARY``, of ``fairlead``, ``mpi``, ``horovod`` or ``gloo``.

``check`` reduces numbers that are known and prints how far the sum is off; ``times`` gives seconds.
"""

import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ["OMP_NUM_THREADS"] = "1"

import turns

turns.pin(turns.rank_of())

import numpy as np


def fairlead():
    from fairlead import comm

    ranks = comm.init()

    def reduce(given, out):
        ranks.aggregate([given], out=[out])  # the mean

    return reduce, ranks.rank, ranks.size, ranks.barrier, "mean", comm.finalize


def mpi():
    from mpi4py import MPI

    world = MPI.COMM_WORLD

    def reduce(given, out):
        world.Allreduce(given, out)

    return reduce, world.rank, world.size, world.Barrier, "sum", lambda: None


def horovod():
    import horovod.tensorflow as hvd
    import tensorflow as tf
    from mpi4py import MPI

    tf.config.threading.set_intra_op_parallelism_threads(1)
    hvd.init()
    kept = {}

    def reduce(given, out):
        key = given.ctypes.data, given.size  # an address may be used again
        if key not in kept:  # its tensor is there already, as a gradient would be
            kept.clear()
            kept[key] = tf.constant(given)
        mean = hvd.grouped_allreduce([kept[key]], op=hvd.Sum)[0]
        if len(out) < 1 << 16:
            out[:] = mean.numpy()
        else:
            out[-1] = mean[-1]  # it is done; no gradient is copied

    return reduce, hvd.rank(), hvd.size(), MPI.COMM_WORLD.Barrier, "sum", hvd.shutdown


def gloo():
    import torch
    import torch.distributed as dist

    from fairlead.comm.torch import init_process_group

    torch.set_num_threads(1)
    init_process_group()

    def reduce(given, out):
        np.copyto(out, given)  # it reduces in place
        dist.all_reduce(torch.from_numpy(out))

    return reduce, dist.get_rank(), dist.get_world_size(), dist.barrier, "sum", lambda: None


def main(path, library):
    reduce, rank, size, barrier, kind, end = {
        "fairlead": fairlead, "mpi": mpi, "horovod": horovod, "gloo": gloo,
    }[library]()  # fmt: skip
    buffers = {}

    def arrays(count):
        if count not in buffers:
            buffers.clear()
            given = (np.arange(count) % 251 + rank).astype(np.float32)
            buffers[count] = given, np.zeros(count, np.float32)
        return buffers[count]

    def times(count, repeats):
        given, out = arrays(count)
        seconds = []
        for _ in range(repeats):
            barrier()
            begun = time.perf_counter()
            reduce(given, out)
            seconds.append(time.perf_counter() - begun)
        return seconds

    def check(count):
        given, out = arrays(count)
        out[:] = -1
        reduce(given, out)
        whole = size * (np.arange(count) % 251) + size * (size - 1) / 2
        true = whole / size if kind == "mean" else whole
        if library == "horovod" and count >= 1 << 16:
            out, true = out[-1:], true[-1:]
        return float(np.max(np.abs(out - true) / np.maximum(np.abs(true), 1)))

    turns.serve(path, {"times": times, "check": check})
    end()
    sys.stdout.flush()
    if library in ("horovod", "gloo"):
        os._exit(0)


main(*sys.argv[1:3])
