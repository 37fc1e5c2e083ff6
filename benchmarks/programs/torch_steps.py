"""A torch rank that trains: ``torch_steps.py SOCKET SIZE``; modes ``none``, ``gloo`` and ``fairlead``.

``gloo`` is DistributedDataParallel as it comes; ``fairlead`` the same with ``fairlead.comm.torch.ddp_hook``. The steps
are those of ``fairlead bench peers``.
"""

import os
import sys
import time

os.environ["OMP_NUM_THREADS"] = "1"

import told

told.pin(told.rank_of())

import hashlib

import numpy as np
import torch

from fairlead.perf.bench import nets, steps_torch


def main(path, size):
    from fairlead.comm.torch import init_process_group

    torch.set_num_threads(1)
    tasks = nets.SIZES[size]
    init_process_group()
    made = {}

    def warm(model, mode):
        made[model, mode] = steps_torch.training(model, tasks[model], mode, told.rank_of())
        return [made[model, mode].step() for _ in range(2)]

    def step(model, mode):
        begun = time.perf_counter()
        loss = made[model, mode].step()
        seconds = time.perf_counter() - begun
        assert np.isfinite(loss)
        return seconds

    def digest(model, mode):
        whole = b"".join(a.tobytes() for a in made[model, mode].weights())
        return hashlib.sha256(whole).hexdigest()

    def drop(model):
        for key in [key for key in made if key[0] == model]:
            del made[key]

    told.serve(path, {"warm": warm, "step": step, "digest": digest, "drop": drop})
    os._exit(0)


main(*sys.argv[1:3])
