"""A serial torch script that trains on a loader in order, as public examples do on CPUs.

Argument 1 is the folder for what it saw.
"""

import json
import os
import sys
from pathlib import Path

import torch
from torch.utils.data import DataLoader, TensorDataset

x = torch.arange(16.0).reshape(-1, 1)
rows = TensorDataset(x, 3 * x)
train, held_out = DataLoader(rows, 4), DataLoader(rows, 4, shuffle=False)
model = torch.nn.Linear(1, 1, bias=False)
torch.nn.init.zeros_(model.weight)
optimizer = torch.optim.SGD(model.parameters(), 1e-3)
seen = {"train": [], "lengths": [len(train)]}
seen["classes"] = [kind.__name__ for kind in type(train.sampler).__mro__]


def batches(loader):
    return [a.flatten().int().tolist() for a, _ in loader]


seen["held out"] = batches(held_out)  # while gradients are enabled
next(iter(held_out))
for _ in range(2):
    for a, b in train:
        seen["train"].append(a.flatten().int().tolist())
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(a), b).backward()
        optimizer.step()
seen["lengths"].append(len(train))
with torch.no_grad():
    seen["evaluated"] = batches(train)
seen["held out again"] = batches(held_out)
seen["loaded"] = batches(DataLoader(rows, 4, num_workers=2))
seen["weight"] = model.weight.item()
(Path(sys.argv[1]) / f"seen.{os.getpid()}").write_text(json.dumps(seen))
