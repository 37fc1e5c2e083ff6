"""A training on each kind of torch's random loaders: writes what this rank has seen into the folder of the first argument."""

import json
import os
import sys

import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    RandomSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

torch.manual_seed(3)
rows = TensorDataset(torch.arange(26.0))
half = torch.randperm(26)[:13].tolist()
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
endless = RandomSampler(rows, replacement=True, num_samples=10**10)
loaders = {
    "shuffle": DataLoader(rows, 3, shuffle=True, generator=torch.Generator()),
    "random": DataLoader(rows, 3, sampler=RandomSampler(rows, num_samples=40)),
    "subset": DataLoader(rows, 3, sampler=SubsetRandomSampler(half), num_workers=1),
    "weighted": DataLoader(rows, 3, sampler=WeightedRandomSampler([0.0, 1.0] * 13, 20)),
    "batches": DataLoader(rows, batch_sampler=BatchSampler(RandomSampler(rows), 3, True)),
    "endless": DataLoader(rows, 3, sampler=endless),
}


def epoch(loader):
    numbers = []
    for _, (x,) in zip(range(9), loader, strict=False):
        numbers += x.int().tolist()
        optimizer.zero_grad()
        model(x[:, None]).square().mean().backward()
        optimizer.step()
    return numbers


seen = {"half": sorted(half)}
for name, loader in loaders.items():
    seen[name] = {"length": len(loader), "first": epoch(loader), "second": epoch(loader)}
    if name != "endless":
        with torch.no_grad():
            seen[name]["whole"] = [int(n) for (x,) in loader for n in x]
        seen[name]["whole length"] = len(loader)
        seen[name]["third"] = epoch(loader)
        seen[name]["length again"] = len(loader)
with open(f"{sys.argv[1]}/seen.{os.environ['FAIRLEAD_RANK']}.json", "w") as stream:
    json.dump(seen, stream)
