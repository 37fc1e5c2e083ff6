"""Training steps on torch: alone, by DistributedDataParallel as it comes, and with ``fairlead.comm`` beneath.

Import it when the rank is on its cores.
"""

from __future__ import annotations

import torch
import torch.nn.functional as f
from torch.nn.parallel import DistributedDataParallel

from fairlead.perf.bench import nets
from fairlead.perf.bench.nets import MOMENTUM, RATE, Training
from fairlead.perf.bench.nets_torch import Network, channels_first


def training(key: str, task: nets.Task, way: str, rank: int) -> Training:
    """A network of its own; ``way`` is ``none``, ``gloo`` or ``fairlead``. The last two need torch's default group."""
    net = Network(key, task)
    model = net
    if way != "none":
        model = DistributedDataParallel(net)
        if way == "fairlead":
            from fairlead.comm import torch as ours

            model.register_comm_hook(None, ours.ddp_hook)
    optimizer = torch.optim.SGD(model.parameters(), RATE, MOMENTUM)
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
