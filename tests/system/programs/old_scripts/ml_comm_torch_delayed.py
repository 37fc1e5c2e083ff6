"""torch, as a script for the first torch front of the Cray plugin was written."""

import sys

import ml_comm_torch as cdl
import torch

warmup = float(sys.argv[1])
torch.manual_seed(cdl.get_rank())
model = torch.nn.Linear(3, 1)
optimizer = cdl.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), 1.0), 6, 1, 2, warmup, 2, 3
)
begun = model.weight.detach().clone()
moves = []
for step in range(6):
    optimizer.zero_grad()
    ((cdl.get_rank() * 2 + step) * model.weight.sum() + 0 * model(torch.ones(3))).sum().backward()
    before = model.weight.detach().clone()
    optimizer.step()
    moves.append(round(float((before - model.weight.detach()).mean()), 4))
different = cdl.check_buffers_match([p.detach().numpy() for p in model.parameters()])
print(f"rank {cdl.get_rank()}: different: {different}, moves {moves}")
cdl.finalize()
