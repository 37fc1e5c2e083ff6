"""Training steps on torch: alone, by DistributedDataParallel with Gloo, and with ``fairlead.comm``.

Gradients are views of DDP's buckets in both: copying them into the buckets takes 3 to 4 % of a step of ResNet-50.

Import it when the rank is on its cores.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as f
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.peers import nets
from benchmarks.peers.nets import MOMENTUM, RATE, Training


class Ops:
    """The operations, by torch: channels are the second dimension, as torch has them."""

    relu = staticmethod(f.relu)
    matmul = staticmethod(torch.matmul)

    @staticmethod
    def spatial(x: Any) -> int:
        return int(x.dim()) - 2

    @staticmethod
    def channels(x: Any) -> int:
        return int(x.shape[1])

    @staticmethod
    def conv(x: Any, kernel: Any, stride: int) -> Any:
        conv = f.conv2d if x.dim() == 4 else f.conv3d
        # As "SAME" is where stride divides the size.
        return conv(x, kernel, stride=stride, padding=kernel.shape[-1] // 2)

    @staticmethod
    def bias(x: Any, bias: Any) -> Any:
        return x + bias.view(1, -1, *[1] * (x.dim() - 2))

    @staticmethod
    def pool(x: Any, size: int, stride: int) -> Any:
        pool = f.max_pool2d if x.dim() == 4 else f.max_pool3d
        return pool(x, size, stride, padding=size // 2 if size > stride else 0)

    @staticmethod
    def norm(x: Any, scale: Any, offset: Any) -> Any:
        return f.batch_norm(x, None, None, scale, offset, training=True, eps=1e-5)

    @staticmethod
    def mean(x: Any) -> Any:
        return x.mean(dim=tuple(range(2, x.dim())))

    @staticmethod
    def flat(x: Any) -> Any:
        return x.flatten(1)


class Network(nn.Module):  # type: ignore[misc]
    """A network whose tensors are the same on every rank."""

    def __init__(self, key: str, task: nets.Task):
        super().__init__()
        self.key, self.classes = key, task.classes
        self.tensors = nn.ParameterList()
        torch.manual_seed(7)

        def make(shape: tuple[int, ...], kind: str) -> Any:
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

    def forward(self, x: Any) -> Any:
        left = iter(self.tensors)
        return nets.build(self.key, Ops, lambda shape, kind: next(left), x, self.classes)


def channels_first(task: nets.Task) -> tuple[int, ...]:
    """Shape of a sample as torch has it."""
    return task.image[-1], *task.image[:-1]


def training(key: str, task: nets.Task, way: str, rank: int) -> Training:
    """A network of its own.

    Args:
        way: ``none``; ``gloo`` or ``fairlead``, by DDP, which need torch's default group; ``optimizer``, by
            ``DistributedOptimizer``; ``in-step``, the same with gradients that leave in ``step()`` alone.
    """
    net = Network(key, task)
    model = net
    if way in ("gloo", "fairlead"):
        model = DistributedDataParallel(net, gradient_as_bucket_view=True)
        if way == "fairlead":
            from fairlead.comm import torch as ours

            model.register_comm_hook(None, ours.ddp_hook)
    optimizer = torch.optim.SGD(model.parameters(), RATE, MOMENTUM)
    if way in ("optimizer", "in-step"):
        from fairlead.comm import torch as ours

        ours.DistributedOptimizer(optimizer)
        if way == "in-step":
            vars(ours.averaging_of(optimizer))["can_be_early"] = lambda: False
    torch.manual_seed(100 + rank)
    x = torch.randn(task.batch, *channels_first(task))
    parameters = task.classes == 4
    y = torch.rand(task.batch, 4) if parameters else torch.randint(task.classes, (task.batch,))

    def step() -> float:
        optimizer.zero_grad()
        loss = f.mse_loss(model(x), y) if parameters else f.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    return Training(
        step,
        lambda: [p.detach().numpy() for p in net.tensors],
        lambda: [optimizer.state[p]["momentum_buffer"].numpy() for p in net.tensors],
    )
