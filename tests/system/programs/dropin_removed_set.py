"""A network that one rank trains alone in a process set, which is removed; then one of all ranks."""

import sys

import horovod.torch as hvd
import torch

hvd.init()
own = [hvd.add_process_set([rank]) for rank in range(hvd.size())]


def train(steps, **how):
    net = torch.nn.Linear(2, 1)
    hvd.broadcast_parameters(net.state_dict())
    sgd = torch.optim.SGD(net.parameters(), 0.1)
    optimizer = hvd.DistributedOptimizer(sgd, net.named_parameters(), **how)
    for _ in range(steps):
        optimizer.zero_grad()
        net(torch.ones(1, 2) * (hvd.rank() + 1)).sum().backward()
        optimizer.step()
    return net, optimizer


alone = train(3, process_set=own[hvd.rank()])
for each in own:
    hvd.remove_process_set(each)
together = train(2)
sys.stdout.write("done\n")
hvd.shutdown()
