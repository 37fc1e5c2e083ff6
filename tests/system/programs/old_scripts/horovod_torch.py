"""torch, as scripts for Horovod and for the Cray plugin were written."""

import dl_comm.torch as cdl
import horovod.torch as hvd
import torch

hvd.init()
rank = hvd.rank()
torch.manual_seed(rank)


def network():
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))


def trained(model, optimizer, clipped):
    for _ in range(5):
        x = torch.randn(8, 3)
        optimizer.zero_grad()
        ((model(x) - x.sum(1, keepdim=True)) ** 2).mean().backward()
        if clipped:
            optimizer.synchronize()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            with optimizer.skip_synchronize():
                optimizer.step()
        else:
            optimizer.step()
    return cdl.check_buffers_match([p.detach().numpy() for p in model.parameters()])


model = network()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01 * hvd.size())
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
hvd.broadcast_optimizer_state(optimizer, root_rank=0)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
print(f"rank {rank}: horovod: different: {trained(model, optimizer, clipped=True)}")

model = network()
optimizer = cdl.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), 0.1), nteam=1, nthread_per_team=2
)
print(f"rank {rank}: plugin: different: {trained(model, optimizer, clipped=False)}")
mean = hvd.allreduce(torch.tensor([float(rank)]), name="mean")
rows = hvd.allgather(torch.ones(rank + 1, 2)).shape
print(f"rank {rank}: {mean.tolist()} {list(rows)}")
hvd.shutdown()
