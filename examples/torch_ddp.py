"""PyTorch's own DistributedDataParallel, as its tutorials write it: nothing in it is fairlead's.

Run it from the top of the checkout, on as many ranks as you like:

    $ fairlead run -n 2 pytorch -- python3 examples/torch_ddp.py
    $ fairlead run -n 1 pytorch -- torchrun --nproc-per-node 2 examples/torch_ddp.py
"""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")  # rank, size and address come from the environment
torch.manual_seed(1)
x = torch.randn(4096, 8)
y = (x[:, 0] * x[:, 1] > 0).float()  # not linearly separable
x, y = x[dist.get_rank() :: dist.get_world_size()], y[dist.get_rank() :: dist.get_world_size()]

layers = (torch.nn.Linear(8, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1), torch.nn.Flatten(0))
model = DistributedDataParallel(torch.nn.Sequential(*layers))
optimizer = torch.optim.Adam(model.parameters(), 0.01)
loss_of = torch.nn.BCEWithLogitsLoss()
for _ in range(5):
    for rows, labels in zip(x.split(32), y.split(32), strict=True):
        optimizer.zero_grad()
        loss_of(model(rows), labels).backward()
        optimizer.step()

accuracy = ((model(x) > 0) == (y > 0)).float().mean()
weights = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
first = weights.clone()
dist.broadcast(first, 0)
assert torch.equal(weights, first), "the ranks' weights differ"
if dist.get_rank() == 0:
    print(f"accuracy {accuracy:.3f} on {dist.get_world_size()} ranks with equal weights")
dist.destroy_process_group()
