"""A torch rank that trains: ``torch_steps.py SOCKET SIZE``; modes ``none``, ``gloo`` and ``fairlead``.

``gloo`` is DistributedDataParallel as it comes; ``fairlead`` the same with ``fairlead.comm.torch.ddp_hook``.
"""

import hashlib
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
os.environ["OMP_NUM_THREADS"] = "1"

import told

told.pin(told.rank_of())

import nets
import numpy as np
import torch
import torch.nn.functional as f
from torch import nn
from torch.nn.parallel import DistributedDataParallel

RATE, MOMENTUM = 1e-8, 0.9


class Ops:
    """What ``nets`` needs, by torch: channels are the second dimension, as torch has them."""

    relu = staticmethod(f.relu)
    matmul = staticmethod(torch.matmul)

    @staticmethod
    def spatial(x):
        return x.dim() - 2

    @staticmethod
    def channels(x):
        return x.shape[1]

    @staticmethod
    def conv(x, kernel, stride):
        conv = f.conv2d if x.dim() == 4 else f.conv3d
        # As "SAME" is where stride divides the size.
        return conv(x, kernel, stride=stride, padding=kernel.shape[-1] // 2)

    @staticmethod
    def bias(x, bias):
        return x + bias.view(1, -1, *[1] * (x.dim() - 2))

    @staticmethod
    def pool(x, size, stride):
        pool = f.max_pool2d if x.dim() == 4 else f.max_pool3d
        return pool(x, size, stride, padding=size // 2 if size > stride else 0)

    @staticmethod
    def norm(x, scale, offset):
        return f.batch_norm(x, None, None, scale, offset, training=True, eps=1e-5)

    @staticmethod
    def mean(x):
        return x.mean(dim=tuple(range(2, x.dim())))

    @staticmethod
    def flat(x):
        return x.flatten(1)


class Network(nn.Module):
    def __init__(self, key, task):
        super().__init__()
        self.key, self.classes = key, task.classes
        self.tensors = nn.ParameterList()
        torch.manual_seed(7)

        def make(shape, kind):
            if len(shape) > 2:
                shape = (shape[-1], shape[-2], *shape[:-2])
            tensor = torch.full(shape, float(kind == "ones"))
            if kind == "he":
                inputs = np.prod(shape[1:]) if len(shape) > 2 else shape[0]
                tensor.normal_(0, float(np.sqrt(2 / inputs)))
            self.tensors.append(nn.Parameter(tensor))
            return self.tensors[-1]

        with torch.no_grad():
            nets.build(key, Ops, make, torch.zeros(task.batch, *channels_first(task)), task.classes)
        assert sum(p.numel() for p in self.tensors) == task.weights

    def forward(self, x):
        left = iter(self.tensors)
        return nets.build(self.key, Ops, lambda shape, kind: next(left), x, self.classes)


def channels_first(task):
    return task.image[-1], *task.image[:-1]


def made_step(key, task, mode):
    from fairlead.comm import torch as ours

    net = Network(key, task)
    model = net
    if mode != "none":
        model = DistributedDataParallel(net)
        if mode == "fairlead":
            model.register_comm_hook(None, ours.ddp_hook)
    optimizer = torch.optim.SGD(model.parameters(), RATE, MOMENTUM)
    torch.manual_seed(100 + told.rank_of())
    x = torch.randn(task.batch, *channels_first(task))
    parameters = task.classes == 4
    y = torch.rand(task.batch, 4) if parameters else torch.randint(task.classes, (task.batch,))

    def step():
        optimizer.zero_grad()
        loss = f.mse_loss(model(x), y) if parameters else f.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    return net, step


def main(path, size):
    from fairlead.comm.torch import init_process_group

    torch.set_num_threads(1)
    tasks = {"full": nets.TASKS, "tiny": nets.TINY}[size]
    init_process_group()
    made = {}

    def warm(model, mode):
        made[model, mode] = made_step(model, tasks[model], mode)
        return [made[model, mode][1]() for _ in range(2)]

    def step(model, mode):
        begun = time.perf_counter()
        loss = made[model, mode][1]()
        seconds = time.perf_counter() - begun
        assert np.isfinite(loss)
        return seconds

    def digest(model, mode):
        tensors = made[model, mode][0].tensors
        whole = b"".join(p.detach().numpy().tobytes() for p in tensors)
        return hashlib.sha256(whole).hexdigest()

    def drop(model):
        for key in [key for key in made if key[0] == model]:
            del made[key]

    told.serve(path, {"warm": warm, "step": step, "digest": digest, "drop": drop})
    os._exit(0)


main(*sys.argv[1:3])
