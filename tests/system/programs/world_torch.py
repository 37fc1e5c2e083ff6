"""A world of torch.distributed that trains: each rank prints its number, its size and a digest of its weights.

An argument makes it go wrong: ``one`` (a world of its own), ``alone`` (none), ``apart`` (an address of its own),
``sizes`` (a size of its own).
"""

import hashlib
import os
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

wrong = sys.argv[1] if len(sys.argv) > 1 else ""
if wrong == "one":
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
elif wrong == "apart":
    os.environ["MASTER_PORT"] = str(int(os.environ["MASTER_PORT"]) + int(os.environ["RANK"]))
elif wrong == "sizes":
    os.environ["WORLD_SIZE"] = str(2 + int(os.environ["RANK"]))
if wrong not in ("one", "alone"):
    dist.init_process_group("gloo")
joined = dist.is_initialized()
rank, size = (dist.get_rank(), dist.get_world_size()) if joined else (0, 1)
torch.manual_seed(rank)
model = torch.nn.Linear(8, 1)
model = DistributedDataParallel(model) if joined else model
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(300 if wrong == "one" else 3):
    optimizer.zero_grad()
    model(torch.randn(16, 8)).pow(2).mean().backward()
    optimizer.step()
    if wrong == "one":
        torch.utils.data  # noqa: B018
        __import__("time").sleep(0.1)
weights = torch.cat([p.detach().flatten() for p in model.parameters()]).numpy().tobytes()
# In one write: lines of two ranks can run into each other.
os.write(1, f"{rank} of {size}: {hashlib.sha256(weights).hexdigest()[:12]}\n".encode())
dist.destroy_process_group() if joined else None
